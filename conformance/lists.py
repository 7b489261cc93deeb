"""Lists and reads over the wire, member by member: a hub changes names, and nothing else.

Asks the fixture, a hub that passes names through and one that prefixes them for the same things,
at several revisions, and compares the JSON. Raw messages, so that no client's models hide anything.
"""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conformance.targets import FIXTURE, SERVER, fixture, hub, remote

MODERN = "2026-07-28"
# Before these the hub cuts what the revision does not know, and the SDK does not.
REVISIONS = (MODERN, "2025-11-25", "2025-06-18")
PREFIX = f"mcp_{SERVER}_"
KEY = "io.modelcontextprotocol/"
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
Object = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    name: str
    problem: str | None
    reason: str | None = None  # why the difference is intended


class Wire:
    """One client of one endpoint at one revision."""

    def __init__(self, url: str, revision: str) -> None:
        self.url, self.revision, self.session, self.count = url, revision, "", 0
        if revision != MODERN:
            params = {
                "protocolVersion": revision,
                "capabilities": {},
                "clientInfo": {"name": "lists", "version": "1"},
            }
            self.ask("initialize", params)
            self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: Object | None = None) -> Object:
        """The result, or the error in its place."""
        self.count += 1
        params = dict(params or {})
        if self.revision == MODERN:
            params["_meta"] = {
                f"{KEY}protocolVersion": MODERN,
                f"{KEY}clientCapabilities": {},
                f"{KEY}clientInfo": {"name": "lists", "version": "1"},
            }
        sent = {"jsonrpc": "2.0", "id": self.count, "method": method, "params": params}
        answer = self.post(sent)
        found: Object = answer.get("result") or {"error": answer.get("error")}
        return found

    def post(self, message: Object) -> Object:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        if self.revision >= "2025-06-18" and message["method"] != "initialize":
            headers["MCP-Protocol-Version"] = self.revision
        if self.session:
            headers["Mcp-Session-Id"] = self.session
        if self.revision == MODERN:
            headers["Mcp-Method"] = message["method"]
            name = message["params"].get("name") or message["params"].get("uri")
            if name:
                headers["Mcp-Name"] = name
        body = json.dumps(message).encode()
        request = urllib.request.Request(self.url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                self.session = answer.headers.get("Mcp-Session-Id") or self.session
                return last_message(answer.read().decode())
        except urllib.error.HTTPError as error:
            return last_message(error.read().decode())


def last_message(text: str) -> Object:
    lines = [
        line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()
    ]
    found: Object = json.loads(lines[-1] if lines else text or "{}")
    return found


def compare(name: str, expected: Any, got: Any) -> Comparison:
    if expected == got:
        return Comparison(name, None)
    if isinstance(got, dict) and got.get("error"):
        return Comparison(name, f"the error {shown(got['error'])} came")
    return Comparison(name, first_difference(expected, got, "$"))


def first_difference(expected: Any, got: Any, path: str) -> str:
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            if expected.get(key, ...) != got.get(key, ...):
                return first_difference(expected.get(key, ...), got.get(key, ...), f"{path}.{key}")
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return f"{path}: {len(expected)} members expected, {len(got)} came"
        for number, (one, other) in enumerate(zip(expected, got, strict=True)):
            if one != other:
                return first_difference(one, other, f"{path}[{number}]")
    return f"{path}: {shown(expected)} expected, {shown(got)} came"


def shown(value: Any) -> str:
    return "nothing" if value is ... else json.dumps(value)[:120]


def by_name(definitions: list[Object], prefix: str) -> Object:
    """Definitions by their names without the prefix.

    What the hub adds goes too: `_meta`, the server's name before a tool's description, and that
    any tool may be called as a task.
    """
    added = ("name", "_meta", "execution")
    found: Object = {}
    for definition in definitions:
        rest = {key: value for key, value in definition.items() if key not in added}
        if "description" in rest:
            rest["description"] = rest["description"].removeprefix(f"[MCP:{SERVER}] ")
        found[definition["name"].removeprefix(prefix)] = rest
    return found


def results(wire: Wire, prefix: str) -> Iterator[tuple[str, Any]]:
    """Everything that can be asked of a fixture by a client that can answer nothing."""
    for method, member in LISTS.items():
        answer = wire.ask(method)
        yield method, by_name(answer[member], prefix) if member in answer else answer
    for tool in ("test_simple_text", "test_image_content", "test_audio_content",
                 "test_embedded_resource", "test_multiple_content_types",
                 "test_error_handling"):  # fmt: skip
        yield f"tools/call {tool}", without_meta(wire.ask("tools/call", named(prefix, tool)))
    for prompt, arguments in (
        ("test_simple_prompt", {}),
        ("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"}),
        ("test_prompt_with_embedded_resource", {"resourceUri": "test://x"}),
        ("test_prompt_with_image", {}),
    ):
        answer = wire.ask("prompts/get", named(prefix, prompt, arguments))
        yield f"prompts/get {prompt}", without_meta(answer)
    for uri in ("test://static-text", "test://static-binary", "test://template/7/data"):
        yield f"resources/read {uri}", without_meta(wire.ask("resources/read", {"uri": uri}))
    missing = wire.ask("resources/read", {"uri": "test://nowhere"})
    yield "resources/read of what is not there", (missing.get("error") or {}).get("code")
    ref = {"type": "ref/prompt", "name": f"{prefix}test_prompt_with_arguments"}
    answer = wire.ask(
        "completion/complete", {"ref": ref, "argument": {"name": "arg1", "value": "par"}}
    )
    yield "completion/complete", without_meta(answer)


def named(prefix: str, name: str, arguments: Object | None = None) -> Object:
    return {"name": prefix + name, "arguments": arguments or {}}


def without_meta(result: Object) -> Object:
    """Without what is for one hop only, who answered and how long it may be kept, and a default."""
    hop = ("_meta", "ttlMs", "cacheScope")
    kept = {key: value for key, value in result.items() if key not in hop}
    return kept if kept.get("isError") else {k: v for k, v in kept.items() if k != "isError"}


def run_lists() -> list[Comparison]:
    found: list[Comparison] = []
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(fixture("lists", [*FIXTURE, "http"]))
        plain, _ = stack.enter_context(hub("lists-plain", remote(url)))
        prefixed, _ = stack.enter_context(hub("lists-prefixed", remote(url), prefix=None))
        for revision in REVISIONS:
            direct = dict(results(Wire(url, revision), ""))
            for label, endpoint, prefix in (("plain", plain, ""), ("prefixed", prefixed, PREFIX)):
                through = dict(results(Wire(endpoint, revision), prefix))
                for name, expected in direct.items():
                    title = f"{revision}, {label}: {name}"
                    found.append(compare(title, expected, through.get(name)))
    return found
