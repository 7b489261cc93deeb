"""Tokens of the hub's own users beside those of an identity provider."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.live.module_hub import run_module_hub
from tests.peers.browser import HTTP
from tests.peers.identity_provider import run_identity_provider

from dragoman.app.store_place import open_offline_place
from dragoman.stores.client_grants import ClientGrantStore
from dragoman.stores.users import UsersDatabase, UserStore

pytestmark = pytest.mark.promise("U4")

CONFIG = """
[auth]
required_scopes = ["tools"]
[auth.server]
enabled = true
[auth.introspection]
name = "opaque"
issuer = "ISSUER/opaque"
url = "ISSUER/introspect"
client_id = "hub"
client_secret = "env:HUB_SECRET"
"""


def test_a_token_of_the_hub_is_not_sent_to_a_provider() -> None:
    with run_identity_provider() as provider:
        config = CONFIG.replace("ISSUER", provider.issuer)
        with run_module_hub([], config, {"HUB_SECRET": "s&cret"}) as hub:

            def get(token: str) -> int:
                headers = {"authorization": f"Bearer {token}"}
                return HTTP.get(f"{hub.url}/api/tools", headers=headers).status_code

            assert hub.command("users", "add", "anna").returncode == 0
            with (
                open_offline_place(hub.home) as place,
                closing(UsersDatabase(place)) as base,
            ):
                users = UserStore(base)
                grants = ClientGrantStore(base, users)
                assert users.get("anna").scopes == ("call", "tools")
                tokens = []
                for scopes in (["call", "tools"], ["call"]):
                    code = grants.open_grant("anna", "app", "App", scopes, hub.url, "uri", "pkce")
                    taken = grants.take_code(code)
                    assert taken is not None
                    tokens.append(grants.issue_tokens(taken.grant, 60, 60).access)
            assert [get(token) for token in tokens] == [200, 403]  # the second lacks a scope
            assert get(tokens[0][:-1] + "-") == 401 and get("dgt_nothing") == 401
            assert provider.count("introspect") == 0
            assert get("another-opaque-token") == 401
            assert provider.count("introspect") == 1
            for path in ("/.well-known/oauth-protected-resource/mcp",):
                found = HTTP.get(hub.url + path).json()
                assert set(found["authorization_servers"]) == {hub.url, f"{provider.issuer}/opaque"}
            metadata = HTTP.get(f"{hub.url}/.well-known/oauth-authorization-server").json()
            assert metadata["scopes_supported"] == ["call", "tools"]
