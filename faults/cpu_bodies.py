"""Bodies for the CPU fuzzer: what each protocol's requests carry, in shapes that may be costly.

Knows the wire formats; knows neither the hub nor how the requests are judged.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from tests.peers import wire

from dragoman.a2a.protocol.grpc.services import SERVICES_BY_VERSION
from faults.costly_server import PROPERTIES

HEAD, BODY = 60 * 1024, 1024 * 1024
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
GRPC = "gRPC"
"""The method of a request over gRPC, whose path is that of the gRPC method."""
SSE = "the session's path"
"""The path of a request on the HTTP+SSE session that the fuzzer has opened."""
SECRET = "the-secret-of-the-hook-0123456789"
HOOK = "/api/hooks/hooked"

Build = Callable[[], bytes]
BuildValue = Callable[[], Any]


class Sent(NamedTuple):
    label: str
    method: str
    path: str
    headers: dict[str, str]
    build_body: Build = bytes
    always: bool = False
    """Whether short runs send it too: it was costly once."""


def fill(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


def put(base: Mapping[str, Any], member: str, build: BuildValue) -> dict[str, Any]:
    return {**base, member: build()}


def repeat(member: str, item: Any, count: int) -> dict[str, Any]:
    return {member: [item] * count}


TEXTS = ("a", "a/", "a.", "(a", "{{ a }}", "{{", "- a\n", "a: b\n", "[", "%41", "\n", "ü")
VALUES: Mapping[str, BuildValue] = {
    **{f"text of {piece!r}": partial(fill, piece, BODY // 2) for piece in TEXTS},
    "list of numbers": lambda: [1] * (BODY // 8),
    "list of texts": lambda: ["a"] * (BODY // 16),
    "members": lambda: {f"k{number}": 1 for number in range(BODY // 32)},
    "short text of 'a/'": lambda: fill("a/", HEAD),
    "nested lists": lambda: json.loads("[" * 30 + "]" * 30),
}
SPELT = [f"{name}x" for name in PROPERTIES]
ARGUMENTS: Mapping[str, BuildValue] = {
    "20 misspelt names": lambda: dict.fromkeys(SPELT[:20], "a"),
    "200 misspelt names": lambda: {f"{one}{n}": 1 for n in range(4) for one in SPELT[:50]},
    "900 misspelt names": lambda: {f"{one}{n}": 1 for n in range(15) for one in SPELT},
    "9,000 misspelt names": lambda: {f"{one}{n}": 1 for n in range(150) for one in SPELT},
    **{
        f"{count} of {label} in {member}": partial(repeat, member, item, count)
        for member, label, item in (
            ("any", "1", 1),
            ("one", "texts", "a"),
            ("enum", "1", 1),
            ("integers", "objects", {}),
            ("codes", "texts", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!"),
        )
        for count in (1_000, 8_000, 32_000)
    },
    "members of a map": lambda: {"map": {f"k{number}": 1 for number in range(8_000)}},
    "numbers that differ": lambda: {"unique": [*range(16_000), 1]},
    "objects that differ": lambda: {"unique": [{"a": [number]} for number in range(6_000)]},
    **{f"any {name}": partial(put, {}, "any", build) for name, build in VALUES.items()},
    **{f"text {name}": partial(put, {}, PROPERTIES[0], build) for name, build in VALUES.items()},
}
"""Arguments of the tools of `costly_server`, most of which are refused."""
COSTLY_ONCE = ("200 misspelt names", "8000 of 1 in any", "32000 of 1 in enum",
               "32000 of objects in integers")  # fmt: skip


def build_json(build: BuildValue) -> bytes:
    return json.dumps(build()).encode()


def wrap(build_value: BuildValue, *places: str | int, **more: Any) -> Build:
    """Builds a body in which the value is at a place, such as `params`, `name`."""

    def build() -> bytes:
        value = build_value()
        for place in reversed(places):
            value = [value] if isinstance(place, int) else {place: value}
        return json.dumps({**more, **value}).encode()

    return build


def list_bodies() -> Iterator[Sent]:
    yield from list_tool_calls()
    yield from list_mcp_requests()
    yield from list_a2a_requests()
    yield from list_grpc_requests()
    yield from list_oauth_requests()
    yield from list_hooks()


def list_tool_calls() -> Iterator[Sent]:
    for tool in ("costly.order", "costly.open"):
        for name, build in ARGUMENTS.items():
            always = tool == "costly.order" and name in COSTLY_ONCE
            label, path = f"{tool} with {name}", f"/api/tools/{tool}/call"
            yield Sent(f"API: {label}", "POST", path, JSON, wrap(build, "arguments"), always)
            yield build_mcp(f"MCP: {label}", "tools/call", {"name": tool}, "arguments", build)
    for name, build in ARGUMENTS.items():
        params = {"name": "costly.order", "arguments": build()} if "any" in name else None
        if params:
            message = partial(build_json, partial(wire.request, 1, "tools/call", params))
            yield Sent(f"SSE: tools/call with {name}", "POST", SSE, JSON, message)


def build_mcp(
    label: str, method: str, params: Mapping[str, Any], member: str, build: BuildValue
) -> Sent:
    def build_body() -> bytes:
        sent = wire.modern_params({**params, member: build()})
        return json.dumps(wire.request(1, method, sent)).encode()

    headers = {**JSON, "accept": wire.ACCEPT, **wire.modern_headers(method, params)}
    return Sent(label, "POST", "/mcp", headers, build_body)


def list_mcp_requests() -> Iterator[Sent]:
    reference = {"type": "ref/prompt", "name": "costly.letter"}
    for method, params, member in (
        ("prompts/get", {"name": "costly.letter"}, "arguments"),
        ("prompts/get", {}, "name"),
        ("resources/read", {}, "uri"),
        ("resources/subscribe", {}, "uri"),
        ("completion/complete", {"ref": reference}, "argument"),
        ("completion/complete", {}, "ref"),
        ("tools/call", {}, "name"),
        ("tools/list", {}, "cursor"),
        ("tasks/get", {}, "taskId"),
        ("no/such", {}, "params"),
    ):
        for name, build in VALUES.items():
            label = f"{method} with {name} as {member}"
            yield build_mcp(f"MCP: {label}", method, params, member, build)
            message = wrap(build, "params", member, jsonrpc="2.0", id=1, method=method)
            yield Sent(f"SSE: {label}", "POST", SSE, JSON, message)
            if member == "arguments":
                one = partial(put, {}, "to", build)
                yield build_mcp(f"MCP: {label}.to", method, params, member, one)
    for name in ("a/", "%41"):
        uri = partial(lambda piece: "page://" + fill(piece, BODY // 2), name)
        body = wrap(uri, "uri")
        label = f"resources/read with an address of {name}"
        yield Sent(f"API: {label}", "POST", "/api/resources/read", JSON, body, name == "a/")
        yield build_mcp(f"MCP: {label}", "resources/read", {}, "uri", uri)


MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
OLD = {
    "messageId": "m",
    "kind": "message",
    "role": "user",
    "parts": [{"kind": "text", "text": "x"}],
}
SKILL = {"skillId": "costly.order"}


def list_messages(base: Mapping[str, Any]) -> Iterator[tuple[str, BuildValue]]:
    """Messages with a value in each of their members."""
    for member in (*base, "contextId", "taskId", "metadata", "extensions", "referenceTaskIds"):
        for name, build in VALUES.items():
            yield f"{name} as {member}", partial(put, base, member, build)
    for kind in ("text", "data", "url", "raw"):
        for name, build in VALUES.items():
            part = partial(lambda kind, build: [{"kind": kind, kind: build()}], kind, build)
            yield f"{name} as a part of {kind}", partial(put, base, "parts", part)
    for name, build in ARGUMENTS.items():
        data = partial(lambda build: [{"kind": "data", "data": build()}], build)
        yield f"{name} for a skill", partial(put, {**base, "metadata": SKILL}, "parts", data)


def list_a2a_requests() -> Iterator[Sent]:
    new, old = {**JSON, "a2a-version": "1.0"}, {**JSON, "a2a-version": "0.3"}
    for name, build in list_messages(MESSAGE):
        body = wrap(build, "params", "message", jsonrpc="2.0", id=1, method="SendMessage")
        yield Sent(f"A2A: SendMessage, {name}", "POST", "/a2a", new, body)
        path = "/a2a/message:send"
        yield Sent(f"REST: SendMessage, {name}", "POST", path, new, wrap(build, "message"))
    for name, build in list_messages(OLD):
        body = wrap(build, "params", "message", jsonrpc="2.0", id=1, method="message/send")
        yield Sent(f"A2A: message/send, {name}", "POST", "/a2a", old, body)
    for method, member in (("GetTask", "id"), ("ListTasks", "pageToken"), ("CancelTask", "id")):
        for name, build in VALUES.items():
            body = wrap(build, "params", member, jsonrpc="2.0", id=1, method=method)
            yield Sent(f"A2A: {method}, {name} as {member}", "POST", "/a2a", new, body)
    for path in ("/mcp", "/a2a", "/a2a/message:send", SSE):
        for piece in ("[", '{"a":', '"', "\\", "0,", "1", '"\\u0041', "[0,", "{}", " "):
            body = partial(lambda piece: fill(piece, BODY).encode(), piece)
            yield Sent(f"POST {path} of {piece}", "POST", path, new, body)


def list_grpc_requests() -> Iterator[Sent]:
    service = SERVICES_BY_VERSION["1.0"]
    method = service.methods["SendMessage"]
    path = f"/{service.name}/{method.name}"
    texts = {name: build for name, build in VALUES.items() if "text" in name}

    def encode(build: BuildValue) -> bytes:
        return bytes(service.types.encode(method.request_type, {"message": build()}))

    for member in ("messageId", "contextId", "taskId"):
        for name, build in texts.items():
            if "list" not in name:
                body = partial(encode, partial(put, MESSAGE, member, build))
                yield Sent(f"gRPC: {name} as {member}", GRPC, path, {}, body)
    for name, build in (*VALUES.items(), *ARGUMENTS.items()):
        data = partial(lambda build: [{"data": build()}], build)
        for about in ({}, {"metadata": SKILL}):
            body = partial(encode, partial(put, {**MESSAGE, **about}, "parts", data))
            yield Sent(f"gRPC: {name} as data {about}", GRPC, path, {}, body)
    for piece in (b"\x0a", b"\xff", b"\x12\x00", b"\x08\x01"):
        yield Sent(f"gRPC: {piece!r}", GRPC, path, {}, partial(bytes.__mul__, piece, BODY // 2))


def build_grant(member: str, piece: str) -> bytes:
    """A token request in which one member is long."""
    return f"grant_type=authorization_code&{member}={fill(piece, HEAD)}&client_id=a".encode()


FORMS: Mapping[str, Build] = {
    **{
        f"{piece!r}": partial(lambda piece: fill(piece, HEAD).encode(), piece)
        for piece in ("a=1&", "&", "=", "%41", "%", "+", "code=a&", "scope=a+b+", "ü")
    },
    "fields": lambda: "&".join(f"f{number}=1" for number in range(8_000)).encode(),
    **{
        f"{member} of {piece!r}": partial(build_grant, member, piece)
        for member in ("code", "scope", "redirect_uri", "client_id", "code_verifier", "resource")
        for piece in ("a", "a+", "http://a.", "%2F")
    },
    "refresh token": lambda: b"grant_type=refresh_token&refresh_token=" + b"a." * (HEAD // 2),
    "assertion": lambda: b"client_assertion=" + b"a." * (HEAD // 2) + b"&grant_type=x",
    "1 MB": lambda: fill("a=1&", BODY).encode(),
}
PAGES = ("token", "revoke", "login", "authorize", "account", "enroll", "passkeys", "logout")


def list_oauth_requests() -> Iterator[Sent]:
    for page in PAGES:
        for name, build in FORMS.items():
            yield Sent(f"POST /oauth/{page}: {name}", "POST", f"/oauth/{page}", FORM, build)
    for member in ("redirect_uris", "client_name", "scope", "grant_types", "jwks", "contacts"):
        for name, value in VALUES.items():
            body = wrap(value, member)
            label = f"POST /oauth/register: {name} as {member}"
            yield Sent(label, "POST", "/oauth/register", JSON, body)
    many = "&".join(f"{number:x}=1" for number in range(HEAD))[:HEAD]
    for path in ("callback", "authorize"):
        url = f"/oauth/{path}?{many}"
        yield Sent(f"GET /oauth/{path} with many names", "GET", url, {}, always=True)


def list_hooks() -> Iterator[Sent]:
    for name, value in VALUES.items():
        build = partial(build_json, value)
        wrong = {**JSON, "x-hub-signature-256": "sha256=" + "0" * 64}
        yield Sent(f"POST {HOOK}: {name}, forged", "POST", HOOK, wrong, build)
        body = json.dumps({"a": value()}).encode()
        digest = hmac.digest(SECRET.encode(), body, "sha256").hex()
        signed = {**JSON, "x-hub-signature-256": f"sha256={digest}"}
        yield Sent(f"POST {HOOK}: {name}, signed", "POST", HOOK, signed, wrap(value, "a"))
    for piece in ("v1,AAAA ", ",", "v1,", " ", "="):
        headers = {"webhook-signature": fill(piece, HEAD).strip() or "a", "webhook-id": "a"}
        sent = {**JSON, **headers, "webhook-timestamp": "1"}
        yield Sent(f"POST {HOOK} with signatures of {piece!r}", "POST", HOOK, sent, lambda: b"{}")
    for piece in ("0", "sha256=", "=", ","):
        sent = {**JSON, "x-hub-signature-256": "sha256=" + fill(piece, HEAD)}
        yield Sent(f"POST {HOOK} with a digest of {piece!r}", "POST", HOOK, sent, lambda: b"{}")
