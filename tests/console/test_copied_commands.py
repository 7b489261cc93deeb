"""Commands to copy: a shell takes the names that others chose as words, whatever they contain."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from tests.console.browser import BrowserTab
from tests.live.module_hub import run_module_hub

NAMES = [
    "mcp_files_read", "files.read/all", "x; touch ran", "$(touch ran)", "`touch ran`", "a'b\"c",
    "a\ntouch ran\n", "a b", "x (1)", "#x", "~", "*", "a|b&c>d", "\\", "é", "-rf", "",
]  # fmt: skip


@pytest.mark.promise("U7")
def test_names_are_quoted_in_commands_to_copy(open_tab: Callable[..., BrowserTab]) -> None:
    with run_module_hub([]) as hub:
        tab = open_tab(hub).sign_in("/help")
        commands = tab.page.evaluate(
            """async (names) => {
              const base = document.querySelector('meta[name="base"]').content;
              const { buildCurl, buildShell } = await import(`${base}/snippets.js`);
              const hub = "http://hub";
              return names.map((name) => [buildShell(name, { said: name }),
                buildCurl(hub, name, { said: name }), buildCurl(hub, "x", {}, `${name}.`)]);
            }""",
            NAMES,
        )
        tab.page.goto("about:blank")  # before the hub stops
        for name, (command, *curls) in zip(NAMES, commands, strict=True):
            *words, given = shlex.split(command)
            assert words == ["dragoman", "call", name], command
            assert json.loads(given) == {"said": name}
            for kind, curl in zip(("tools", "agents"), curls, strict=True):
                words = shlex.split(curl)
                path = f"{kind}/{name}{'.' if kind == 'agents' else ''}"
                assert unquote(words[2]) == f"http://hub/api/{path}/call", curl
            assert json.loads(shlex.split(curls[0])[-1]) == {"arguments": {"said": name}}
