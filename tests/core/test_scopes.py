"""What scopes include, and whom they limit."""

from __future__ import annotations

import pytest

from dragoman.core.access import build_missing_scope, require_scope
from dragoman.core.errors import InsufficientScope
from dragoman.core.principal import LOCAL, OWNER, Principal, principal_from_server
from dragoman.core.scopes import (
    ADMIN_RIGHTS,
    EVERY_RIGHT,
    EVERY_SCOPE,
    MEANINGS,
    expand_scopes,
    has_hub_scope,
)


@pytest.mark.parametrize(
    ("scopes", "included"),
    [
        ((), set()),
        (("mine:own", "openid"), set()),
        (("call",), {"call", "list"}),
        (("list",), {"list"}),
        (("metrics",), {"metrics"}),
        (("approve",), {"approve"}),
        (("pins",), {"pins", "list"}),
        (("admin",), {"admin", "metrics", "list", *ADMIN_RIGHTS}),
        (("metrics", "x", "workflows"), {"metrics", "workflows", "list"}),
        (EVERY_SCOPE, set(MEANINGS)),
    ],
)
def test_a_scope_includes_what_it_names(scopes: tuple[str, ...], included: set[str]) -> None:
    assert expand_scopes(scopes) == included
    assert has_hub_scope(scopes) == bool(included)
    for kind in ("key", "user"):
        assert Principal(kind, "x", scopes=scopes).rights == included


def test_principals_that_the_hub_identifies_are_not_limited_by_scopes() -> None:
    for principal in (OWNER, LOCAL, principal_from_server("s"), Principal("agent", "a")):
        assert principal.rights == EVERY_RIGHT


def test_a_missing_scope_is_named_with_what_to_do() -> None:
    key = Principal("key", "ci", scopes=("list",))
    require_scope(key, "list")
    with pytest.raises(InsufficientScope, match="dragoman keys scopes ci --add call") as refused:
        require_scope(key, "call")
    assert refused.value.scope == "call"
    user = Principal("user", "corp/ann", scopes=("call",))
    problem = build_missing_scope(user, "pins", "GET /api/pins")
    assert 'does not have the scope "pins", or "admin"' in str(problem)
