"""`/api/policies`: the hub's policies and queries about them. All routes need `admin`.

Does not know Cedar: `PolicyAdministration` parses and evaluates policies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from dragoman.core.errors import InvalidInput
from dragoman.core.principal import Principal
from dragoman.core.scopes import POLICIES
from dragoman.web.api import (
    ApiRequest,
    ApiResponse,
    build_error,
    build_response,
    parse_flag,
    parse_object,
)
from dragoman.web.openapi import admin_route
from dragoman.web.openapi_schemas import QUERY_FLAG, TEXT

MAX_TEXT = 256 * 1024
"""Characters of one file."""
MAX_TEXTS = 200
MAX_ALL = 1024 * 1024
"""Characters of all files of a draft."""
MAX_QUESTION = 64 * 1024
"""Bytes of a question."""
MAX_ROLES, MAX_ROLE, MAX_ATTRIBUTES = 100, 200, 100
MAX_REPLAYED = 1_000_000
REPLAYED = 100_000
"""The default limit of replayed calls."""
Json = dict[str, Any]


class PolicyAdministration(Protocol):
    """Administration of policies. Returns plain JSON objects; raises `HubError`.

    Texts are keyed by file name, `NAME.cedar` for policies and `NAME.toml` for golden tests. An
    invalid set returns `ok` false and `findings`: objects with `file`, `line`, `policy`, `level`
    and `message`.
    """

    async def overview(self) -> Json: ...

    def plan(self, name: str, text: str) -> Mapping[str, str]:
        """Returns the texts of the folder as they would be with this text of one file."""

    async def one(self, name: str) -> Json: ...

    async def write(self, name: str, text: str, by: Principal, *, force: bool) -> Json: ...

    async def enable(self, name: str, enabled: bool, by: Principal, *, force: bool) -> Json: ...

    async def remove(self, name: str, by: Principal, *, force: bool) -> Json: ...

    async def validate(self, texts: Mapping[str, str] | None) -> Json:
        """Validates the texts, or the folder if there are none."""

    async def test(self, texts: Mapping[str, str] | None) -> Json: ...

    async def explain(
        self,
        principal: str,
        tool: str,
        action: str | None,
        context: Json,
        roles: tuple[str, ...] | None,
    ) -> Json:
        """`roles` replace the roles of the principal, which then need not exist."""

    async def who_can(self, tool: str) -> Json: ...

    async def what_can(self, principal: str) -> Json: ...

    async def replay(
        self, texts: Mapping[str, str], since: float, until: float, limit: int
    ) -> Json: ...

    async def propose(self, since: float, until: float, limit: int) -> Json: ...


TAKEN = frozenset({"validate", "test", "explain", "replay", "propose", "who-can", "what-can"})
"""Reserved names: they are routes."""


@dataclass(frozen=True, slots=True)
class PoliciesApi:
    _source: PolicyAdministration

    # --- the files -------------------------------------------------------------------------------

    @admin_route(POLICIES, "GET /api/policies", "The policy files, and the policies in force")
    async def _list_files(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.overview())

    @admin_route(POLICIES, "GET /api/policies/{name}", "One policy file", (404,))
    async def _get_file(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.one(request.names[0]))

    @admin_route(
        POLICIES,
        "POST /api/policies",
        "Create or replace a policy file: name, text, force",
        body="PolicyFile",
    )
    async def _write(self, request: ApiRequest) -> ApiResponse:
        by = request.caller
        given = _check_members(parse_object(request), "name", "text", "force")
        name, text = _parse_text(given, "name"), given.get("text")
        if name.removesuffix(".cedar") in TAKEN:
            raise InvalidInput(f'"{name}" is reserved; choose another name for the policy file')
        if not isinstance(text, str):
            raise InvalidInput('"text" must be a string with the policies')
        if len(text) > MAX_TEXT:
            raise InvalidInput(f'"text" is too long: {len(text)} characters, at most {MAX_TEXT}')
        done = await self._source.write(name, text, by, force=_parse_flag(given, "force"))
        response = _respond_to_change(done, f'"{name}" was not written')
        if response.status == 200:
            response.headers.append((b"location", f"/api/policies/{quote(done['name'])}".encode()))
        return response

    @admin_route(
        POLICIES,
        "PATCH /api/policies/{name}",
        "Enable or disable a policy file: enabled, force",
        (404,),
        "PolicyChange",
    )
    async def _enable(self, request: ApiRequest) -> ApiResponse:
        by = request.caller
        given = _check_members(parse_object(request), "enabled", "force")
        if not isinstance(given.get("enabled"), bool):
            raise InvalidInput('the body must be {"enabled": true} or {"enabled": false}')
        name, enabled = request.names[0], given["enabled"]
        done = await self._source.enable(name, enabled, by, force=_parse_flag(given, "force"))
        return _respond_to_change(done, f'"{name}" was not {"enabled" if enabled else "disabled"}')

    @admin_route(
        POLICIES,
        "DELETE /api/policies/{name}",
        "Delete a policy file",
        (404,),
        query={"force": QUERY_FLAG},
    )
    async def _remove(self, request: ApiRequest) -> ApiResponse:
        by = request.caller
        force = parse_flag(request, "force")
        done = await self._source.remove(request.names[0], by, force=force)
        return _respond_to_change(done, f'"{request.names[0]}" was not deleted')

    # --- queries -------------------------------------------------------------------------------

    @admin_route(
        POLICIES,
        "POST /api/policies/validate",
        "Validate texts (or the folder)",
        body="PolicyTexts",
    )
    async def _validate(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.validate(self._parse_draft(parse_object(request))))

    @admin_route(
        POLICIES,
        "POST /api/policies/test",
        "Run the golden tests of texts (or of the folder)",
        body="PolicyTexts",
    )
    async def _test(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.test(self._parse_draft(parse_object(request))))

    @admin_route(
        POLICIES,
        "POST /api/policies/explain",
        "Who may call what, and why: principal, tool, action, context, roles",
        (404, 409),
        "PolicyQuestion",
        body_bytes=MAX_QUESTION,
    )
    async def _explain(self, request: ApiRequest) -> ApiResponse:
        given = _check_members(
            parse_object(request), "principal", "tool", "action", "context", "roles"
        )
        action, context, roles = given.get("action"), given.get("context", {}), given.get("roles")
        if not isinstance(action, str | None):
            raise InvalidInput('"action" must be the name of an action')
        if not isinstance(context, dict) or len(context) > MAX_ATTRIBUTES:
            raise InvalidInput(f'"context" must be an object of at most {MAX_ATTRIBUTES} members')
        if roles is not None and not (
            isinstance(roles, list)
            and len(roles) <= MAX_ROLES
            and all(isinstance(role, str) and len(role) <= MAX_ROLE for role in roles)
        ):
            raise InvalidInput(
                f'"roles" must be a list of at most {MAX_ROLES} strings, each of at most '
                f"{MAX_ROLE} characters"
            )
        principal, tool = _parse_text(given, "principal"), _parse_text(given, "tool")
        assumed = tuple(roles) if roles is not None else None
        return build_response(await self._source.explain(principal, tool, action, context, assumed))

    @admin_route(
        POLICIES,
        "GET /api/policies/who-can",
        "All principals, and whether they may call ?tool=",
        (404, 409),
        query={"tool": TEXT},
        needs=("tool",),
    )
    async def _who_can(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.who_can(_parse_text(request.query, "tool")))

    @admin_route(
        POLICIES,
        "GET /api/policies/what-can",
        "All tools, and whether ?principal= may call them",
        (404,),
        query={"principal": TEXT},
        needs=("principal",),
    )
    async def _what_can(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.what_can(_parse_text(request.query, "principal")))

    @admin_route(
        POLICIES,
        "POST /api/policies/replay",
        "Which recorded calls a draft would decide differently: texts, since, until, limit",
        body="PolicyReplay",
    )
    async def _replay(self, request: ApiRequest) -> ApiResponse:
        given = _check_members(
            parse_object(request), "texts", "name", "text", "since", "until", "limit"
        )
        draft = {key: value for key, value in given.items() if key in ("texts", "name", "text")}
        texts = self._parse_draft(draft) if draft != {"text": draft.get("text")} else None
        if texts is None:
            raise InvalidInput(
                'send "texts", the draft as an object of file names and texts, or "name" and '
                '"text" of one file of the folder'
            )
        done = await self._source.replay(texts, *_parse_period(given))
        return _respond_to_change(done, "the draft cannot be replayed")

    @admin_route(
        POLICIES,
        "POST /api/policies/propose",
        "The least permissive policies for recorded calls: since, until, limit",
        body="PolicyPeriod",
    )
    async def _propose(self, request: ApiRequest) -> ApiResponse:
        given = _check_members(parse_object(request), "since", "until", "limit")
        return build_response(await self._source.propose(*_parse_period(given)))

    def _parse_draft(self, given: Mapping[str, Any]) -> Mapping[str, str] | None:
        """Parses texts, or with a name the folder with this text of one file."""
        if "name" not in given:
            return _parse_texts(given)
        _check_members(given, "name", "text")
        name, texts = _parse_text(given, "name"), _parse_texts({"text": given.get("text", "")})
        assert texts is not None
        return self._source.plan(name, texts["text.cedar"])


def _respond_to_change(done: dict[str, Any], otherwise: str) -> ApiResponse:
    """Returns the change, or an error with all findings if the set is invalid."""
    if done.get("ok", True):
        return build_response(done)
    findings = done.get("findings", [])
    said = "; ".join(render_finding(each) for each in findings if each["level"] == "error")
    return build_error(
        400, f"{otherwise}: {said or done.get('problem')}", kind="ConfigError", findings=findings
    )


def render_finding(finding: Mapping[str, Any]) -> str:
    where = f"{finding['file']}:{finding['line']}" if finding.get("line") else finding["file"]
    return f"{where}: {finding['message']}" if where else str(finding["message"])


def _check_members(given: Mapping[str, Any], *known: str) -> Mapping[str, Any]:
    if more := sorted(given.keys() - set(known)):
        raise InvalidInput(f'unknown member "{more[0][:100]}"; use {", ".join(known)}')
    return given


def _parse_text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value or len(value) > 500:
        raise InvalidInput(f'"{name}" is missing or invalid: use a string of 1 to 500 characters')
    return value


def _parse_flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f'"{name}" must be true or false')
    return value


def _parse_texts(given: Mapping[str, Any]) -> dict[str, str] | None:
    """Parses `{"text": …}` or `{"texts": {FILE: …}}`; None stands for the folder."""
    _check_members(given, "text", "texts")
    if "text" in given and "texts" in given:
        raise InvalidInput('send "text" or "texts", not both')
    texts = {"text.cedar": given["text"]} if "text" in given else given.get("texts")
    if texts is None:
        return None
    if not isinstance(texts, dict) or len(texts) > MAX_TEXTS:
        raise InvalidInput(f'"texts" must be an object of at most {MAX_TEXTS} files')
    for name, text in texts.items():
        if not name.endswith((".cedar", ".toml")) or "/" in name or len(name) > 100:
            raise InvalidInput(f'invalid file name "{name[:100]}": use NAME.cedar or NAME.toml')
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise InvalidInput(f'"{name}" must be a string of at most {MAX_TEXT} characters')
    if sum(map(len, texts.values())) > MAX_ALL:
        raise InvalidInput(f'"texts" is too long: at most {MAX_ALL} characters together')
    return texts


def _parse_period(given: Mapping[str, Any]) -> tuple[float, float, int]:
    """Parses start, end and the maximum number of calls."""
    limit = given.get("limit", REPLAYED)
    if type(limit) is not int or not 1 <= limit <= MAX_REPLAYED:
        raise InvalidInput(f'"limit" must be a number from 1 to {MAX_REPLAYED}')
    return _parse_time(given, "since", None), _parse_time(given, "until", time.time()), limit


def _parse_time(given: Mapping[str, Any], name: str, otherwise: float | None) -> float:
    """Seconds since 1970, as everywhere in the record."""
    value = given.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise InvalidInput(f'"{name}" must be a time, in seconds since 1970')
    return float(value)
