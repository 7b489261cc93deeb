"""Parses the challenges of `WWW-Authenticate` (RFC 9110, section 11.6.1). Pure."""

from __future__ import annotations

import re

from msgspec import Struct

MAX_LENGTH = 8192
MAX_SCOPES = 100
_ITEM = re.compile(
    r"[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)"
    r'(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?'
)
_ESCAPED = re.compile(r"\\(.)")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")


class BearerChallenge(Struct, frozen=True):
    """What a resource server asks for (RFC 6750, section 3; RFC 9728, section 5.1)."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def lacks_scope(self) -> bool:
        return self.error == "insufficient_scope"


NO_CHALLENGE = BearerChallenge()


def parse_challenge(header: str) -> BearerChallenge:
    """Finds the parameters of the first Bearer challenge; of a repeated one the first counts."""
    found: dict[str, str] = {}
    scheme, at = "", 0
    text = header[:MAX_LENGTH]
    while match := _ITEM.match(text, at):
        at = match.end()
        name, quoted, plain = match.groups()
        if quoted is None and plain is None:
            if scheme == "bearer":
                break
            scheme = name.lower()
        elif scheme == "bearer":
            value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else plain
            found.setdefault(name.lower(), value)
    return BearerChallenge(
        found.get("resource_metadata", ""), parse_scopes(found.get("scope")), found.get("error", "")
    )


def parse_scopes(text: object) -> tuple[str, ...]:
    """Splits a list of scopes; what is not a scope is left out."""
    words = text.split() if isinstance(text, str) else text if isinstance(text, list) else []
    scopes = [word for word in words if isinstance(word, str) and _SCOPE.fullmatch(word)]
    return tuple(dict.fromkeys(scopes))[:MAX_SCOPES]


def join_scopes(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the union, in the order of first mention."""
    return tuple(dict.fromkeys(scope for group in groups for scope in group))
