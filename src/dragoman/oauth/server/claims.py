"""Claims of a verified token, and the principal that they describe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from dragoman.core.access import TokenRejected
from dragoman.core.principal import USER, Principal
from dragoman.core.safe_text import escape_line
from dragoman.core.scopes import EVERY_SCOPE, has_hub_scope
from dragoman.core.views import find_view_name
from dragoman.oauth.server.config import ClaimRules

OWNER_ROLE = "owner"
MAX_WORDS = 100
"""Roles, and scopes, of one user."""
MAX_AUDIENCES = 100
MAX_ID = 180
"""Characters of a user's id."""
_TEXT = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_DEFAULT_SCOPES = ("scope", "scp")

IsOwnResource = Callable[[str], bool]
"""Whether a URL is that of an endpoint of this hub."""


def find_claim(claims: Mapping[str, Any], path: str) -> Any:
    """Finds a claim by its name, which may contain dots, or else by the path that the dots make."""
    if path in claims:
        return claims[path]
    here: Any = claims
    for step in path.split("."):
        if not isinstance(here, dict) or step not in here:
            return None
        here = here[step]
    return here


def find_words(claims: Mapping[str, Any], path: str) -> list[str]:
    """Finds a claim that is a list of texts, or words with spaces between them."""
    found = find_claim(claims, path)
    if isinstance(found, str):
        return found.split()
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def select_audiences(rules: ClaimRules, aud: Any, is_own: IsOwnResource) -> list[str]:
    """Selects the audiences of a token that mean this hub. Raises if there are none."""
    named = [aud] if isinstance(aud, str) else aud if isinstance(aud, list) else []
    texts = [one for one in named[:MAX_AUDIENCES] if isinstance(one, str)]
    if rules.audiences:
        own = [one for one in texts if one in rules.audiences]
    else:
        own = [one for one in texts if is_own(one)]
    if not own:
        raise TokenRejected("the token is for another audience")
    return own


def list_orgs(rules: ClaimRules) -> list[str]:
    """Lists the orgs that users of the issuer can have."""
    if rules.org_claim is None:
        return [rules.org]
    return list(rules.orgs.values() if isinstance(rules.orgs, dict) else rules.orgs)


def build_principal(
    rules: ClaimRules, name: str, claims: Mapping[str, Any], credential: str, audiences: list[str]
) -> Principal:
    """Builds the principal of verified claims; `name` is that of the issuer, `audiences` those of
    the token that mean this hub: a token for the address of a view is bound to that view. Raises
    `TokenRejected` if the claims do not meet the rules."""
    subject = claims.get("sub")
    if not _is_readable(subject):
        raise TokenRejected("the token names no subject that can be used")
    for path, wanted in rules.required_claims.items():
        if not _has_value(find_claim(claims, path), wanted):
            raise TokenRejected(f'the token does not have the claim "{path}" that is required')
    org = _find_org(rules, claims)
    # A person may be in several orgs, and is another user in each.
    id = f"{name}/{subject}" if rules.org_claim is None else f"{name}/{org}/{subject}"
    owner = find_claim(claims, rules.owner_claim)
    scopes: list[str] = []
    for path in _DEFAULT_SCOPES if rules.scopes_claim is None else (rules.scopes_claim,):
        scopes = scopes or find_words(claims, path)
    scopes = [scope for scope in scopes[:MAX_WORDS] if _TEXT.fullmatch(scope)]
    roles = _find_roles(rules, claims)
    if not has_hub_scope(scopes):  # most providers know no scopes of the hub
        scopes += EVERY_SCOPE if OWNER_ROLE in roles else rules.default_scopes
    return Principal(
        USER,
        _shorten(id),
        org,
        roles=roles,
        scopes=tuple(scopes),
        behalf=owner if _is_readable(owner) else subject,
        credential=credential,
        view=find_view_name(audiences),
    )


def _is_readable(name: Any) -> TypeGuard[str]:
    """Whether a claim is a name that no reader of the audit log or of an approval can take for
    another."""
    return isinstance(name, str) and bool(_TEXT.fullmatch(name)) and escape_line(name) == name


def _find_org(rules: ClaimRules, claims: Mapping[str, Any]) -> str:
    if rules.org_claim is None:
        return rules.org
    found, orgs = find_claim(claims, rules.org_claim), rules.orgs
    if isinstance(found, str) and found in orgs:
        return orgs[found] if isinstance(orgs, dict) else found
    raise TokenRejected("the token is of an org that this hub does not accept")


def _shorten(id: str) -> str:
    """Shortens an id that tables would cut off; it stays unique."""
    if len(id) <= MAX_ID:
        return id
    return f"{id[: MAX_ID - 33]}~{hashlib.sha256(id.encode()).hexdigest()[:32]}"


def _find_roles(rules: ClaimRules, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """An issuer cannot make a user the owner, unless the configuration says by which role."""
    named = find_words(claims, rules.roles_claim) if rules.roles_claim is not None else []
    roles = [one for one in named[:MAX_WORDS] if _ROLE.fullmatch(one) and one != OWNER_ROLE]
    if any(one in rules.owner_roles for one in named):
        roles.append(OWNER_ROLE)
    return tuple(dict.fromkeys([*rules.roles, *roles]))


def _has_value(found: Any, wanted: str | bool | int | list[str]) -> bool:
    if isinstance(wanted, list):
        return any(_has_value(found, one) for one in wanted)
    if isinstance(found, list):
        return any(_has_value(one, wanted) for one in found if not isinstance(one, list))
    return type(found) is type(wanted) and found == wanted
