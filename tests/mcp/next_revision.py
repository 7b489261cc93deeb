"""Checks a hub that has one more MCP revision, added as CONTRIBUTING.md says, with clients and
servers of that one and of the previous one. A program: it edits a module before the first import.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
import tempfile
from pathlib import Path

NEXT = "2099-12-31"
MODULE = "dragoman.mcp.protocol.revisions"
EDITS = {r"^(NAMES = \(.*)\)$": rf'\1, "{NEXT}")', r"^(R2024, .*) = ORDERED": r"\1, LAST = ORDERED"}


def load_edited() -> None:
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    for old, new in EDITS.items():
        source, count = re.subn(old, new, source, flags=re.MULTILINE)
        assert count == 1, old
    sys.modules[MODULE] = module = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), module.__dict__)


async def check_server(previous: str) -> None:
    """Clients of both revisions, over HTTP."""
    from tests.web.mcp_http_fixture import call, modern, request, run_mcp_rig

    async with run_mcp_rig() as here:
        for version in (NEXT, previous):
            answer = await here.send("POST", **modern(call(), version))
            assert (await answer.json())["result"]["resultType"] == "complete"
            assert here.work.calls[-1].revision == version
            answer = await here.send("POST", **modern(request(1, "server/discover"), version))
            found = (await answer.json())["result"]
            assert found["supportedVersions"][-2:] == [previous, NEXT]
            assert "extensions" in found["capabilities"]
            answer = await here.send("POST", **modern(request(1, "ping"), version))
            assert version in (await answer.json())["error"]["message"]
        mixed = modern(call(), NEXT, Mcp_Protocol_Version=previous)
        answer = await here.send("POST", **mixed)
        assert (await answer.json())["error"]["code"] == -32020
        await here.session("2025-11-25")


async def check_client(folder: Path, version: str, refuses: bool) -> None:
    """A server that speaks only `version`, and either refuses others or answers with its own."""
    from tests.mcp.http_stub_server import Request, modern, serve_stub
    from tests.mcp.upstream_hub import http, run_hub

    def handle(request: Request) -> None:
        asked = request.headers["mcp-protocol-version"]
        is_discover = request.asked == "server/discover"
        if asked != version and (refuses or not is_discover):
            request.fail(-32022, data={"supported": [version], "requested": asked})
        elif not modern(request, [{"name": "t", "inputSchema": {"type": "object"}}], version):
            request.result({"resultType": "complete", "content": []})

    async with run_hub(folder) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        assert upstream.connection.version == version
        await world.call("s.t")
        for sent in (*server.sent("tools/list"), *server.sent("tools/call")):
            meta = sent.message["params"]["_meta"]
            named = meta["io.modelcontextprotocol/protocolVersion"]
            assert named == sent.headers["mcp-protocol-version"] == version


async def main() -> None:
    from dragoman.mcp.protocol.revisions import NAMES

    previous = NAMES[-2]
    await check_server(previous)
    with tempfile.TemporaryDirectory() as folder:
        await check_client(Path(folder), NEXT, refuses=True)
        await check_client(Path(folder), previous, refuses=True)
        await check_client(Path(folder), previous, refuses=False)


if __name__ == "__main__":
    load_edited()
    asyncio.run(main())
