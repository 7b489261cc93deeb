"""Secrets by reference in every place that takes a credential: they arrive, they are refreshed, and
no output contains them. The hub and its counterparts are real."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import text_of, until
from tests.peers import wire
from tests.peers.process import server_entry, toml

from dragoman.app.secret_variables import list_secret_variables
from dragoman.config import parse
from dragoman.core.errors import ConfigError

PROBE = (sys.executable, str(Path(__file__).with_name("probe_server.py")))
CANARIES = {
    name: f"canary{number}{name}8d31f0" for number, name in enumerate(
        ("exec", "file", "keyring", "variable", "api", "agent", "model", "search", "next")
    )
}  # fmt: skip
KEYRING = """
from keyring.backend import KeyringBackend

class Backend(KeyringBackend):
    priority = 1
    def get_password(self, service, username):
        return {("vault", "token"): %r}.get((service, username))
    def set_password(self, service, username, password):
        raise NotImplementedError
"""


class Counterpart:
    """An MCP server, an A2A agent, a model and a search engine that record what they are sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.refused = ""
        """A text whose presence in a header is answered with 401."""
        self.origin = ""

    def find_headers(self, path: str) -> dict[str, str]:
        return next(headers for where, headers in reversed(self.seen) if where.startswith(path))


@contextmanager
def run_counterpart() -> Iterator[Counterpart]:
    made = Counterpart()

    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path.startswith("/search"):
                self._record()
                return self._reply(200, {"results": []})
            if not self.path.endswith("/agent-card.json"):
                return self._reply(404, {})
            self._record()
            place = {"url": f"{made.origin}/a2a", "protocolBinding": "JSONRPC"}
            self._reply(200, {
                "name": "keyed", "description": "Keyed", "version": "1",
                "supportedInterfaces": [{**place, "protocolVersion": "1.0"}],
                "capabilities": {}, "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
                "skills": [{"id": "work", "name": "work", "description": "w", "tags": []}],
            })  # fmt: skip

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self._record():
                return self._reply(401, {"error": f"not you: {dict(self.headers)}"})
            if "id" not in asked and "method" in asked:
                return self._reply(202, None)
            method = asked.get("method")
            result: Any = {"content": [{"type": "text", "text": "done"}]}
            if self.path.endswith("/chat/completions"):
                message = {"role": "assistant", "content": "hello"}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                return self._reply(200, {"choices": [choice], "model": "m"})
            if method == "initialize":
                about = {"name": "keyed", "version": "1"}
                said = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                result = {**said, "serverInfo": about}
            elif method == "tools/list":
                result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
            elif method == "SendMessage":
                parts = [{"text": "ok"}]
                result = {"message": {"messageId": "1", "role": "ROLE_AGENT", "parts": parts}}
            elif method not in ("tools/call", "ping"):
                code = -32001 if method == "GetTask" else -32601
                error = {"code": code, "message": "not found"}
                return self._reply(200, {"jsonrpc": "2.0", "id": asked["id"], "error": error})
            self._reply(200, {"jsonrpc": "2.0", "id": asked["id"], "result": result})

        def _record(self) -> bool:
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.seen.append((self.path, headers))
            return not made.refused or made.refused not in json.dumps(headers)

        def _reply(self, status: int, value: Any) -> None:
            data = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Drops log output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    server.daemon_threads = True
    made.origin = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def write_private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def find_leaks(texts: dict[str, str]) -> dict[str, list[str]]:
    found = {
        where: [name for name, canary in CANARIES.items() if canary in text]
        for where, text in texts.items()
    }
    return {where: names for where, names in found.items() if names}


def read_command_lines() -> str:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
    return "\n".join(lines)


@pytest.mark.promise("B10")
def test_references_of_every_kind_reach_their_place_and_nothing_else(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    secret = {
        name: write_private(short_tmp / "vault" / name, CANARIES[name])
        for name in ("exec", "agent", "model", "search")
    }
    write_private(home / "tokens" / "api", CANARIES["api"])
    write_private(home / "tokens" / "file", CANARIES["file"])
    write_private(short_tmp / "own_keyring.py", KEYRING % CANARIES["keyring"])
    manifest = (
        'name = "thinker"\n[model]\nmodel = "m"\nbase_url = "ORIGIN/v1"\nallow_private = true\n'
        f'api_key = "exec:cat {secret["model"]}"\n'
    )
    with run_counterpart() as peer:
        write_private(home / "agents/thinker/agent.toml", manifest.replace("ORIGIN", peer.origin))
        headers = {
            "Authorization": f"Bearer ${{exec:cat {secret['exec']}}}",
            "X-File": "${file:tokens/file}",
            "X-Keyring": "${keyring:vault/token}",
            "X-Plain": "${VARIABLE} and ${env:VARIABLE}",
        }
        search = {"X-Search": f"${{exec:cat {secret['search']}}}"}
        env = [f"FROM_EXEC=exec:cat {secret['exec']}", "RENAMED=env:VARIABLE", "PLAIN"]
        config = (
            'api_key = "file:tokens/api"\n[a2a]\nenabled = true\n[[a2a.external_agents]]\n'
            f'name = "keyed"\nurl = "{peer.origin}"\ntoken = "exec:cat {secret["agent"]}"\n'
            f'[tools]\nclients = ["web_search"]\nsearch_url = "{peer.origin}/search"\n'
            f"search_headers = {toml(search)}\n"
        )
        running = hub(
            [
                server_entry("http", "http", f"{peer.origin}/mcp", transport={"headers": headers}),
                server_entry("child", "stdio", *PROBE, env=env),
            ],
            config,
            home=home,
            env={
                "VARIABLE": CANARIES["variable"],
                "PLAIN": "plain",
                "PYTHONPATH": str(short_tmp),
                "PYTHON_KEYRING_BACKEND": "own_keyring.Backend",
            },
        )
        running.headers = {"Authorization": f"Bearer {CANARIES['api']}"}
        running.wait_connected("http", "child")
        assert wire.get(f"{running.url}/api/tools").status == 401
        assert text_of(running.call("http.t")) == "done"
        sent = peer.find_headers("/mcp")
        assert sent["authorization"] == f"Bearer {CANARIES['exec']}"
        assert sent["x-file"] == CANARIES["file"] and sent["x-keyring"] == CANARIES["keyring"]
        assert sent["x-plain"] == f"{CANARIES['variable']} and {CANARIES['variable']}"
        code = "import os; found = dict(os.environ)"
        seen = json.loads(text_of(running.call("child.run", {"code": code})))
        assert seen["FROM_EXEC"] == CANARIES["exec"] and seen["PLAIN"] == "plain"
        assert seen["RENAMED"] == CANARIES["variable"] and "VARIABLE" not in seen
        until(lambda: running.api("/api/a2a/agents/keyed")["tools"])
        text_of(running.call("keyed.work", {"message": "hello"}))
        assert peer.find_headers("/a2a")["authorization"] == f"Bearer {CANARIES['agent']}"
        until(lambda: "thinker" in json.dumps(running.api("/api/agents")))
        assert "hello" in json.dumps(running.call("dragoman_agent_thinker", {"message": "hi"}))
        assert peer.find_headers("/v1")["authorization"] == f"Bearer {CANARIES['model']}"
        running.call("web_search", {"query": "q"})

        # A secret that is refused is read again, and the request repeated once.
        for name in ("exec", "agent", "model"):
            write_private(secret[name], CANARIES["next"])
        peer.refused = CANARIES["exec"]
        assert text_of(running.call("http.t")) == "done"
        assert peer.find_headers("/mcp")["authorization"] == f"Bearer {CANARIES['next']}"
        peer.refused = CANARIES["agent"]
        text_of(running.call("keyed.work", {"message": "hello"}))
        peer.refused = CANARIES["model"]
        assert "hello" in json.dumps(running.call("dragoman_agent_thinker", {"message": "hi"}))

        # And one that stays refused, or cannot be read, is named nowhere.
        peer.refused = CANARIES["next"]
        answers = {
            name: json.dumps(running.call(name, arguments))
            for name, arguments in (
                ("http.t", {}),
                ("keyed.work", {"message": "x"}),
                ("dragoman_agent_thinker", {"message": "x"}),
            )
        }
        secret["exec"].unlink()
        answers["restart"] = json.dumps(running.post("/api/mcp/servers/http/restart", {}))
        state = running.api("/api/mcp/servers")
        texts = {**answers, "log": running.log(), "processes": read_command_lines()}
        texts |= {"state": json.dumps(state), "audit": json.dumps(running.audit())}
        for path in ("/api/status", "/api/tools", "/api/a2a/agents", "/api/agents", "/metrics"):
            texts[path] = running.get(path).body.decode()
        for command in (("servers",), ("servers", "show", "http"), ("config", "show"), ("doctor",)):
            done = running.command(*command)
            texts[" ".join(command)] = done.stdout + done.stderr
        for file in home.rglob("*"):
            if file.is_file() and "tokens" not in file.parts:
                texts[str(file)] = file.read_bytes().decode("latin-1")
        assert find_leaks(texts) == {}
        assert peer.find_headers("/search")["x-search"] == CANARIES["search"]


@pytest.mark.promise("B10")
def test_the_api_may_refer_only_to_what_the_configuration_allows(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    config = '[secrets]\nallow = ["env:TEAM_*", "file:team/*", "keyring:team/*"]\n'
    config += "[a2a]\nenabled = true\n"
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    write_private(home / "team" / "one", CANARIES["file"])
    write_private(short_tmp / "outside", CANARIES["next"])
    (home / "team" / "link").symlink_to(short_tmp / "outside")
    env = {"TEAM_A": CANARIES["variable"], "HUB_B": CANARIES["exec"]}
    with run_counterpart() as peer:
        running = hub(config=config, home=home, env=env)

        def register(name: str, **credentials: Any) -> Any:
            body = {"url": peer.origin, "name": name, "allow_private": True, **credentials}
            return running.post("/api/a2a/agents", body)

        refused: tuple[dict[str, Any], ...] = (
            {"token": "env:HUB_B"}, {"token": "env:PATH"}, {"token": "exec:id"},
            {"token": "file:hub.key"}, {"token": "file:team/../hub.key"}, {"token": "keyring:x/y"},
            {"token": f"file:{short_tmp}/outside"}, {"headers": {"X-A": "${HUB_B}"}},
            {"headers": {"X-A": "${exec:id}"}}, {"headers": {"X-A": "Bearer ${env:HUB_B}"}},
            {"headers": {"X-A": "${keyring:x/y}"}}, {"token": CANARIES["api"]},
        )  # fmt: skip
        for number, credentials in enumerate(refused):
            answer = register(f"no{number}", **credentials)
            assert "error" in answer, credentials
            assert find_leaks({"answer": json.dumps(answer)}) == {}
        assert not peer.seen
        assert "error" not in register("variable", token="env:TEAM_A")
        assert peer.find_headers("/")["authorization"] == f"Bearer {CANARIES['variable']}"
        assert "error" not in register("file", headers={"X-A": "${file:team/one}"})
        assert peer.find_headers("/")["x-a"] == CANARIES["file"]
        register("link", token="file:team/link")
        assert CANARIES["next"] not in json.dumps(peer.seen), "a link out of the allowed folder"


def test_variables_of_references_are_taken_out_of_the_environment() -> None:
    config = parse(
        """
        api_key = "env:KEY"
        [secrets]
        allow = ["env:TEAM_*", "env:*"]
        [[a2a.external_agents]]
        name = "a"
        url = "https://example.org"
        token = "env:TOKEN"
        [tools]
        search_headers = { "X" = "${SEARCH}" }
        [[mcp_servers]]
        name = "s"
        env = ["OWN=env:GIVEN"]
        [mcp_servers.transport]
        type = "stdio"
        command = "x"
        """
    )
    names = ["KEY", "TEAM_X", "TOKEN", "SEARCH", "GIVEN", "PATH", "HOME", "LANG"]
    assert list_secret_variables(config, names) == names[:5]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('api_key = "short"', "too short"),
        ('[secrets]\nallow = ["exec:*"]', "secrets.allow"),
        ('[[mcp_servers]]\nname = "s"\nenv = ["A=secret"]\n[mcp_servers.transport]\n'
         'type = "stdio"\ncommand = "x"', "NAME=REFERENCE"),
    ],
)  # fmt: skip
def test_bad_references_are_refused_when_the_file_is_read(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert problem in str(caught.value) and "secret" not in str(caught.value).replace("secrets", "")
