"""Users, browser sessions, clients and tokens in `users.db`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core.access import TOKEN_EXPIRED, TokenRejected
from dragoman.core.errors import InvalidInput, NotFound, RateLimited, StorageFailed
from dragoman.core.principal import Principal
from dragoman.core.users import EndedAccess, GrantRecord, IssuedTokens, render_subject
from dragoman.stores.client_grants import ClientGrantStore, GrantLimits
from dragoman.stores.database import StorePlace, connect_server
from dragoman.stores.store_inventory import StoreInventory, survey_stores
from dragoman.stores.users import MAX_SESSIONS, UsersDatabase, UserStore

pytestmark = pytest.mark.promise("U4")

HOUR = 3600.0


class Stores:
    def __init__(self, home: StorePlace, limits: GrantLimits | None = None) -> None:
        self.base = UsersDatabase(home)
        self.users = UserStore(self.base)
        self.grants = ClientGrantStore(self.base, self.users, limits)

    def open_grant(self, user: str = "anna", client: str = "app") -> GrantRecord:
        code = self.grants.open_grant(user, client, "App", ["call"], "http://hub", "uri", "pkce")
        taken = self.grants.take_code(code)
        assert taken is not None
        return taken.grant

    def issue(self, user: str = "anna", seconds: float = HOUR) -> IssuedTokens:
        return self.grants.issue_tokens(self.open_grant(user), seconds, HOUR)

    def is_valid(self, token: str) -> bool:
        try:
            return self.grants.find(token) is not None
        except TokenRejected:
            return False


@pytest.fixture
def stores(store_place: StorePlace) -> Iterator[Stores]:
    made = Stores(store_place)
    made.users.add("anna", roles=["editor"], scopes=["call", "metrics"], org="sales")
    yield made
    made.base.close()


def test_names_are_folded_and_checked(stores: Stores) -> None:
    found = stores.users.find(" ANNA ")
    assert found is not None and found.roles == ("editor",) and found.org == "sales"
    for bad in ("", "-a", "a b", "a/b", "a" * 65, "ä", "a\nb"):
        with pytest.raises(InvalidInput):
            stores.users.add(bad or " ")
    with pytest.raises(InvalidInput, match="already exists"):
        stores.users.add("Anna")
    with pytest.raises(NotFound, match='did you mean "anna"'):
        stores.users.get("ana")
    for bad_role in ("a b", "", "é"):
        with pytest.raises(InvalidInput, match="role"):
            stores.users.add("bob", roles=[bad_role])


def test_the_name_of_a_removed_user_is_not_given_away(stores: Stores) -> None:
    stores.users.remove("anna")
    assert stores.users.find("anna") is None and stores.users.list() == ()
    with pytest.raises(InvalidInput, match="--restore"):
        stores.users.add("anna")
    assert stores.users.add("anna", restore=True).roles == ()
    with pytest.raises(InvalidInput, match="already exists"):
        stores.users.add("anna", restore=True)  # she is there


def test_secrets_are_stored_as_hashes(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    stores.users.add("anna")
    tokens = stores.issue()
    session = stores.users.open_session("anna", HOUR)
    code = stores.users.open_enrolment("anna", HOUR)
    client = stores.grants.register_client({}, "a-client-secret-that-is-random")
    grant_code = stores.grants.open_grant("anna", client.id, "", [], "", "", "")
    stores.base.close()
    data = b"".join(file.read_bytes() for file in tmp_path.glob("users.db*"))
    assert b"anna" in data
    for secret in (tokens.access, tokens.refresh, session, code, grant_code, "a-client-secret"):
        assert secret.encode() not in data
    for token in (tokens.access, tokens.refresh):
        assert token.split("_", 2)[2].encode() not in data
    assert (tmp_path / "users.db").stat().st_mode & 0o777 == 0o600
    assert tokens.access not in repr(tokens)


def test_a_token_is_its_users_with_the_scopes_of_both(stores: Stores) -> None:
    tokens = stores.issue()
    found = stores.grants.find(tokens.access)
    assert found == Principal("user", "anna", "sales")
    assert found is not None and found.roles == ("editor",) and found.scopes == ("call",)
    assert found.credential.startswith(tokens.grant.id) and found.behalf == "anna"
    assert stores.grants.explain_invalid(found) == ""
    assert stores.grants.find("dgm_a_key") is None  # of another origin
    assert stores.grants.explain_invalid(Principal("user", "issuer/anna")) is None
    last = "A" if tokens.access[-1] != "A" else "B"
    for wrong in (
        tokens.refresh,
        tokens.access[:-1] + last,
        tokens.access + "x",
        "dgt_",
        "dgt_x_y",
    ):
        assert not stores.is_valid(wrong), wrong
    assert stores.is_valid(tokens.access)


def test_expiry_and_revocation_have_different_reasons(stores: Stores) -> None:
    now = time.time()
    kept = stores.issue(seconds=100)
    assert now + 90 < stores.grants.find_next_expiry(now) < now + 110
    assert stores.grants.find_next_expiry(now + 200) == float("inf")
    found = stores.grants.find(kept.access)
    assert found is not None
    with stores.base.transact() as db:
        db.execute("UPDATE tokens SET expires_at = 0 WHERE kind = 'access'")
    assert stores.grants.explain_invalid(found) == TOKEN_EXPIRED
    stores.base.note_revoked()  # what was found is found again
    with pytest.raises(TokenRejected, match=TOKEN_EXPIRED):
        stores.grants.find(kept.access)
    stores.grants.revoke(kept.grant.id)
    assert "revoked" in (stores.grants.explain_invalid(found) or "")
    stores.users.remove("anna")
    assert "removed" in (stores.grants.explain_invalid(found) or "")
    assert "removed" in (stores.grants.explain_invalid(Principal("user", "anna", "sales")) or "")


def test_changes_by_another_process_are_noticed(stores: Stores, store_place: StorePlace) -> None:
    tokens = [stores.issue() for _ in range(3)]
    assert all(stores.is_valid(one.access) for one in tokens)
    place = store_place
    other_place = place if isinstance(place, Path) else connect_server(place.url)
    other = Stores(other_place)
    version = stores.grants.version
    other.grants.revoke(tokens[0].grant.id)
    stores.grants.refresh()
    assert stores.grants.version != version
    assert [stores.is_valid(one.access) for one in tokens] == [False, True, True]
    other.users.set_password("anna", "hash")
    stores.grants.refresh()
    assert not any(stores.is_valid(one.access) for one in tokens)
    other.base.close()
    if not isinstance(place, Path):
        return
    (place / "users.db").rename(place / "moved.db")
    with pytest.raises(StorageFailed, match="removed while the hub runs"):
        stores.grants.refresh()


def open_everything(stores: Stores) -> tuple[str, str, IssuedTokens]:
    """Gives anna a session, a known browser, a passkey and an app."""
    stores.users.add_passkey("anna", b"passkey", b"public", 0)
    session, browser = (
        stores.users.open_session("anna", HOUR),
        stores.users.remember_browser("anna"),
    )
    return session, browser, stores.issue()


@pytest.mark.parametrize("how", ["set", "link made", "link used"])
def test_a_new_password_ends_every_other_way_in(stores: Stores, how: str) -> None:
    users = stores.users
    users.set_password("anna", "old")
    session, browser, tokens = open_everything(stores)
    code = users.open_enrolment("anna", HOUR)
    if how == "set":
        assert users.set_password("anna", "new") == EndedAccess(1, 1, 1, 1)
    elif how == "link made":
        assert users.end_access("anna") == EndedAccess(1, 1, 1, 1)
        assert users.get("anna").password == "", "the old password still works"
    else:
        assert users.finish_enrolment(code, "new") is not None
    assert users.find_session(session) is None
    assert not users.is_known_browser(browser, "anna")
    assert users.find_passkey(b"passkey") is None
    assert not stores.is_valid(tokens.access)


def test_a_new_password_can_keep_the_other_ways_in(stores: Stores) -> None:
    session, browser, tokens = open_everything(stores)
    assert stores.users.set_password("anna", "new", keep=True) == EndedAccess()
    assert stores.users.find_session(session) is not None
    assert stores.users.is_known_browser(browser, "anna")
    assert stores.users.find_passkey(b"passkey") is not None
    assert stores.is_valid(tokens.access)


def test_refresh_tokens_rotate_and_a_reused_one_ends_the_grant(store_place: StorePlace) -> None:
    stores = Stores(store_place, GrantLimits(leeway_seconds=0.0))
    stores.users.add("anna")
    first = stores.issue()
    assert stores.grants.rotate(first.refresh, "another", HOUR, HOUR) is None
    assert stores.grants.rotate(first.access, "app", HOUR, HOUR) is None
    second = stores.grants.rotate(first.refresh, "app", HOUR, HOUR)
    assert second is not None and stores.is_valid(first.access) and stores.is_valid(second.access)
    assert stores.grants.rotate(first.refresh, "app", HOUR, HOUR) is None
    assert not stores.is_valid(second.access) and not stores.is_valid(first.access)
    assert stores.grants.rotate(second.refresh, "app", HOUR, HOUR) is None
    assert stores.grants.list("anna") == []
    stores.base.close()


def test_a_lost_response_can_be_repeated_for_a_moment(stores: Stores) -> None:
    first = stores.issue()
    twice = [stores.grants.rotate(first.refresh, "app", HOUR, HOUR) for _ in range(2)]
    assert twice[0] is not None and stores.is_valid(twice[0].access)
    # The same tokens, so that there is one line of them, of which a second use is noticed.
    assert twice[1] is not None and twice[1].refresh == twice[0].refresh
    assert twice[1].access == twice[0].access
    assert twice[0].refresh != first.refresh and twice[0].access != first.access
    third = stores.grants.rotate(twice[0].refresh, "app", HOUR, HOUR)
    assert third is not None and third.refresh not in (first.refresh, twice[0].refresh)


def test_a_stolen_refresh_token_that_is_used_in_the_leeway_is_noticed(
    store_place: StorePlace,
) -> None:
    limits = GrantLimits(leeway_seconds=HOUR)
    stores = Stores(store_place, limits)
    stores.users.add("anna")
    first = stores.issue()
    own = stores.grants.rotate(first.refresh, "app", HOUR, HOUR)
    stolen = stores.grants.rotate(first.refresh, "app", HOUR, HOUR)
    assert own is not None and stolen is not None
    assert stores.grants.rotate(own.refresh, "app", HOUR, HOUR) is not None
    with stores.base.transact() as db:  # the leeway is over
        db.execute("UPDATE tokens SET used_at = used_at - ? WHERE used_at IS NOT NULL", (2 * HOUR,))
    assert stores.grants.rotate(stolen.refresh, "app", HOUR, HOUR) is None
    assert stores.grants.list("anna") == [], "both holders go on with tokens of their own"
    stores.base.close()


def test_what_a_repeated_exchange_needs_is_forgotten_after_the_leeway(stores: Stores) -> None:
    first = stores.issue()
    second = stores.grants.rotate(first.refresh, "app", HOUR, HOUR)
    assert second is not None
    count = "SELECT count(*) FROM tokens WHERE successor IS NOT NULL"
    assert stores.base.read(count)[0][0] == 1
    with stores.base.transact() as db:
        db.execute("UPDATE tokens SET used_at = used_at - ? WHERE used_at IS NOT NULL", (HOUR,))
    assert stores.grants.rotate(second.refresh, "app", HOUR, HOUR) is not None
    assert stores.base.read(count)[0][0] == 1


def test_a_code_works_once_and_not_late(store_place: StorePlace) -> None:
    stores = Stores(store_place, GrantLimits(code_seconds=0.0))
    stores.users.add("anna")
    code = stores.grants.open_grant("anna", "app", "App", [], "", "uri", "pkce")
    assert stores.grants.take_code(code) is None  # expired
    assert stores.grants.take_code("unknown") is None
    stores.base.close()


def test_a_flood_of_registrations_is_bounded(store_place: StorePlace) -> None:
    stores = Stores(store_place)
    stores.users.add("anna")
    used = stores.grants.register_client({"client_name": "used"}, "")
    stores.grants.open_grant("anna", used.id, "used", [], "", "uri", "pkce")
    refused, flood = 0, 10_000 if isinstance(store_place, Path) else 600
    for _ in range(flood):
        try:
            stores.grants.register_client({"client_name": "flood"}, "")
        except RateLimited:
            refused += 1
    assert refused == flood - 500
    count = stores.base.read("SELECT count(*) FROM clients")[0][0]
    assert count == 501 and stores.grants.find_client(used.id) is not None
    with stores.base.transact() as db:  # an hour later
        db.execute("UPDATE clients SET created_at = created_at - 3601")
    fresh = stores.grants.register_client({}, "")
    assert stores.base.read("SELECT count(*) FROM clients")[0][0] == 2
    assert stores.grants.find_client(fresh.id) and stores.grants.find_client(used.id)
    stores.base.close()


def test_sessions_grants_and_tokens_of_a_user_are_bounded(store_place: StorePlace) -> None:
    stores = Stores(store_place, GrantLimits(grants=3, access_tokens=2, used_tokens=4))
    stores.users.add("anna")
    ids = [stores.users.open_session("anna", HOUR) for _ in range(MAX_SESSIONS + 5)]
    assert [stores.users.find_session(id) is None for id in ids[:6]] == [True] * 5 + [False]
    grants = [stores.issue() for _ in range(5)]
    assert [stores.is_valid(one.access) for one in grants] == [False, False, True, True, True]
    tokens = grants[-1]
    for _ in range(10):
        rotated = stores.grants.rotate(tokens.refresh, "app", HOUR, HOUR)
        assert rotated is not None
        tokens = rotated
    kinds = stores.base.read(
        "SELECT kind, count(*) FROM tokens WHERE grant_id = ? GROUP BY kind", (tokens.grant.id,)
    )
    assert dict(kinds) == {"access": 2, "refresh": 5}
    stores.base.close()


def test_an_expired_session_and_a_closed_one_are_not_found(stores: Stores) -> None:
    assert stores.users.find_session(stores.users.open_session("anna", 0.0)) is None
    id = stores.users.open_session("anna", HOUR)
    assert stores.users.find_session(id) is not None and stores.users.find_session(id + "x") is None
    stores.users.close_session(id)
    assert stores.users.find_session(id) is None


def test_only_a_user_without_another_way_in_is_bound_to_an_identity(stores: Stores) -> None:
    subject = render_subject("https://login.example", "42")
    stores.users.add("with-password", password="hash")
    stores.users.add("with-link")
    stores.users.open_enrolment("with-link", HOUR)
    for name in ("with-password", "with-link", "unknown"):
        with pytest.raises(InvalidInput):
            stores.users.bind_subject(name, subject)
    stores.users.bind_subject("anna", subject)
    with pytest.raises(InvalidInput):
        stores.users.bind_subject("anna", render_subject("https://login.example", "43"))
    found = stores.users.find_by_subject(subject)
    assert found is not None and found.name == "anna"


def test_changes_wait_until_they_are_recorded(stores: Stores) -> None:
    stores.issue()
    recorded: list[tuple[str, str]] = []

    def record(verb: str, name: str, details: object) -> None:
        if verb == "token.grant" and len(recorded) == 1:
            recorded.append(("failed", name))
            raise StorageFailed("it cannot be recorded")
        recorded.append((verb, name))

    assert stores.users.record_next(record)
    with pytest.raises(StorageFailed):
        stores.users.record_next(record)
    assert stores.users.record_next(record) and not stores.users.record_next(record)
    assert recorded == [("user.add", "anna"), ("failed", "anna"), ("token.grant", "anna")]


async def test_a_lost_database_is_noticed(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    for store in ("hub", "pins", "audit", "registry"):
        (tmp_path / f"{store}.db").touch()
    base = UsersDatabase(tmp_path)
    base.close()
    for store in ("hub", "pins", "audit", "registry"):
        (tmp_path / f"{store}.db").unlink()
    witness = StoreInventory(tmp_path, policies)
    witness.register_stores()
    assert [loss.name for loss in survey_stores(tmp_path, policies).losses] == []
    (tmp_path / "users.db").unlink()
    losses = survey_stores(tmp_path, policies).losses
    assert "users" in [loss.name for loss in losses]
