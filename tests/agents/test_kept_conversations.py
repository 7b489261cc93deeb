"""Conversations with model agents survive a restart: for their principal, with their labels."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agents.agent_rig import open_rig
from tests.peers.scripted_model import ScriptedModel, running_model, say, use
from tests.tools.small_http import serve_http

from dragoman.core.call import MessageOrigin
from dragoman.core.conversations import META
from dragoman.core.errors import InvalidInput
from dragoman.core.principal import Principal

pytestmark = pytest.mark.promise("T1", "G1")

CONFIG = "[tools]\nallow_private = true\n"
MANIFEST = """
[model]
model = "m"
base_url = "{url}"
[capabilities]
tools = ["web_fetch", "shell_exec"]
network = ["*"]
shell = ["echo *"]
"""
ANN, BOB = Principal("key", "ann"), Principal("key", "bob")


def list_roles(model: ScriptedModel) -> list[str]:
    return [one["role"] for one in model.requests[-1]["messages"]]


async def test_conversation_continues_after_a_restart_with_its_labels(short_tmp: Path) -> None:
    with running_model() as model:
        text = MANIFEST.replace("{url}", model.url)
        named = MessageOrigin(context="c-1")
        async with (
            serve_http(lambda asked: (200, {}, b"foreign text")) as web,
            open_rig(short_tmp, CONFIG) as rig,
        ):
            file = await rig.write("helper", text)
            model.answers += [use(("web_fetch", {"url": web.url})), say("read"), say("hello")]
            await rig.ask("helper", "read it", ANN, message=named)
            first = await rig.send("helper", "hi", ANN, session="")
            context = first.extra["_meta"][META]
            file.write_text(f"{text}# changed\n", encoding="utf-8")
            rig.made.check()  # a changed manifest loses no conversation either
            model.answers += [say("again")]
            await rig.call(ANN, "helper.message", {"message": "x", "context": context}, session="")
            assert list_roles(model) == ["user", "assistant", "user"]

        async with open_rig(short_tmp, CONFIG) as rig:
            model.answers += [say("third"), use(("shell_exec", {"command": "echo x"})), say("end")]
            await rig.call(ANN, "helper.message", {"message": "y", "context": context}, session="")
            assert list_roles(model) == ["user", "assistant"] * 2 + ["user"]
            await rig.ask("helper", "run it", ANN, message=named)
            seen = model.requests[-1]["messages"]
            assert "foreign text" in str(seen[2]["content"])
            assert "taint rule external_network -> exec" in str(seen[-1]["content"])
            with pytest.raises(InvalidInput, match="unknown conversation"):
                asked = {"message": "z", "context": context}
                await rig.call(BOB, "helper.message", asked, session="")
            model.answers += [say("new to me")]
            await rig.ask("helper", "hi", BOB, message=named)
            assert list_roles(model) == ["user"]


async def test_fifty_agents_at_once(short_tmp: Path) -> None:
    with running_model() as model:
        model.rules += [(f"message {n} ", use(("system_time", {}), text=f"{n}")) for n in range(50)]
        model.rules.append(("timeZone", say("done")))
        text = (
            f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n[capabilities]\ntools = ["*_time"]\n'
        )
        async with open_rig(short_tmp) as rig:
            for n in range(50):
                (short_tmp / f"agents/a{n}").mkdir(parents=True)
                (short_tmp / f"agents/a{n}/agent.toml").write_text(text, encoding="utf-8")
            await rig.write("a0", text)
            asked = (rig.ask(f"a{n}", f"message {n} please", session=f"s{n}") for n in range(50))
            assert await asyncio.gather(*asked) == ["done"] * 50
            assert len(model.requests) == 100
            last = [one["messages"] for one in model.requests if len(one["messages"]) == 3]
            said = {(m[0]["content"], m[1]["content"]) for m in last}
            assert said == {(f"message {n} please", f"{n}") for n in range(50)}
            store = rig.app.parts.stores.conversations
            async with asyncio.timeout(10):
                while store._pending:  # they are written after their answers
                    await asyncio.sleep(0.005)
            assert {key.agent for key in store._known} == {f"a{n}" for n in range(50)}
