"""Conversations with model agents survive a restart: for their principal, with their labels."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.agents.agent_rig import open_rig
from tests.peers.scripted_model import ScriptedModel, running_model, say, use
from tests.tools.small_http import serve_http

from dragoman.core.call import MessageOrigin
from dragoman.core.conversations import META
from dragoman.core.errors import InvalidInput, StorageFailed, is_own_trouble
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
PLAIN = """
[model]
model = "m"
base_url = "{url}"
[capabilities]
tools = ["file_read"]
"""
NAMED = MessageOrigin(context="c-1")
ANN, BOB = Principal("key", "ann"), Principal("key", "bob")


def list_roles(model: ScriptedModel) -> list[str]:
    return [one["role"] for one in model.requests[-1]["messages"]]


def list_texts(model: ScriptedModel) -> list[str]:
    return [str(one["content"]) for one in model.requests[-1]["messages"]]


async def begin_conversation(home: Path, model: ScriptedModel) -> None:
    """Has a hub with a conversation, and stops it."""
    async with open_rig(home) as rig:
        await rig.write("helper", PLAIN.replace("{url}", model.url))
        model.answers += [say("Nice to meet you")]
        await rig.ask("helper", "My name is Ada", ANN, message=NAMED)


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


async def test_a_call_that_is_cancelled_while_its_conversation_is_loaded(short_tmp: Path) -> None:
    with running_model() as model:
        await begin_conversation(short_tmp, model)
        async with open_rig(short_tmp) as rig:
            store = rig.app.parts.stores.conversations
            held = threading.Event()
            holding = store._submit(held.wait)  # the disk is slow
            asking = asyncio.create_task(rig.ask("helper", "hello?", ANN, message=NAMED))
            assert store._threads is not None
            async with asyncio.timeout(60):
                while not store._threads._work_queue.qsize():
                    await asyncio.sleep(0.005)
            asking.cancel()
            await asyncio.wait([asking])
            held.set()
            await holding
            model.answers += [say("Ada")]
            await rig.ask("helper", "What is my name?", ANN, message=NAMED)
            assert list_texts(model) == ["My name is Ada", "Nice to meet you", "What is my name?"]


async def test_a_conversation_that_cannot_be_read_is_not_begun_again(short_tmp: Path) -> None:
    with running_model() as model:
        await begin_conversation(short_tmp, model)
        file, aside = short_tmp / "agents.db", short_tmp / "agents.aside"
        async with open_rig(short_tmp) as rig:
            with closing(sqlite3.connect(file, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # another process writes
                model.answers += [say("Ada")]
                await rig.ask("helper", "What is my name?", ANN, message=NAMED)
                assert "My name is Ada" in list_texts(model)
        async with open_rig(short_tmp) as rig:
            file.rename(aside)
            file.mkdir()
            count = len(model.requests)
            named_by_id = {META: "ctx-0123456789abcdef"}
            for how in ({"message": NAMED}, {"meta": named_by_id}):
                with pytest.raises(StorageFailed, match="cannot be read") as caught:
                    await rig.ask("helper", "And now?", ANN, **how)
                assert is_own_trouble(caught.value)  # so that work is put back, and does not fail
            assert len(model.requests) == count
            file.rmdir()
            aside.rename(file)
            model.answers += [say("still Ada")]
            await rig.ask("helper", "And now?", ANN, message=NAMED)
            assert list_texts(model)[::2] == ["My name is Ada", "What is my name?", "And now?"]


async def test_long_results_do_not_end_a_conversation(short_tmp: Path) -> None:
    with running_model() as model:
        async with open_rig(short_tmp) as rig:
            await rig.write("helper", PLAIN.replace("{url}", model.url))
            (rig.profile("helper").workspace / "big.txt").write_text("word " * 9_800)
            many = [("file_read", {"path": "big.txt"})] * 24
            model.answers += [say("Nice to meet you"), use(*many), say("I have read them")]
            await rig.ask("helper", "My name is Ada", ANN, message=NAMED)
            await rig.ask("helper", "Read the files", ANN, message=NAMED)
        async with open_rig(short_tmp) as rig:
            model.answers += [say("words")]
            await rig.ask("helper", "What did you read?", ANN, message=NAMED)
            seen = list_texts(model)
            assert seen[:3] == ["My name is Ada", "Nice to meet you", "Read the files"]
            assert seen[-2:] == ["I have read them", "What did you read?"]


async def test_turn_that_is_answered_while_another_waits_is_kept(short_tmp: Path) -> None:
    """A question suspends the run of a conversation, not the conversation."""
    async with open_rig(short_tmp) as rig:
        await rig.write("helper", '[model]\nmodel = "m"\nprovider = "client"\n')
        how = {"message": NAMED, "features": {"sampling": {}}}
        first = await rig.send("helper", "one", ANN, **how)
        second = await rig.send("helper", "two", ANN, **how)
        for asked, text, answer in ((second, "two", "2"), (first, "one", "1")):
            content = {"type": "text", "text": answer}
            reply = {"role": "assistant", "model": "m", "content": content}
            given = dict.fromkeys(asked.questions or (), reply)
            await rig.send("helper", text, ANN, answers=given, handle=asked.handle, **how)
        third = await rig.send("helper", "three", ANN, **how)
        (question,) = (third.questions or {}).values()
        contents = [one["content"] for one in question.body["messages"]]
        assert [one["text"] for one in contents] == ["two", "2", "one", "1", "three"]


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
            await store.flush()  # they are written after their answers
            assert store._known is not None
            assert {key.agent for key in store._known["conversations"]} == {
                f"a{n}" for n in range(50)
            }
