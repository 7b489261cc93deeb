"""Operations on a running hub: reload, and restart, add and remove a server. They need `admin`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.admin_audit import record_action
from dragoman.core.errors import AuthorizationError, InvalidInput, NotFound
from dragoman.core.ports import AuditLog
from dragoman.core.principal import LOCAL, OWNER, Principal
from dragoman.core.scopes import REGISTRY
from dragoman.core.secret_rules import Author, SecretUse, find_author
from dragoman.core.urls import render_full_origin
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object
from dragoman.web.openapi import admin_route

MAX_WORDS, MAX_TEXT = 100, 8_000
URL = re.compile(r"https?://[!-~]+", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}", re.ASCII)
PLAIN_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[a-z]+:[^${}\s]+)\}", re.ASCII)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}", re.ASCII)
"""A token (RFC 9110, 5.6.2)."""
HEADER_VALUE = re.compile(r"[ -~\t]+", re.ASCII)


class ServerAdministration(Protocol):
    async def reload(self) -> str | None:
        """Applies the current configuration; returns why it is not used."""

    async def restart_server(self, name: str) -> bool:
        """Returns whether there is such an enabled server."""


class ServerEditing(Protocol):
    def check_reference(self, reference: str, use: SecretUse) -> None:
        """Raises `InvalidInput` for a secret that its author may not use."""

    async def add_program(
        self, name: str, command: list[str], env: Sequence[str], sandbox: str
    ) -> Mapping[str, Any]:
        """Adds a program to config.toml; raises `InvalidInput` with what is wrong with it."""

    async def add_url(
        self, name: str, url: str, headers: Mapping[str, str], author: Author
    ) -> Mapping[str, Any]:
        """Adds a server on the network, with these headers exactly."""

    async def remove(self, name: str) -> Mapping[str, Any]: ...

    async def add_demo(self) -> Mapping[str, Any]:
        """Installs the demo: agents and a server that come with the hub."""


@dataclass(frozen=True, slots=True)
class ServersApi:
    _administration: ServerAdministration
    _editing: ServerEditing
    _audit: AuditLog

    @admin_route(
        REGISTRY,
        "POST /api/reload",
        "Reload the configuration; says why the file is not used",
        body=None,
    )
    async def _reload(self, request: ApiRequest) -> ApiResponse:
        return build_response({"problem": await self._administration.reload()})

    @admin_route(
        REGISTRY, "POST /api/mcp/servers/{name}/restart", "Restart a server", (404,), body=None
    )
    async def _restart(self, request: ApiRequest) -> ApiResponse:
        name = request.names[0]
        if not await self._administration.restart_server(name):
            raise NotFound(f'there is no enabled server "{name[:200]}"')
        return build_response({"restarted": name})

    @admin_route(
        REGISTRY,
        "POST /api/mcp/servers",
        "Add a server to config.toml: name, and url and headers, or command, args, env and sandbox",
        (500,),
        "Server",
    )
    async def _add(self, request: ApiRequest) -> ApiResponse:
        given = parse_object(request)
        known = {"name", "url", "headers", "command", "args", "env", "sandbox"}
        if unknown := given.keys() - known:
            raise InvalidInput(f'unknown member "{min(unknown)[:100]}"')
        name = _parse_text(given, "name")
        if "command" not in given:
            headers, url = _parse_headers(given), _parse_text(given, "url")
            if not URL.fullmatch(url):  # the command would take it for a program
                raise InvalidInput('"url" must begin with http:// or https://')
            # An exec: reference runs a program, and any other one sends a secret to the URL.
            author, origin = find_author(request.caller), render_full_origin(url)
            use = SecretUse(author, f'server "{name[:200]}"', origin)
            if use.author is not Author.OWNER:
                for text in (url, *headers.values()):
                    self._check_references(text, use)
            with record_action(self._audit, "server.add", name, request.principal):
                done = await self._editing.add_url(name, url, headers, use.author)
            return build_response(done)
        _require_owner(request.caller)
        command = [_parse_text(given, "command"), *_parse_words(given, "args")]
        sandbox = given.get("sandbox", "")
        if not isinstance(sandbox, str):
            raise InvalidInput('"sandbox" must be the name of a level')
        env = _parse_words(given, "env")
        if not all(VARIABLE.fullmatch(one) for one in env):
            raise InvalidInput(
                '"env" must be a list of names of variables; their values belong into the file env '
                "in the home"
            )
        with record_action(self._audit, "server.add", name, request.principal):
            done = await self._editing.add_program(name, command, env, sandbox)
        return build_response(done)

    def _check_references(self, text: str, use: SecretUse) -> None:
        """Raises for a secret that only the owner may use. The command expands more forms than the
        hub does, such as `${NAME:-otherwise}`: only those that can be checked may be used."""
        for reference in PLAIN_REFERENCE.findall(text):
            whole = reference if ":" in reference else f"env:{reference}"
            self._editing.check_reference(whole, use)
        if "$" in PLAIN_REFERENCE.sub("", text):
            raise InvalidInput('use "$" only in references such as ${VARIABLE}')

    @admin_route(
        REGISTRY, "DELETE /api/mcp/servers/{name}", "Remove a server from config.toml", (404, 500)
    )
    async def _remove(self, request: ApiRequest) -> ApiResponse:
        name = request.names[0]
        with record_action(self._audit, "server.remove", name, request.principal):
            return build_response(await self._editing.remove(name))

    @admin_route(
        REGISTRY,
        "POST /api/demo",
        "Install the demo, as dragoman demo add: two agents and a server",
        (500,),
        body=None,
    )
    async def _add_demo(self, request: ApiRequest) -> ApiResponse:
        if request.caller.kind != LOCAL.kind:  # the programs are the hub's own
            _require_owner(request.caller)
        with record_action(self._audit, "demo.add", "demo", request.principal):
            return build_response(await self._editing.add_demo())


def _parse_text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT:
        raise InvalidInput(f'"{name}" is missing or invalid: use a string')
    if "\0" in value or value.startswith("-"):
        raise InvalidInput(f'"{name}" must not begin with "-" or contain NUL')
    return value


def _parse_words(given: Mapping[str, Any], name: str) -> list[str]:
    value = given.get(name, [])
    if (
        not isinstance(value, list)
        or len(value) > MAX_WORDS
        or not all(isinstance(one, str) and len(one) <= MAX_TEXT for one in value)
        or any("\0" in one for one in value)  # the command would get what is before it
    ):
        raise InvalidInput(f'"{name}" must be a list of at most {MAX_WORDS} strings')
    return value


def _parse_headers(given: Mapping[str, Any]) -> Mapping[str, str]:
    """Values are written into config.toml, which refers to secrets and has none."""
    value = given.get("headers", {})
    if not isinstance(value, dict) or len(value) > MAX_WORDS:
        raise InvalidInput('"headers" must be an object')
    for name, one in value.items():
        if not HEADER_NAME.fullmatch(name):
            raise InvalidInput(
                f"the name of the header {name[:100]!r} is invalid: use letters, digits and hyphens"
            )
        is_text = isinstance(one, str) and len(one) <= MAX_TEXT and HEADER_VALUE.fullmatch(one)
        if not is_text or "${" not in one:
            raise InvalidInput(
                f'the header "{name[:100]}" must refer to its value as ${{VARIABLE}}; it belongs '
                "into the file env in the home"
            )
    return value


def _require_owner(caller: Principal) -> None:
    """To add a program means to run anything as the user of the hub: no right includes that."""
    if caller.kind != OWNER.kind:
        raise AuthorizationError(
            f'"{caller.label}" may not add a program: only the owner of the hub may, with dragoman '
            "servers add or in the console; a server with a url can be added"
        )
