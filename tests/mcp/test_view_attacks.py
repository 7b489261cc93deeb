"""Attacks on a view: hidden entries cannot be read, completed, subscribed or named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER
from dragoman.core.tool import (
    COMPLETION,
    DEFAULT_TRAITS,
    PROMPT,
    RESOURCE,
    SUBSCRIPTION,
    TEMPLATE,
    TOOL,
    Tool,
)
from dragoman.core.tool_filter import EVERYTHING, View

pytestmark = pytest.mark.promise("F3")
PUB = View(("pub.*",))


class Server:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []

    async def run(self, call: Call) -> Result:
        self.asked.append(call.tool.remote_name)
        return Result()


def hub_of(*servers: tuple[str, str, str]) -> tuple[Hub, dict[str, Server]]:
    """A hub in front of servers: whose, of which kind, and the name or address."""
    hub, made = (
        build_permissive_hub(Catalog(review=admit_all), Bus(), []),
        {name: Server(name) for name, _, _ in servers},
    )
    for server in made:
        for kind in hub.catalogs:
            offered = [
                Tool(
                    name=f"{server}.{name}", alias=name, remote_name=name, kind=kind,
                    target=made[server],
                )
                for whose, what, name in servers
                if (whose, what) == (server, kind)
            ]  # fmt: skip
            hub.catalogs[kind].offer(server, offered)
    return hub, made


async def refused(hub: Hub, kind: str, name: str, view: View) -> str:
    with pytest.raises(NotFound) as refusal:
        arguments: dict[str, Any] = {"follow": True} if kind == SUBSCRIPTION else {}
        await call_tool(hub, OWNER, name, arguments, kind=kind, door="test", view=view)
    return str(refusal.value)


@pytest.mark.parametrize("kind", [RESOURCE, SUBSCRIPTION])
async def test_uri_resembling_a_view_name_does_not_leave_the_view(
    kind: str,
) -> None:
    hub, servers = hub_of(("pub", TOOL, "t"), ("hidden", TEMPLATE, "{+any}"))
    await refused(hub, kind, "pub.etc/passwd", PUB)
    await refused(hub, kind, "pub.x://secret", PUB)
    hub, servers = hub_of(("pub", TOOL, "t"), ("hidden", RESOURCE, "x://1"))
    await refused(hub, kind, "pub.x://1", PUB)
    assert servers["hidden"].asked == []


@pytest.mark.parametrize(("kind", "of"), [(RESOURCE, RESOURCE), (COMPLETION, TEMPLATE)])
async def test_server_cannot_enter_a_view_by_its_uris(kind: str, of: str) -> None:
    hub, servers = hub_of(("pub", TOOL, "t"), ("hidden", of, "pub.x://1"))
    await refused(hub, kind, "pub.x://1", PUB)
    assert hub.list_tools(OWNER, PUB, of) == []
    assert servers["hidden"].asked == []


@pytest.mark.parametrize("kind", [TOOL, PROMPT, RESOURCE])
async def test_ambiguity_error_does_not_name_hidden_entries(kind: str) -> None:
    hub, servers = hub_of(*((server, kind, "x:1") for server in ("pub", "hidden", "secret")))
    for view in (EVERYTHING, PUB):
        await call_tool(hub, OWNER, "x:1", {}, kind=kind, door="test", view=view)
    assert servers["pub"].asked == ["x:1", "x:1"] and servers["hidden"].asked == []
    hub.catalogs[kind].withdraw("pub")
    await refused(hub, kind, "x:1", EVERYTHING)
    assert "hidden" not in await refused(hub, kind, "x:1", View(("other.*",)))


async def test_view_may_select_by_uri() -> None:
    hub, servers = hub_of(
        ("files", RESOURCE, "file:///docs/a"),
        ("files", RESOURCE, "file:///etc/passwd"),
        ("files", TEMPLATE, "file:///{+path}"),
    )
    docs = View(("file:///docs/*",))
    for uri in ("file:///docs/a", "file:///docs/b"):
        await call_tool(hub, OWNER, uri, {}, kind=RESOURCE, door="test", view=docs)
    await refused(hub, RESOURCE, "file:///etc/passwd", docs)
    await refused(hub, RESOURCE, "file:///etc/shadow", docs)
    assert servers["files"].asked == ["file:///docs/a", "file:///docs/b"]
