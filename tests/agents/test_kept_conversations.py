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


async def test_many_conversations_are_written_after_their_answers(short_tmp: Path) -> None:
    async with open_rig(short_tmp) as rig:
        await rig.write("echo", '[[script]]\nsay = "{message}"\n')
        answers = await asyncio.gather(
            *(rig.ask("echo", f"m{n}", message=MessageOrigin(context=f"c{n}")) for n in range(50))
        )
        assert answers == [f"m{n}" for n in range(50)]
        store = rig.app.parts.stores.conversations
        async with asyncio.timeout(10):
            while store._pending:
                await asyncio.sleep(0.005)
        assert len(store._known) == 50
