"""Encodes request headers, and selects those that may follow a redirect to another origin."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.core.errors import InvalidInput
from dragoman.wire.http import NO_HEADERS, FixedHeaders

# Set by the client itself: they decide where a message ends and what may come back.
_OURS = frozenset(
    (
        "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip

# What another origin may see. Anything else may be a credential of the first: tokens, cookies,
# whatever the operator configured, or a session's id.
_HARMLESS = frozenset(
    (
        "a2a-extensions", "a2a-version", "accept", "accept-language", "content-type",
        "mcp-method", "mcp-name", "mcp-protocol-version", "user-agent",
    )
)  # fmt: skip

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CONTROL_BYTES = bytes(code for code in range(128) if _CONTROL.match(chr(code)))
_KNOWN = 1024

_templates: dict[tuple[str, ...], str] = {}
"""Lines with a place for each value, by the names of the headers, which have been checked. Every
call has the same names."""


def encode_headers(headers: Mapping[str, str], extra: Mapping[str, str] = NO_HEADERS) -> bytes:
    """Encodes header lines; `extra` overrides. `FixedHeaders` are encoded and checked once."""
    if not isinstance(headers, FixedHeaders) or not headers.keys().isdisjoint(extra):
        return _encode({**headers, **extra} if extra else headers)
    if not headers.encoded:
        headers.encoded = _encode(headers)
    return headers.encoded + _encode(extra) if extra else headers.encoded


def _encode(headers: Mapping[str, str]) -> bytes:
    names = tuple(headers)
    template = _templates.get(names) or _build_template(names)
    try:
        lines = (template % tuple(headers.values())).encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidInput("a header has characters that are not allowed in HTTP") from None
    # The only control characters must be the two that end each line.
    if len(lines) - len(lines.translate(None, _CONTROL_BYTES)) != 2 * len(headers):
        name = next(name for name, value in headers.items() if _CONTROL.search(value))
        raise InvalidInput(f'the value of header "{name}" contains control characters')
    return lines


def _build_template(names: tuple[str, ...]) -> str:
    for name in names:
        if not _TOKEN.fullmatch(name):
            raise InvalidInput(f"invalid header name {name[:80]!r}")
        if name.lower() in _OURS:
            raise InvalidInput(f'header "{name}" is set by the hub itself and cannot be configured')
    template = "".join(f"{name.replace('%', '%%')}: %s\r\n" for name in names)
    if len(_templates) >= _KNOWN:
        _templates.clear()
    _templates[names] = template
    return template


def select_harmless(headers: Mapping[str, str]) -> dict[str, str]:
    """Selects the headers that another origin may see."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() in _HARMLESS or name.lower().startswith("mcp-param-")
    }
