"""A whole hub in this process, without its listeners, for tests of agents with a manifest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman.app.app import App
from dragoman.app.build import build_app
from dragoman.config import load
from dragoman.core.call import Result
from dragoman.core.hub import CallOptions
from dragoman.core.local_agents import AgentProfile, build_agent_principal
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool_filter import EVERYTHING


class AgentRig:
    def __init__(self, app: App) -> None:
        self.app = app
        self.home = app.parts.home
        self.hub = app.parts.guards.hub
        self.made = app.parts.manifests
        self.agents = app.parts.agents.local.by_name

    async def write(self, name: str, text: str) -> Path:
        """Writes a manifest and has the hub load it."""
        file = self.home / "agents" / name / "agent.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        self.made.check()
        assert not self.made.failures, self.made.failures
        await self.app.parts.tools.follow()
        return file

    def profile(self, name: str) -> AgentProfile:
        found = self.made.find_by_name(name)
        assert found is not None
        return found

    async def spawn(self, parent: str, **manifest: Any) -> AgentProfile:
        return await self.made.spawn(self.profile(parent), manifest)

    async def ask(
        self, agent: str, text: str = "hi", who: Principal = OWNER, /, **options: Any
    ) -> str:
        return read_text(await self.send(agent, text, who, **options))

    async def send(
        self, agent: str, text: str = "hi", who: Principal = OWNER, /, **options: Any
    ) -> Result:
        return await self.call(who, f"{agent}.message", {"message": text}, **options)

    async def use(self, agent: str, tool: str, **arguments: Any) -> Result:
        """Calls a tool as an agent, in a chain of its own."""
        return await self.call(build_agent_principal(self.profile(agent)), tool, arguments)

    async def call(
        self, who: Principal, tool: str, arguments: dict[str, Any], **options: Any
    ) -> Result:
        how = CallOptions(door="test", view=EVERYTHING, **options)
        return (await self.hub.call(who, tool, arguments, how))[1]


def read_text(result: Result) -> str:
    return str(result.content[0]["text"])


@asynccontextmanager
async def open_rig(home: Path, config: str = "") -> AsyncIterator[AgentRig]:
    home.mkdir(mode=0o700, exist_ok=True)
    home.chmod(0o700)
    (home / "config.toml").write_text(config or "# nothing\n", encoding="utf-8")
    app = build_app(home, load(home / "config.toml"), "mcp")
    app.parts.guards.startup.settle()  # it has no servers to wait for
    try:
        yield AgentRig(app)
    finally:
        await app.stop()
