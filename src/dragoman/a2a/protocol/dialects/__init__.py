"""The dialects (protocol versions) of A2A, and which of them a request is in.

Inside the hub everything has the form of 1.0. A dialect names its methods and converts requests,
results, events and errors to 1.0's form and back; code outside this package asks its traits.

    v10         1.0          the hub's own form
    v03         0.2 and 0.3  `kind`, lower case; v03_unmarked for clients that send no `kind`
    v01         0.1          `tasks/send`, `type`, bare tasks; python_a2a beside it
    skill_only  0.3          bare skill calls, to agents registered with that wire
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dragoman.a2a.protocol.dialects import skill_only, v01, v03, v03_unmarked, v10
from dragoman.a2a.protocol.dialects.common_shapes import render_part
from dragoman.a2a.protocol.dialects.operations import SEND, SKILL_ONLY_03, STREAM, V01, V03, V10, Op
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.errors import VERSION_NOT_SUPPORTED, A2aError


class Dialect(Protocol):
    """Implemented by each module."""

    @property
    def VERSION(self) -> str: ...
    @property
    def METHODS(self) -> Mapping[str, Op]: ...
    @property
    def TRAITS(self) -> DialectTraits: ...

    # for the hub as server
    def parse_params(self, op: Op, params: Any) -> dict[str, Any]:
        """The wire's parameters -> 1.0's request. Raises A2aError if they are invalid."""

    def render_result(self, op: Op, value: Any) -> Any:
        """1.0's response -> the wire's result."""

    def render_event(self, event: dict[str, Any], *, final: bool) -> dict[str, Any]:
        """1.0's StreamResponse, and whether it is the last of its stream -> the wire's event."""

    def render_push(self, event: dict[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a webhook delivery."""

    def render_error(self, error: A2aError) -> dict[str, Any]:
        """JSON-RPC's error object."""

    # for the hub as client; the parsers accept any dialect
    def build_request(self, op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
        """1.0's request -> the wire's method and parameters."""

    def parse_result(self, op: Op, value: Any) -> Any: ...
    def parse_event(self, value: Any) -> dict[str, Any]: ...
    def parse_error(self, error: Any) -> A2aError: ...
    def parse_rest_error(self, status: int, body: Any) -> A2aError: ...
    def build_rest_request(
        self, op: Op, request: Mapping[str, Any]
    ) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
        """For HTTP+JSON: the HTTP method, the path below the URL, the query, the body."""


BY_VERSION: Mapping[str, Dialect] = {V01: v01, "0.2": v03, V03: v03, V10: v10}
SPOKEN: Mapping[str, Dialect] = {**BY_VERSION, SKILL_ONLY_03: skill_only}
"""By the hub as a client, including one that no client can ask for."""

NATIVE: Dialect = v10
"""The hub's internal form."""
PROBED: Sequence[str] = (V10, V03, V01)
"""The versions to try with an agent whose card does not tell, the newest first."""
ADVERTISED: Sequence[str] = (V10, V03)
"""The versions in the hub's own cards, the preferred one first."""


def find_traits(version: str) -> DialectTraits:
    """Returns the traits of a version the hub speaks; those of 1.0 while none is settled."""
    return SPOKEN[version].TRAITS if version else NATIVE.TRAITS


SHARED = frozenset(v01.METHODS) & frozenset(v03.METHODS)
"""Methods of both 0.1 and 0.3, whose parameters do not tell which: `choose` says 0.3, and
`choose_shared` decides by the task."""

_MARKS: Mapping[str, str] = {V01: "type", V03: "kind", SKILL_ONLY_03: "kind"}


def render_parts(version: str, parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Renders parts of 1.0's form in the dialect of `version`."""
    mark = _MARKS.get(version)
    return list(parts) if mark is None else [render_part(part, mark) for part in parts]


def choose_shared(created_in: str) -> Dialect:
    """Returns the dialect of a `SHARED` method about a task that was created in `created_in`."""
    return v01 if created_in == V01 else v03


def version_from_card(declared: Any) -> str | None:
    """Returns the version to speak with an agent whose card declares `declared`; None if unknown.
    A later 1.x may still understand 1.0."""
    text = str(declared or V03)
    if text.startswith(("0.2", "0.3")):
        return V03
    if text.startswith("0."):
        return V01
    return V10 if text == "1" or text.startswith("1.") else None


_VERSION = re.compile(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,3})?")


def choose(version: str | None, method: str | None, params: Any, require_version: bool) -> Dialect:
    """Returns the dialect of a request: by its version, else by the name of its method, else by its
    parts. A request without any of them is 1.0, unless `require_version` is set (section 3.6)."""
    if version is not None and version.strip():
        return _find_dialect(version.strip())
    if method is not None:
        if method in v03.METHODS:
            is_message = v03.METHODS[method] in (SEND, STREAM)
            return v03_unmarked if is_message and v03_unmarked.is_unmarked(params) else v03
        if method in v01.METHODS:
            return v01
        if method not in v10.METHODS and "/" in method:
            return v03  # has no such method either, and answers so
    else:
        key = _find_part_key(params)
        if key is not None:
            return v03 if key == "kind" else v01
    if require_version:
        raise A2aError(
            VERSION_NOT_SUPPORTED,
            "the version is missing, and 0.3 has no such method; send the header "
            '"A2A-Version: 1.0"',
        )
    return v10


def _find_dialect(version: str) -> Dialect:
    dialect = BY_VERSION.get(version)  # the usual spelling
    if dialect is None and (match := _VERSION.fullmatch(version)) is not None:
        dialect = BY_VERSION.get(match[1])
    if dialect is None:
        known = tuple(BY_VERSION)[::-1]
        raise A2aError(
            VERSION_NOT_SUPPORTED,
            f'unsupported A2A version "{version[:20]}"; use one of {", ".join(known)}',
            metadata={"supportedVersions": ",".join(known)},
        )
    return dialect


def _find_part_key(params: Any) -> str | None:
    message = params.get("message") if isinstance(params, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    part = parts[0] if isinstance(parts, list) and parts else None
    if not isinstance(part, dict):
        return None
    return next((key for key in ("kind", "type") if key in part), None)
