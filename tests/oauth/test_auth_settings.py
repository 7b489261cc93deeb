"""`[auth]`: what the configuration accepts, and which principals claims become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.app.policy_admin.known_ids import KnownIds, find_user
from dragoman.app.policy_admin.queries import find_principal
from dragoman.cli.doctor.checks import check_keys
from dragoman.cli.doctor.findings import DoctorContext
from dragoman.config import find_frozen_changes, parse
from dragoman.core.access import TokenRejected
from dragoman.core.errors import ConfigError, NotFound
from dragoman.core.principal import Principal
from dragoman.oauth.server.claims import MAX_ID, build_principal, find_claim, find_words
from dragoman.oauth.server.config import JwtIssuer

pytestmark = pytest.mark.promise("O1", "U4")

ISSUER = "https://login.example.com/realms/main"


def issuers(*tables: str) -> str:
    head = f'[[auth.jwt.issuers]]\nissuer = "{ISSUER}'
    return "".join(f'{head}{number or ""}"\n{table}\n' for number, table in enumerate(tables))


WRONG = {
    "plain http": ('[[auth.jwt.issuers]]\nissuer = "http://login.example.com"', "https://"),
    "no URL": ('[[auth.jwt.issuers]]\nissuer = "login"', "https://"),
    "password in the URL": ('[[auth.jwt.issuers]]\nissuer = "https://a:b@c.example"', "without"),
    "keys over http": (issuers('jwks_url = "http://login.example.com/keys"'), "jwks_url"),
    "shared secret": (issuers('algorithms = ["HS256"]'), "RS256"),
    "no signature": (issuers('algorithms = ["none"]'), "RS256"),
    "no algorithm": (issuers("algorithms = []"), "must not be empty"),
    "same host": (issuers("", ""), "give each a `name`"),
    "same name": (issuers('name = "a"', 'name = "a"'), "give each a `name`"),
    "slash in a name": (issuers('name = "a/b"'), "name"),
    "any org": (issuers('org_claim = "tid"'), "org_claim needs orgs"),
    "orgs without a claim": (issuers('orgs = ["a"]'), "org_claim needs orgs"),
    "slash in an org": (issuers('org_claim = "tid"\norgs = { x = "a/b" }'), "slash"),
    "owners without roles": (issuers('owner_roles = ["x"]'), "roles_claim"),
    "role with a space": (issuers('roles = ["a b"]'), "roles"),
    "long leeway": (issuers("leeway_secs = 3600"), "leeway_secs"),
    "unknown key": (issuers('audience = "x"'), 'did you mean "audiences"'),
    "scope with a quote": ("[auth]\nrequired_scopes = ['a\"b']", "required_scopes"),
    "secret in clear": (
        f'[auth.introspection]\nissuer = "{ISSUER}"\nurl = "{ISSUER}"\nclient_id = "a"\n'
        'client_secret = "secret"',
        "client_secret",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_refused_with_a_reason(case: str) -> None:
    text, why = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert why in str(caught.value), caught.value


def test_settings_apply_without_a_restart() -> None:
    loopback = '[[auth.jwt.issuers]]\nissuer = "http://127.0.0.1:8080/realms/dev"\n'
    private = '[[auth.jwt.issuers]]\nissuer = "http://sso.lan"\nallow_private = true\n'
    one, two = parse(loopback), parse(private + "[auth]\nrequired_scopes = ['a']\n")
    assert find_frozen_changes(one, two) == []


def rules(**settings: Any) -> JwtIssuer:
    return JwtIssuer(issuer=ISSUER, **settings)


def build(claims: dict[str, Any], **settings: Any) -> Principal:
    return build_principal(rules(**settings), "corp", {"sub": "ann", **claims}, "c", [])


def test_claims_are_found_by_name_and_by_path() -> None:
    claims = {"a": {"b": ["x", 7, "y"]}, "https://hub.example.com/roles": "one two", "a.c": "z"}
    assert find_words(claims, "a.b") == ["x", "y"]
    assert find_words(claims, "https://hub.example.com/roles") == ["one", "two"]
    assert find_words(claims, "a.c") == ["z"]
    for missing in ("a.b.c", "b", "a.d", ""):
        assert find_claim(claims, missing) is None


ROLES: list[tuple[Any, tuple[str, ...]]] = [
    (["dev", "ops"], ("base", "dev", "ops")),
    ("dev ops dev", ("base", "dev", "ops")),
    (["owner"], ("base",)),
    ("owner", ("base",)),
    (["Owner", "a b", "x\ny", "", 7, None, "-x", "y" * 65], ("base", "Owner")),
    (["hub-admin"], ("base", "hub-admin", "owner")),
    ({"owner": True}, ("base",)),
    (None, ("base",)),
]


@pytest.mark.parametrize(("given", "roles"), ROLES)
def test_role_of_the_owner_comes_from_the_configured_roles_alone(
    given: Any, roles: tuple[str, ...]
) -> None:
    found = build({"r": given}, roles=["base"], roles_claim="r", owner_roles=["hub-admin"])
    assert found.roles == roles


def test_scopes_come_from_scope_or_scp() -> None:
    assert build({"scope": "a call"}).scopes == ("a", "call")
    assert build({"scp": ["list"]}).scopes == ("list",)
    assert build({"scope": "a", "x": "metrics"}, scopes_claim="x").scopes == ("metrics",)
    assert len(build({"scope": "call " * 10_000}).scopes) == 100


def test_token_that_names_no_scope_of_the_hub_has_the_default_ones() -> None:
    """Most providers do not know them; a token that names one is limited to what it names."""
    assert build({"scope": "openid a"}).scopes == ("openid", "a", "call")
    assert build({}).rights == {"call", "list"}
    assert build({"scope": "metrics"}).rights == {"metrics"}
    assert build({"scope": "a"}, default_scopes=[]).rights == frozenset()
    assert build({}, default_scopes=["list", "pins"]).rights == {"list", "pins"}
    owners = {"roles_claim": "r", "owner_roles": ["boss"]}
    assert {"admin", "approve", "call"} <= build({"r": ["boss"]}, **owners).rights
    assert build({"r": ["boss"], "scope": "call"}, **owners).rights == {"call", "list"}


def test_org_must_be_one_of_the_accepted() -> None:
    orgs = {"tid-1": "acme"}
    acme = build({"tid": "tid-1"}, org_claim="tid", orgs=orgs)
    assert (acme.org, acme.id) == ("acme", "corp/acme/ann")
    for other in ("tid-2", "acme", "default", "", None, ["tid-1"], 7):
        with pytest.raises(TokenRejected, match="org"):
            build({"tid": other}, org_claim="tid", orgs=orgs)
    assert build({"tid": "x"}).org == "default"
    assert build({}, org="acme").org == "acme"


def test_required_claims_are_compared_with_their_type() -> None:
    needed: dict[str, Any] = {"hd": "example.com", "ok": True, "azp": ["a", "b"]}
    good = {"hd": "example.com", "ok": True, "azp": "b"}
    assert build(good, required_claims=needed)
    assert build({**good, "azp": ["x", "a"]}, required_claims=needed)
    for bad in ({"hd": "evil.com"}, {"ok": 1}, {"ok": "true"}, {"azp": "c"}, {"azp": None}):
        with pytest.raises(TokenRejected, match="required"):
            build({**good, **bad}, required_claims=needed)


@pytest.mark.parametrize("subject", ["u\u202ennA", "an\u200bn", "\u00adann", "a\u2028b", "a\x85b"])
def test_a_subject_with_invisible_characters_is_rejected(subject: str) -> None:
    with pytest.raises(TokenRejected, match="subject"):
        build({"sub": subject})
    assert build({"sub": "Zoë Müller 日本"}).id.endswith("日本")


@pytest.mark.parametrize("owner", ["lea\u202emoc.elpmaxe@ssob", "le\u200ba", "le\u2066a", "a\x85b"])
def test_an_owner_with_invisible_characters_is_not_taken(owner: str) -> None:
    assert build({"email": owner}, owner_claim="email").behalf == "ann"
    assert build({"email": "zoë@example.com"}, owner_claim="email").behalf == "zoë@example.com"


def test_long_subjects_stay_apart() -> None:
    one, two = (build({"sub": "x" * 250 + end}) for end in "ab")
    assert one.id != two.id and len(one.id) == len(two.id) == MAX_ID


# --- users in policies ----------------------------------------------------------------------------


def test_policies_can_name_users_of_configured_issuers() -> None:
    config = parse(issuers('name = "corp"', 'name = "multi"\norg_claim = "org"\norgs = ["acme"]'))
    is_known = KnownIds(config, []).is_known
    assert is_known("User", "user:corp/ann") and is_known("User", "user:multi/acme/ann")
    for other in ("user:other/ann", "user:corp", "user:multi/evil/ann", "key:corp/ann"):
        assert not is_known("User", other)
    acme = find_user(config, "user:multi/acme/a:b")
    assert acme == Principal("user", "multi/acme/a:b", "acme")


def test_questions_about_policies_find_users() -> None:
    config = parse(issuers('name = "corp"'))

    def ask(name: str, roles: tuple[str, ...] | None = None) -> Principal:
        return find_principal(name, [], roles, lambda label: find_user(config, label))

    assert ask("user:corp/ann") == Principal("user", "corp/ann")
    assert ask("user:corp/a:b", ("dev",)).roles == ("dev",)
    assert ask("ci", ("dev",)) == Principal("key", "ci") == ask("key:ci", ())
    with pytest.raises(NotFound):
        ask("user:other/ann")


def test_doctor_names_the_issuers(tmp_path: Path) -> None:
    config = parse('[server]\nhost = "0.0.0.0"\n' + issuers('name = "corp"'))
    (finding,) = check_keys(DoctorContext(tmp_path, False, config))
    assert finding.level == "ok" and "corp" in finding.said
