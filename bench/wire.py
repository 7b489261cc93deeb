"""MCP over HTTP as a client of the bench speaks it: single exchanges and request templates.

Knows both eras, modern (2026-07-28) and legacy (2025-11-25); knows no process.
"""

import http.client
import json
from dataclasses import dataclass, field

MODERN, LEGACY = "2026-07-28", "2025-11-25"
REQUEST_ID = "@@ID@@@@@@"  # blast puts a fresh ten-digit id here
CALLED = "E:ping-"  # what only the far end can have made, before the id of the request
LISTED = '"inputSchema"'  # in every page of a list
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
CLIENT = {
    "protocolVersion": LEGACY,
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


def message_in(text: str) -> dict:
    """The JSON-RPC answer in a body that is JSON or an event stream."""
    if text.lstrip().startswith("{"):
        whole: dict = json.loads(text)
        return whole
    for line in text.splitlines():
        if line.startswith("data:") and '"jsonrpc"' in line:
            message: dict = json.loads(line[5:])
            if "result" in message or "error" in message:
                return message
    raise ValueError(f"no JSON-RPC answer in {text[:200]!r}")


def get_status(port: int, path: str, timeout: float = 2.0) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@dataclass(frozen=True)
class Dialect:
    """How a row is spoken to."""

    version: str = MODERN
    tool: str = "echo"
    argument: str = "text"  # what the tool is to say again
    session: bool = False
    path: str = "/mcp"
    authorization: str | None = None

    @property
    def is_modern(self) -> bool:
        return self.version == MODERN


ECHO = Dialect()


@dataclass
class Endpoint:
    """One MCP endpoint on loopback, spoken to in one dialect."""

    port: int
    dialect: Dialect
    timeout: float = 60.0
    sessions: list[str] = field(default_factory=list)

    def headers(self, method: str, name: str | None, session: str | None) -> dict[str, str]:
        made = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": self.dialect.version,
        }
        if self.dialect.is_modern:
            made["Mcp-Method"] = method
            if name:
                made["Mcp-Name"] = name
        if session:
            made["Mcp-Session-Id"] = session
        if self.dialect.authorization:
            made["Authorization"] = self.dialect.authorization
        return made

    def post(self, message: dict, headers: dict[str, str]) -> tuple[http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            connection.request("POST", self.dialect.path, json.dumps(message), headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            if response.status not in (200, 202):
                raise RuntimeError(f"{message['method']} got {response.status}: {text[:200]}")
            return response.headers, text
        finally:
            connection.close()

    def initialize(self) -> str | None:
        headers = self.headers("initialize", None, None)
        del headers["MCP-Protocol-Version"]
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}
        answered, text = self.post(asked, headers)
        if "result" not in message_in(text):
            raise RuntimeError(f"initialize was answered with {text[:200]}")
        session = answered.get("Mcp-Session-Id")
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self.post(told, self.headers("notifications/initialized", None, session))
        return session

    def session(self, number: int) -> str | None:
        """Sessions are opened once and used again; each connection has its own."""
        if not self.dialect.session:
            return None
        while len(self.sessions) <= number:
            made = self.initialize()
            if made is None:
                raise RuntimeError("initialize gave no session id")
            self.sessions.append(made)
        return self.sessions[number]

    def request(self, method: str, params: dict) -> dict:
        if self.dialect.is_modern:
            params = {**params, "_meta": META}
        headers = self.headers(method, params.get("name"), self.session(0))
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        answer = message_in(self.post(message, headers)[1])
        if "result" not in answer:
            raise RuntimeError(f"{method} was answered with {json.dumps(answer)[:200]}")
        result: dict = answer["result"]
        return result

    def probe(self) -> None:
        """One call that must come back from the far end."""
        asked = {"name": self.dialect.tool, "arguments": {self.dialect.argument: "probe"}}
        result = self.request("tools/call", asked)
        if "E:probe" not in json.dumps(result):
            raise RuntimeError(f"a call was answered with {json.dumps(result)[:200]}")

    def list_pages(self) -> tuple[list[str], list[str | None]]:
        """All tool names, and the cursor of each page (one page: `[None]`)."""
        names: list[str] = []
        cursors: list[str | None] = [None]
        while True:
            result = self.request("tools/list", {"cursor": cursors[-1]} if cursors[-1] else {})
            names += [tool["name"] for tool in result["tools"]]
            if not result.get("nextCursor"):
                return names, cursors
            cursors.append(result["nextCursor"])

    def template(self, method: str, params: dict, session: str | None) -> bytes:
        if self.dialect.is_modern:
            params = {**params, "_meta": META}
        message = {"jsonrpc": "2.0", "id": "id", "method": method, "params": params}
        text = json.dumps(message, separators=(",", ":"))
        body = text.replace('"id":"id"', f'"id":{REQUEST_ID}', 1).encode()
        headers = self.headers(method, params.get("name"), session)
        headers |= {"Host": f"127.0.0.1:{self.port}", "Content-Length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.dialect.path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    def call_templates(self, connections: int) -> list[bytes]:
        arguments = {self.dialect.argument: f"ping-{REQUEST_ID}"}
        params = {"name": self.dialect.tool, "arguments": arguments}
        count = connections if self.dialect.session else 1
        return [self.template("tools/call", params, self.session(i)) for i in range(count)]

    def list_template(self, cursor: str | None) -> bytes:
        params = {"cursor": cursor} if cursor else {}
        return self.template("tools/list", params, self.session(0))
