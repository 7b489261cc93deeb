"""`/api/policies`: the policies of the hub, and questions about them. All of it needs `admin`.

Knows no Cedar: what a policy says, and whether a set of them can be used, is the source's to tell.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.web.api import (
    ApiRequest,
    ApiResponse,
    Route,
    build_error,
    build_response,
    parse_object,
    require_admin,
)

MAX_TEXT = 256 * 1024
"""Characters of one file."""
MAX_TEXTS = 200
MAX_REPLAYED = 1_000_000
REPLAYED = 100_000
"""Calls that are looked at where nothing else is asked for."""


class PolicyAdministration(Protocol):
    """What is asked here. Answers are plain JSON objects; raises HubErrors.

    Texts are given by the names of their files, `NAME.cedar` for policies and `NAME.toml` for the
    decisions that they must give. A set that cannot be used is answered with `ok` false and with
    `findings`: objects with `file`, `line`, `policy`, `level` and `message`.
    """

    async def overview(self) -> dict[str, Any]: ...

    async def one(self, name: str) -> dict[str, Any]: ...

    async def write(
        self, name: str, text: str, by: Principal, *, force: bool
    ) -> dict[str, Any]: ...

    async def enable(
        self, name: str, enabled: bool, by: Principal, *, force: bool
    ) -> dict[str, Any]: ...

    async def remove(self, name: str, by: Principal, *, force: bool) -> dict[str, Any]: ...

    async def validate(self, texts: Mapping[str, str] | None) -> dict[str, Any]:
        """Of the folder as it is where no texts are given."""

    async def test(self, texts: Mapping[str, str] | None) -> dict[str, Any]: ...

    def explain(
        self,
        principal: str,
        tool: str,
        action: str | None,
        context: Mapping[str, Any],
        roles: tuple[str, ...] | None,
    ) -> dict[str, Any]:
        """`roles` other than None: as if whoever it is had these, and even where there is nobody of
        that name."""

    def who_can(self, tool: str) -> dict[str, Any]: ...

    async def what_can(self, principal: str) -> dict[str, Any]: ...

    async def replay(
        self, texts: Mapping[str, str], since: float, until: float, limit: int
    ) -> dict[str, Any]: ...

    async def propose(self, since: float, until: float, limit: int) -> dict[str, Any]: ...


OPERATIONS: list[tuple[Any, ...]] = [
    ("/api/policies", "get", "The files of policies, and what is in force", "Object", [403]),
    (
        "/api/policies",
        "post",
        "Create or replace a file of policies: name, text, force",
        "Object",
        [400, 403],
        "Object",
    ),
    (
        "/api/policies/validate",
        "post",
        "Whether texts (or the folder) could be put in force",
        "Object",
        [400, 403],
        "Object",
    ),
    (
        "/api/policies/test",
        "post",
        "Run the golden decisions of texts (or of the folder)",
        "Object",
        [400, 403],
        "Object",
    ),
    (
        "/api/policies/explain",
        "post",
        "Who may call what, and why: principal, tool, action, context, roles",
        "Object",
        [400, 403, 404, 409],
        "Object",
    ),
    (
        "/api/policies/replay",
        "post",
        "Which recorded decisions a draft would turn: texts, since, until, limit",
        "Object",
        [400, 403],
        "Object",
    ),
    (
        "/api/policies/propose",
        "post",
        "The least policies that would have permitted recorded calls: since, until, limit",
        "Object",
        [400, 403],
        "Object",
    ),
    (
        "/api/policies/who-can",
        "get",
        "Everybody there is, and whether they may call ?tool=",
        "Object",
        [400, 403, 404, 409],
    ),
    (
        "/api/policies/what-can",
        "get",
        "Every tool there is, and whether ?principal= may call it",
        "Object",
        [400, 403, 404],
    ),
    ("/api/policies/{name}", "get", "One file of policies", "Object", [403, 404]),
    (
        "/api/policies/{name}",
        "patch",
        "Switch a file of policies on or off: enabled, force",
        "Object",
        [400, 403, 404],
        "Object",
    ),
    ("/api/policies/{name}", "delete", "Delete a file of policies", "Object", [400, 403, 404]),
]

TAKEN = frozenset({"validate", "test", "explain", "replay", "propose", "who-can", "what-can"})
"""What no file can be called, since these are asked for there."""


class PoliciesApi:
    def __init__(self, hub: Hub, source: PolicyAdministration) -> None:
        self._hub = hub
        self._source = source
        self.routes: list[Route] = [
            ("GET", r"/api/policies", self._overview),
            ("POST", r"/api/policies", self._write),
            ("POST", r"/api/policies/validate", self._validate),
            ("POST", r"/api/policies/test", self._test),
            ("POST", r"/api/policies/explain", self._explain),
            ("POST", r"/api/policies/replay", self._replay),
            ("POST", r"/api/policies/propose", self._propose),
            ("GET", r"/api/policies/who-can", self._who_can),
            ("GET", r"/api/policies/what-can", self._what_can),
            ("GET", r"/api/policies/([^/]+)", self._one),
            ("PATCH", r"/api/policies/([^/]+)", self._enable),
            ("DELETE", r"/api/policies/([^/]+)", self._remove),
        ]

    # --- the files -------------------------------------------------------------------------------

    async def _overview(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        return build_response(await self._source.overview())

    async def _one(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        return build_response(await self._source.one(request.names[0]))

    async def _write(self, request: ApiRequest) -> ApiResponse:
        by = self._admin(request)
        given = _only(parse_object(request), "name", "text", "force")
        name, text = _word(given, "name"), given.get("text")
        if name.removesuffix(".cedar") in TAKEN:
            raise InvalidInput(f'a file of policies cannot be called "{name}"; choose another name')
        if not isinstance(text, str):
            raise InvalidInput('"text" must be the policies, as text')
        if len(text) > MAX_TEXT:
            raise InvalidInput(f'"text" may have {MAX_TEXT} characters and has {len(text)}')
        done = await self._source.write(name, text, by, force=_flag(given, "force"))
        response = _used(done, f'"{name}" was not written')
        if response.status == 200:
            response.headers.append((b"location", f"/api/policies/{quote(done['name'])}".encode()))
        return response

    async def _enable(self, request: ApiRequest) -> ApiResponse:
        by = self._admin(request)
        given = _only(parse_object(request), "enabled", "force")
        if not isinstance(given.get("enabled"), bool):
            raise InvalidInput('the body must be {"enabled": true} or {"enabled": false}')
        name, enabled = request.names[0], given["enabled"]
        done = await self._source.enable(name, enabled, by, force=_flag(given, "force"))
        return _used(done, f'"{name}" was not switched {"on" if enabled else "off"}')

    async def _remove(self, request: ApiRequest) -> ApiResponse:
        by = self._admin(request)
        force = request.query.get("force", "") in ("1", "true")
        done = await self._source.remove(request.names[0], by, force=force)
        return _used(done, f'"{request.names[0]}" was not deleted')

    # --- questions -------------------------------------------------------------------------------

    async def _validate(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        return build_response(await self._source.validate(_texts(parse_object(request))))

    async def _test(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        return build_response(await self._source.test(_texts(parse_object(request))))

    async def _explain(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        given = _only(parse_object(request), "principal", "tool", "action", "context", "roles")
        action, context, roles = given.get("action"), given.get("context", {}), given.get("roles")
        if not isinstance(action, str | None):
            raise InvalidInput('"action" must be the name of an action')
        if not isinstance(context, dict):
            raise InvalidInput('"context" must be an object')
        if roles is not None and not (
            isinstance(roles, list) and all(isinstance(role, str) for role in roles)
        ):
            raise InvalidInput('"roles" must be a list of names')
        return build_response(
            self._source.explain(
                _word(given, "principal"),
                _word(given, "tool"),
                action,
                context,
                tuple(roles) if roles is not None else None,
            )
        )

    async def _who_can(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        return build_response(self._source.who_can(_word(request.query, "tool")))

    async def _what_can(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        return build_response(await self._source.what_can(_word(request.query, "principal")))

    async def _replay(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        given = parse_object(request)
        texts = _texts({key: value for key, value in given.items() if key == "texts"})
        _only(given, "texts", "since", "until", "limit")
        if texts is None:
            raise InvalidInput('"texts" must be the draft: an object of file names and texts')
        done = await self._source.replay(texts, *_period(given))
        return _used(done, "the draft cannot be replayed")

    async def _propose(self, request: ApiRequest) -> ApiResponse:
        self._admin(request)
        given = _only(parse_object(request), "since", "until", "limit")
        return build_response(await self._source.propose(*_period(given)))

    def _admin(self, request: ApiRequest) -> Principal:
        require_admin(self._hub, request.principal)
        assert request.principal is not None
        return request.principal


def _used(done: dict[str, Any], otherwise: str) -> ApiResponse:
    """What was done; or, where the set could not be used, everything that is wrong with it."""
    if done.get("ok", True):
        return build_response(done)
    findings = done.get("findings", [])
    said = "; ".join(finding_line(each) for each in findings if each["level"] == "error")
    return build_error(
        400, f"{otherwise}: {said or done.get('problem')}", kind="ConfigError", findings=findings
    )


def finding_line(finding: Mapping[str, Any]) -> str:
    where = f"{finding['file']}:{finding['line']}" if finding.get("line") else finding["file"]
    return f"{where}: {finding['message']}" if where else str(finding["message"])


def _only(given: Mapping[str, Any], *known: str) -> Mapping[str, Any]:
    if more := sorted(given.keys() - set(known)):
        raise InvalidInput(f'"{more[0][:100]}" means nothing here; there are {", ".join(known)}')
    return given


def _word(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value or len(value) > 500:
        raise InvalidInput(f'"{name}" is missing: it must be a text of 1 to 500 characters')
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f'"{name}" must be true or false')
    return value


def _texts(given: Mapping[str, Any]) -> dict[str, str] | None:
    """`{"text": …}`, `{"texts": {FILE: …}}`, or nothing for the folder as it is."""
    _only(given, "text", "texts")
    if "text" in given and "texts" in given:
        raise InvalidInput('send "text" or "texts", not both')
    texts = {"text.cedar": given["text"]} if "text" in given else given.get("texts")
    if texts is None:
        return None
    if not isinstance(texts, dict) or len(texts) > MAX_TEXTS:
        raise InvalidInput(f'"texts" must be an object of at most {MAX_TEXTS} files')
    for name, text in texts.items():
        if not name.endswith((".cedar", ".toml")) or "/" in name or len(name) > 100:
            raise InvalidInput(f'"{name[:100]}" is no file of policies: use NAME.cedar, NAME.toml')
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise InvalidInput(f'"{name}" must be a text of at most {MAX_TEXT} characters')
    return texts


def _period(given: Mapping[str, Any]) -> tuple[float, float, int]:
    """From when to when, and how many calls at most."""
    limit = given.get("limit", REPLAYED)
    if type(limit) is not int or not 1 <= limit <= MAX_REPLAYED:
        raise InvalidInput(f'"limit" must be a number from 1 to {MAX_REPLAYED}')
    return _moment(given, "since", None), _moment(given, "until", time.time()), limit


def _moment(given: Mapping[str, Any], name: str, otherwise: float | None) -> float:
    """Seconds since 1970, as everywhere in the record."""
    value = given.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise InvalidInput(f'"{name}" must be a time, in seconds since 1970')
    return float(value)
