"""The rules of the authorization server as tables: redirects, client metadata, resources, PKCE."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.oauth.authority.client_documents import is_document_url
from dragoman.oauth.authority.clients import (
    InvalidClient,
    clean_name,
    describe_redirect,
    explain_redirect,
    find_form_source,
    is_same_redirect,
    is_web_redirect,
    parse_metadata,
)
from dragoman.oauth.authority.config import AuthServerSettings
from dragoman.oauth.authority.protocol import (
    OAuthError,
    choose_scopes,
    is_right_verifier,
    parse_authorization_request,
    resolve_resource,
)

pytestmark = pytest.mark.promise("U4")

GOOD = (
    "https://claude.ai/api/mcp/auth_callback",
    "https://app.example:8443/cb?tenant=1",
    "http://localhost:3000/callback",
    "http://127.0.0.1/cb",
    "http://[::1]:5/cb",
    "cursor://anysphere.cursor-retrieval/oauth/user-mcp/callback",
    "vscode://vscode.microsoft-authentication",
    "com.example.app:/oauth",
)
BAD = (
    "",
    "http://app.example/cb",
    "http://localhost.evil.example/cb",
    "http://127.0.0.1@evil.example/cb",
    "http://127.0.0.2/cb",
    "https://app.example/cb#fragment",
    "https://user:secret@app.example/cb",
    "https://app.example\\evil",
    "https://app.example/a b",
    "https://app.example/\n",
    "https://",
    "https:app.example",
    "//app.example/cb",
    "/cb",
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    "data:text/html,x",
    "file:///etc/passwd",
    "blob:https://app.example/x",
    "vbscript:x",
    "ms-msdt:/id",
    "search-ms:query=x",
    "chrome-extension://abc/x",
    "feed:x",
    "myapp:/cb",
    "https://app.example:99999/cb",
    "http://localhost:65536/cb",
    "ftp://app.example/",
    "https://äpp.example/cb",
    "https://app.example/" + "x" * 2_000,
    'x-app:"><script>',
)


def test_which_redirect_uris_a_client_may_register() -> None:
    for uri in GOOD:
        assert explain_redirect(uri, AuthServerSettings()) == "", uri
    for other in (*BAD, None, 1, ["https://app.example/cb"]):
        assert explain_redirect(other, AuthServerSettings()), other


def test_redirect_hosts_restrict_https_only() -> None:
    hosts = AuthServerSettings(redirect_hosts=["claude.ai", "*.example"])
    for uri in ("https://claude.ai/cb", "https://app.example/cb", "http://localhost:1/cb"):
        assert explain_redirect(uri, hosts) == "", uri
    for uri in (
        "https://evil.ai/cb",
        "https://claude.ai.evil.ai/cb",
        "https://notclaude.ai/cb",
        "https://example/cb",
        "https://app.example.evil.ai/cb",
    ):
        assert "redirect_hosts" in explain_redirect(uri, hosts), uri


def test_redirect_schemes_add_those_of_other_programs() -> None:
    assert "redirect_schemes" in explain_redirect("myapp:/cb", AuthServerSettings())
    settings = AuthServerSettings(redirect_schemes=["myapp"])
    assert explain_redirect("myapp:/cb", settings) == ""
    assert explain_redirect("other:/cb", settings)


def test_redirects_are_equal_but_for_the_port_on_loopback() -> None:
    same = [
        ("https://a.example/cb", "https://a.example/cb"),
        ("http://127.0.0.1:1/cb", "http://127.0.0.1:2/cb"),
        ("http://localhost/cb?x=1", "http://localhost:9/cb?x=1"),
        ("http://[::1]/cb", "http://[::1]:9/cb"),
        ("cursor://a/b", "cursor://a/b"),
    ]
    assert all(is_same_redirect(*pair) for pair in same)
    different = [
        ("https://a.example/cb", "https://a.example:444/cb"),
        ("https://a.example/cb", "https://A.example/cb"),
        ("https://a.example/cb", "https://a.example/cb/"),
        ("http://127.0.0.1/cb", "http://localhost/cb"),
        ("http://127.0.0.1/cb", "https://127.0.0.1/cb"),
        ("http://127.0.0.1/cb", "http://127.0.0.1/cb?x=1"),
        ("http://127.0.0.1/cb", "http://127.0.0.1:1@evil.example/cb"),
        ("http://127.0.0.1/cb", "http://127.0.0.1:x/cb"),
        ("https://localhost/cb", "https://localhost:1/cb"),
        ("cursor://a/b", "cursor://a/b/c"),
    ]
    assert not [pair for pair in different if is_same_redirect(*pair)]


def test_a_redirect_is_described_by_where_it_leads() -> None:
    rows = [
        ("https://Claude.ai/cb", "claude.ai", "https://Claude.ai", True),
        ("https://a.example:8443/cb", "a.example:8443", "https://a.example:8443", True),
        ("http://localhost:3/cb", "a program on this device", "http://localhost:3", False),
        ("https://localhost:3/cb", "a program on this device", "https://localhost:3", False),
        ("cursor://x/y", "the program on this device that opens cursor: links", "cursor:", False),
    ]
    for uri, described, source, is_web in rows:
        assert describe_redirect(uri) == described
        assert find_form_source(uri) == source
        assert is_web_redirect(uri) is is_web


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"redirect_uris": None}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://a.example"]}, "invalid_redirect_uri"),
        ({"grant_types": ["implicit"]}, "invalid_client_metadata"),
        ({"grant_types": "authorization_code"}, "invalid_client_metadata"),
        ({"response_types": ["token"]}, "invalid_client_metadata"),
        ({"token_endpoint_auth_method": "tls_client_auth"}, "invalid_client_metadata"),
        ({"client_name": 1}, "invalid_client_metadata"),
    ],
)
def test_unusable_metadata_is_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidClient) as refused:
        parse_metadata({"redirect_uris": ["https://a.example/cb"], **change}, AuthServerSettings())
    assert refused.value.error == error


def test_names_of_clients_are_short_and_visible() -> None:
    assert clean_name("  Claude   Desktop ") == "Claude Desktop"
    assert "\u202e" not in clean_name("a\u202eb") and "\x1b" not in clean_name("\x1b[31m")
    assert len(clean_name("x" * 10_000)) == 81


def test_the_resource_must_be_this_hub() -> None:
    base = "https://hub.example.com"
    for given in ("", base, f"{base}/mcp", f"{base}:443/mcp", "https://HUB.example.com/mcp"):
        assert resolve_resource(given, base) == (given or base)
    local = "http://127.0.0.1:5000"
    for given in ("http://localhost:5000/mcp", "http://[::1]:5000/mcp"):
        assert resolve_resource(given, local) == given
    for given in (
        "https://other.example.com",
        "https://hub.example.com.evil.example/mcp",
        "https://hub.example.com@evil.example/mcp",
        "http://hub.example.com/mcp",
        "https://hub.example.com:8443/mcp",
        "https://hub.example.com/mcp#x",
        "https://hub.example.com\\@evil.example",
        "https://hub.example.com:port/",
        "mcp",
        "https://[",
    ):
        with pytest.raises(OAuthError) as refused:
            resolve_resource(given, base)
        assert refused.value.error == "invalid_target", given
    for given in ("http://127.0.0.1:5001/mcp", "http://localhost/mcp"):
        with pytest.raises(OAuthError):
            resolve_resource(given, local)


def test_scopes_are_those_of_the_user() -> None:
    mine = ("call", "metrics")
    assert choose_scopes("", mine) == mine
    assert choose_scopes("offline_access", mine) == mine
    assert choose_scopes("openid call", mine) == ("call",)
    for bad in ("admin", 'a"b', "a\\b"):
        with pytest.raises(OAuthError):
            choose_scopes(bad, mine)


def test_an_app_has_to_ask_for_scopes_that_affect_others() -> None:
    mine = ("call", "hub:use", "admin", "pins", "approve")
    assert choose_scopes("", mine) == ("call", "hub:use")
    assert choose_scopes("admin call", mine) == ("call", "admin")
    with pytest.raises(OAuthError):
        choose_scopes("", ("admin",))


def test_only_the_verifier_of_a_challenge_is_right() -> None:
    # RFC 7636, appendix B.
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    assert is_right_verifier(verifier, challenge)
    for wrong in ("", challenge, verifier[:-1], verifier + "x", verifier * 4, "é" * 43):
        assert not is_right_verifier(wrong, challenge)


def test_an_ambiguous_authorization_request_is_refused() -> None:
    for query in (
        b"",
        b"client_id=a",
        b"client_id=a&client_id=b&redirect_uri=x",
        b"a=%ff&client_id=b",
    ):
        with pytest.raises(OAuthError):
            parse_authorization_request(query)


def test_which_client_ids_are_documents() -> None:
    for url in ("https://app.example/client.json", "https://app.example:8443/a?b=c"):
        assert is_document_url(url), url
    for url in (
        "dgc_abc",
        "http://app.example/client.json",
        "https://app.example",
        "https://app.example/",
        "https://app.example/a/../b",
        "https://app.example/./b",
        "https://user@app.example/client.json",
        "https://app.example/client.json#x",
        "https://[::1]/client.json",
        "https://app.example/" + "x" * 2_000,
    ):
        assert not is_document_url(url), url
