"""Agent cards: building every shape, and parsing foreign ones."""

from __future__ import annotations

import copy
import http.server
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.compat.v0_3.types import AgentCard as AgentCard03
from a2a.types import AgentCard
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.a2a.cards.build import (
    CardAddresses,
    build_card,
    build_card_headers,
    build_etag,
    find_text_argument,
    is_unchanged,
    skill_from_tool,
)
from dragoman.a2a.cards.parse import (
    MAX_CARD_BYTES,
    MAX_SKILLS,
    InvalidCard,
    decode_card,
    parse_card,
)
from dragoman.a2a.protocol.card_fields import FIELDS
from dragoman.a2a.protocol.dialects.card_shapes import render_card
from dragoman.core.tool import AgentFacts
from dragoman.wire.json import encode

URL = "http://127.0.0.1:50051/a2a"
REQUIRED = [name for name, kind in FIELDS["AgentCard"].items() if kind[-1] == "!"]
EXTENSION = {
    "uri": "urn:dragoman:a2a:skill:v1",
    "description": "The message says which skill it is for",
    "required": False,
    "params": {"member": "skillId"},
}


class CardInterface(NamedTuple):
    url: str
    binding: str
    version: str
    tenant: str


def list_interfaces(card: dict[str, Any]) -> list[CardInterface]:
    """The interfaces on a card of 1.0, the preferred one first; versions are `major.minor`."""
    return [
        CardInterface(
            one["url"],
            one["protocolBinding"],
            ".".join(one["protocolVersion"].strip().lstrip("vV").split(".")[:2]),
            one.get("tenant", ""),
        )
        for one in card["supportedInterfaces"]
    ]


def described(**changes: Any) -> AgentFacts:
    said: dict[str, Any] = {
        "name": "code-reviewer",
        "description": "Reviews code for bugs, security issues, and style",
        "version": "0.1.0",
        "skills": [skill_from_tool("file_read")],
        "streaming": True,
        "push": True,
        "extended": True,
        "extensions": [EXTENSION],
    }
    return AgentFacts(**{**said, **changes})


MORE = {
    "provider": {"organization": "Example", "url": "https://example.com"},
    "documentationUrl": "https://example.com/docs",
}


def a_card(
    security: bool = True,
    grpc: str | None = "127.0.0.1:50052",
    more: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """With `more` it has members that the hub's own cards do not have."""
    urls = CardAddresses(url=URL, grpc=grpc, tenant="code-reviewer")
    card = build_card(described(**changes), urls=urls, security=security)
    return {**card, **(MORE if more else {})}


# --- made -----------------------------------------------------------------------------------------


@pytest.mark.promise("I1")
def test_tool_becomes_a_skill_with_default_texts() -> None:
    skill = skill_from_tool("file_read")
    assert skill == {
        "id": "file_read",
        "name": "file read",
        "description": "Can use the file_read tool",
        "tags": ["tool"],
        "examples": [],
        "inputModes": ["text/plain", "application/json"],
        "outputModes": ["text/plain", "application/json"],
    }
    assert skill_from_tool("a_b", description="Adds")["description"] == "Adds"
    assert len(skill_from_tool("a_b", description="x" * 50_000)["description"]) == 1_000


@pytest.mark.parametrize(
    ("schema", "argument"),
    [
        ({"properties": {"path": {"type": "string"}}, "required": ["path"]}, "path"),
        ({"properties": {"path": {"type": "string"}}}, "path"),
        ({"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, "a"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, "a"),
        ({"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}, None),
        ({"properties": {"a": {"type": "integer"}}}, None),
        ({"properties": {"a": True}}, None),
        ({"properties": {}}, None),
        ({}, None),
    ],
)
def test_skill_accepts_text_where_its_tool_has_one_text_argument(
    schema: dict[str, Any], argument: str | None
) -> None:
    assert find_text_argument(schema) == argument
    modes = skill_from_tool("t", input_schema=schema)["inputModes"]
    assert modes == (["text/plain"] if argument else []) + ["application/json"]


@pytest.mark.promise("I1")
def test_card_has_tool_skills_and_declared_skills() -> None:
    review = {"id": "review", "name": "Review", "description": "Reads a diff", "tags": ["code"]}
    card = a_card(skills=[skill_from_tool("file_read"), review], input_modes=["text/plain"])
    assert [skill["id"] for skill in card["skills"]] == ["file_read", "review"]
    assert card["skills"][1]["inputModes"] == ["text/plain"]
    assert card["skills"][1]["outputModes"] == ["text/plain", "application/json"]


def test_required_card_members_are_never_empty() -> None:
    card = render_card(
        a_card(name="", description=" ", version="", skills=[], input_modes=[]), "1.0"
    )
    assert all(card[name] for name in REQUIRED)
    assert all(card["skills"][0][name] for name in ("id", "name", "description", "tags"))


def test_card_size_is_bounded() -> None:
    long = {"id": "x", "name": "n" * 9_000, "description": "d" * 99_000, "tags": ["t" * 999] * 99}
    skills = [{**long, "id": f"s{number}"} for number in range(MAX_SKILLS + 5)]
    card = a_card(skills=skills, description="x" * 99_000)
    assert len(card["skills"]) == MAX_SKILLS
    assert len(card["description"]) == 4_000
    assert len(encode(card["skills"][0])) < 10_000


def test_interfaces_are_ordered_http_first_newest_first_grpc_last() -> None:
    assert list_interfaces(a_card()) == [
        CardInterface(URL, "JSONRPC", "1.0", ""),
        CardInterface(URL, "HTTP+JSON", "1.0", ""),
        CardInterface(URL, "JSONRPC", "0.3", ""),
        CardInterface(URL, "HTTP+JSON", "0.3", ""),
        CardInterface("127.0.0.1:50052", "GRPC", "1.0", "code-reviewer"),
    ]
    assert [one.binding for one in list_interfaces(a_card(grpc=None))] == [
        "JSONRPC",
        "HTTP+JSON",
    ] * 2


@pytest.mark.promise("I3")
@pytest.mark.parametrize("on", [True, False])
def test_card_declares_actual_capabilities_in_every_shape(on: bool) -> None:
    card = a_card(streaming=on, push=on, extended=on)
    for version in ("1.0", "0.3", "0.1", "merged"):
        known = render_card(card, version)["capabilities"]
        assert (known["streaming"], known["pushNotifications"]) == (on, on)
    assert render_card(card, "1.0")["capabilities"]["extendedAgentCard"] is on
    assert render_card(card, "0.3")["supportsAuthenticatedExtendedCard"] is on
    for version in ("0.3", "0.1", "merged"):
        assert render_card(card, version)["capabilities"]["stateTransitionHistory"] is True


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.promise("I2")
@pytest.mark.parametrize("security", [True, False])
def test_card_1_0_has_exactly_the_members_of_1_0(security: bool) -> None:
    pure = render_card(a_card(security), "1.0")
    parsed = ParseDict(pure, AgentCard())  # refuses any member that a2a.proto does not have
    assert parsed.skills[0].name == "file read"
    assert pure["skills"][0]["examples"] == []
    assert ("bearer" in parsed.security_schemes) is security
    assert len(parsed.security_requirements) == security


@pytest.mark.promise("I2")
def test_card_0_1_has_the_shape_of_0_1() -> None:
    card = a_card(False, more=False)
    assert render_card(card, "0.1") == {
        "name": "code-reviewer",
        "description": "Reviews code for bugs, security issues, and style",
        "url": URL,
        "version": "0.1.0",
        "capabilities": {
            "streaming": True,
            "pushNotifications": True,
            "stateTransitionHistory": True,
        },
        "skills": [
            {
                "id": "file_read",
                "name": "file read",
                "description": "Can use the file_read tool",
                "tags": ["tool"],
                "examples": [],
            }
        ],
        "defaultInputModes": ["text", "text/plain", "application/json"],
        "defaultOutputModes": ["text", "text/plain", "application/json"],
    }
    assert render_card(a_card(True), "0.1")["authentication"] == {"schemes": ["bearer"]}


@pytest.mark.parametrize("version", ["0.3", "merged"])
def test_card_0_3_states_url_transport_and_security(version: str) -> None:
    skill = {**skill_from_tool("t"), "securityRequirements": [{"schemes": {"bearer": {}}}]}
    old = AgentCard03.model_validate(render_card(a_card(skills=[skill]), version))
    assert (old.url, old.preferred_transport, old.protocol_version) == (URL, "JSONRPC", "0.3.0")
    assert [one.transport for one in old.additional_interfaces or ()] == ["JSONRPC", "HTTP+JSON"]
    assert old.security == [{"bearer": []}]
    assert old.skills[0].security == [{"bearer": []}]
    assert old.security_schemes is not None
    assert type(old.security_schemes["bearer"].root).__name__ == "HTTPAuthSecurityScheme"
    assert old.supports_authenticated_extended_card is True
    assert old.capabilities.state_transition_history is True
    assert old.capabilities.extensions is not None


def test_every_security_scheme_is_rendered_in_both_forms() -> None:
    flow = {"tokenUrl": "https://example.com/t", "scopes": {"read": "Reads"}}
    schemes: dict[str, dict[str, Any]] = {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "http": {"httpAuthSecurityScheme": {"scheme": "Basic"}},
        "oauth": {"oauth2SecurityScheme": {"flows": {"clientCredentials": flow}}},
        "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://example.com/o"}},
        "tls": {"mtlsSecurityScheme": {"description": "a certificate"}},
    }
    wanted = [{"schemes": {"oauth": {"list": ["read"]}, "key": {"list": []}}}]
    card = {**a_card(), "securitySchemes": schemes, "securityRequirements": wanted}
    AgentCard03.model_validate(render_card(card, "0.3"))
    for version in ("1.0", "0.3", "merged"):
        again = parse_card(render_card(card, version))
        assert again["securitySchemes"] == schemes
        assert (
            render_card(again, "1.0")["securityRequirements"]
            == render_card(card, "1.0")["securityRequirements"]
        )


def test_unknown_card_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown card shape"):
        render_card(a_card(), "2.0")


@pytest.fixture
def served() -> Iterator[dict[str, Any]]:
    """A server of one card, which is put into `card`; its address is in `url`."""
    place: dict[str, Any] = {}

    class Serving(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = encode(place["card"])
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serving)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    place["url"] = f"http://127.0.0.1:{server.server_port}"
    yield place
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.mark.promise("I2")
@pytest.mark.parametrize("version", ["1.0", "0.3", "0.1", "merged"])
@pytest.mark.parametrize("security", [True, False])
async def test_official_client_accepts_every_card_shape(
    served: dict[str, Any], version: str, security: bool
) -> None:
    served["card"] = render_card(a_card(security), version)
    async with httpx.AsyncClient(trust_env=False) as client:
        card = await A2ACardResolver(client, served["url"]).get_agent_card()
    assert card.name == "code-reviewer"
    assert card.supported_interfaces[0].url == URL
    assert card.supported_interfaces[0].protocol_binding == "JSONRPC"
    if version != "0.1":
        assert len(card.security_requirements) == security


# --- read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "merged"])
@pytest.mark.parametrize("security", [True, False])
def test_built_cards_parse_without_loss(version: str, security: bool) -> None:
    card = a_card(security)
    odd: list[str] = []
    assert render_card(parse_card(render_card(card, version), odd=odd), "1.0") == render_card(
        card, "1.0"
    )
    assert odd == []


@pytest.mark.promise("I2")
@pytest.mark.parametrize(("version", "spoken"), [("0.3", "0.3"), ("0.1", "0.1")])
def test_older_card_shapes_are_parsed(version: str, spoken: str) -> None:
    card = a_card()
    read = parse_card(render_card(card, version))
    assert {one.version for one in list_interfaces(read)} == {spoken}
    assert {one.url for one in list_interfaces(read)} == {URL}
    assert read["skills"] == card["skills"]
    assert read["securityRequirements"] == card["securityRequirements"]
    scheme = read["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"]
    assert scheme.lower() == "bearer"
    ParseDict(read, AgentCard())


def test_python_a2a_card_is_parsed() -> None:
    raw = {
        "name": "Calculator",
        "description": "Adds",
        "url": "http://localhost:5001",
        "version": "1.0.0",
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": False, "google_a2a_compatible": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "4f1", "name": "Add", "description": "Adds", "tags": ["math"]}],
        "authentication": "bearer",
        "provider": "Acme",
    }
    read = parse_card(raw)
    assert list_interfaces(read) == [CardInterface("http://localhost:5001", "JSONRPC", "0.3", "")]
    assert read["provider"] == {"organization": "Acme", "url": ""}
    assert read["securitySchemes"] == {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    assert read["capabilities"] == {"streaming": False}
    ParseDict(read, AgentCard())


def test_fasta2a_card_with_its_own_requirements_form_is_parsed() -> None:
    raw = {
        "name": "fasta",
        "description": "An AI agent exposed as an A2A agent.",
        "version": "1.0.0",
        "supported_interfaces": [
            {
                "protocol_binding": "JSONRPC",
                "url": "http://localhost:8000",
                "protocolVersion": "1.0",
            }
        ],
        "capabilities": {"streaming": True, "push_notifications": False},
        "securityRequirements": [{"schemes": {"key": ["read"]}}],
        "securitySchemes": {"key": {"apiKeySecurityScheme": {"location": "header", "name": "K"}}},
        "skills": [],
        "defaultInputModes": ["application/json"],
        "defaultOutputModes": ["application/json"],
    }
    odd: list[str] = []
    read = parse_card(raw, odd=odd)
    assert odd == []
    assert list_interfaces(read) == [CardInterface("http://localhost:8000", "JSONRPC", "1.0", "")]
    assert read["capabilities"] == {"streaming": True, "pushNotifications": False}
    assert read["securityRequirements"] == [{"schemes": {"key": {"list": ["read"]}}}]


@pytest.mark.parametrize(
    ("raw", "found_at", "expected"),
    [
        ({"url": "/a2a"}, "https://h/.well-known/agent.json", ("https://h/a2a", "JSONRPC", "0.1")),
        ({}, "https://h/x/.well-known/agent-card.json", ("https://h/x", "JSONRPC", "0.1")),
        ({"url": None, "security": []}, "https://h/agent.json", ("https://h", "JSONRPC", "0.2")),
        (
            {"url": "https://h", "preferredTransport": "http_json", "protocolVersion": "v0.2.5"},
            "",
            ("https://h", "HTTP+JSON", "0.2"),
        ),
        (
            {"supportedInterfaces": [None, {"url": "ftp://h"}], "url": "https://h"},
            "",
            ("https://h", "JSONRPC", "0.1"),
        ),
        (
            {"supportedInterfaces": [{"url": "https://h", "transport": "json-rpc"}]},
            "",
            ("https://h", "JSONRPC", "1.0"),
        ),
        (
            {
                "supportedInterfaces": [{"url": "h:1", "protocolBinding": "grpc"}],
                "url": "http://no",
            },
            "",
            ("h:1", "GRPC", "1.0"),
        ),
    ],
)
def test_card_url_is_found_in_every_position(
    raw: dict[str, Any], found_at: str, expected: tuple[str, str, str]
) -> None:
    assert [one[:3] for one in list_interfaces(parse_card(raw, found_at))] == [expected]


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://h/", "http://", "http://h/\r\nx: y", "http://[::1", "", 5]
)
def test_unusable_card_url_is_omitted_and_reported(url: Any) -> None:
    odd: list[str] = []
    card = parse_card({"name": "n", "url": url}, odd=odd)
    assert card["supportedInterfaces"] == []
    assert any("address" in said for said in odd)


def test_missing_or_wrong_card_members_are_repaired_and_reported() -> None:
    raw = {
        "name": None,
        "description": 5,
        "url": "http://agent.example/a2a",
        "capabilities": "all",
        "defaultInputModes": "text",
        "skills": [
            {"id": "a", "tags": "one", "inputModes": ["text", "data"], "inputSchema": {"x": 1}},
            {"name": "b", "examples": [None, "ex"]},
            {"id": "a", "name": "again"},
            {"description": "nameless"},
            "c",
            7,
        ],
    }
    odd: list[str] = []
    card = parse_card(raw, odd=odd)
    assert (card["name"], card["description"]) == ("agent.example", "5")
    assert card["version"] == "unknown"
    assert card["capabilities"] == {}
    assert card["defaultInputModes"] == ["text/plain"]
    assert [skill["id"] for skill in card["skills"]] == ["a", "b", "c"]
    assert card["skills"][0]["inputModes"] == ["text/plain", "application/json"]
    assert card["skills"][0]["inputSchema"] == {"x": 1}
    assert card["skills"][0]["tags"] == ["one"]
    assert card["skills"][1]["examples"] == ["ex"]
    said = "\n".join(odd)
    for expected in (
        "name is missing",
        "description is a number",
        "version is missing",
        'skills[2] has the id "a" of another',
        "skills[3] has neither id nor name",
        "skills[5] is not an object",
        "does not declare a version",
    ):
        assert expected in said


def test_parsed_card_is_bounded() -> None:
    raw = {
        "name": "n" * 1_000,
        "url": "http://h",
        "defaultInputModes": [f"m/{n}" for n in range(5_000)],
        "skills": [{"id": f"s{n}", "description": "d" * 20_000} for n in range(MAX_SKILLS + 1)],
        "additionalInterfaces": [{"url": f"http://h/{n}"} for n in range(5_000)],
        "securitySchemes": {f"s{n}": {"type": "mutualTLS"} for n in range(5_000)},
    }
    odd: list[str] = []
    card = parse_card(raw, odd=odd)
    assert len(card["name"]) == 256
    assert len(card["skills"]) == MAX_SKILLS
    assert len(card["skills"][0]["description"]) == 10_000
    assert len(card["defaultInputModes"]) == 100
    assert len(card["supportedInterfaces"]) == 100
    assert len(card["securitySchemes"]) == 100
    assert len(odd) == 50
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"deeper": deep}
    extended = {"url": "http://h", "capabilities": {"extensions": [{"uri": "u", "params": deep}]}}
    assert parse_card(extended)["capabilities"] == {"extensions": [{"uri": "u"}]}


@pytest.mark.parametrize(
    "data", [b"[]", b"null", b"{", b'"text"', b"{" + b" " * MAX_CARD_BYTES + b"}"]
)
def test_non_card_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidCard):
        decode_card(data)
    with pytest.raises(InvalidCard):
        parse_card([])


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, item in inner:
        yield (*here, key)
        yield from paths(item, (*here, key))


@pytest.mark.parametrize("version", ["1.0", "merged", "0.3", "0.1"])
def test_card_with_any_invalid_member_still_parses(version: str) -> None:
    whole = render_card(a_card(), version)
    junk: Any
    for path in paths(whole):
        for junk in (None, 5, True, "x", "", [], {}, [None], [[]], {"a": None}, {"": [{}]}):
            raw = copy.deepcopy(whole)
            place = raw
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = junk
            card = parse_card(raw, "http://h/.well-known/agent.json")
            assert all(card[name] for name in ("name", "description", "version"))
            assert all(name in card for name in REQUIRED)
            ParseDict(card, AgentCard())
            render_card(card, "merged")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*FIELDS["AgentCard"], "url", "type", "list"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS["AgentCard"], "url", "security"]), JSON))
def test_any_object_gives_a_valid_card(raw: dict[str, Any]) -> None:
    ParseDict(parse_card(raw), AgentCard(), ignore_unknown_fields=True)


# --- served ---------------------------------------------------------------------------------------


def test_etag_follows_the_bytes() -> None:
    tag = build_etag(b"{}")
    assert tag == build_etag(b"{}") != build_etag(b"[]")
    assert tag.startswith('"') and tag.endswith('"')
    assert is_unchanged(tag, f'"other", W/{tag}')
    assert is_unchanged(tag, "*")
    assert not is_unchanged(tag, '"other"')
    assert not is_unchanged(tag, "")


def test_only_public_cards_are_publicly_cacheable() -> None:
    shared, own = (
        dict(build_card_headers(b"{}", shared=True)),
        dict(build_card_headers(b"{}", shared=False)),
    )
    assert shared[b"cache-control"] == b"public, max-age=60"
    assert own[b"cache-control"] == b"private, max-age=60"
    assert shared[b"etag"] == build_etag(b"{}").encode()
    assert b"Authorization" in shared[b"vary"]
