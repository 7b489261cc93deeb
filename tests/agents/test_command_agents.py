"""Agents that are programs: the answers, questions, artifacts and errors of function agents."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.test_sandbox import TOOLS_PATH, needs_sandbox
from tests.peers.process import ROOT, list_marked, wait_until_gone

from dragoman.agents.command import CommandAgent
from dragoman.core.call import ABSENT, Artifact, Call, MessageOrigin, Progress, Result, Update
from dragoman.core.errors import (
    BadReply,
    Declined,
    InvalidInput,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool import AgentFacts, accept_anything
from dragoman.core.trace import new_trace
from dragoman.processes.command_runner import CommandRunner, CommandSpec, RunnerLimits

EXAMPLES = ROOT / "examples" / "command"
HEAD = """
import json, sys
message = json.loads(sys.stdin.readline())
def write(**line): print(json.dumps(line), flush=True)
"""


class Programs:
    def __init__(self, home: Path) -> None:
        self.mark = f"test-{os.getpid()}-{home.name}"
        lookup = {"PATH": TOOLS_PATH, "HOME": str(home / "ada")}
        self.runner = CommandRunner(home, self.mark, lookup, RunnerLimits(stop_seconds=0.2))
        self.updates: list[Update] = []

    def agent(self, *command: str, modes: tuple[str, ...] = (), **settings: Any) -> CommandAgent:
        facts = AgentFacts(name="own", description="An agent.", input_modes=modes or ("*/*",))
        settings = {"sandbox": "off", **settings}
        spec = CommandSpec(name="own", command=command, **settings)
        return CommandAgent(facts, spec, self.runner, "dragoman_agent_", accept_anything)

    def python(self, code: str, **settings: Any) -> CommandAgent:
        return self.agent(sys.executable, "-c", HEAD + code, **settings)

    async def send(self, agent: CommandAgent, text: str = "hi", **options: Any) -> Result:
        arguments = {"message": text, **options.pop("arguments", {})}
        settings = {"principal": OWNER, "session": "s", **options}
        call = Call(
            tool=agent.tool,
            requested_name="own",
            arguments=arguments,
            trace=new_trace(),
            door="mcp-http",
            updates=self.updates.append,
            **settings,
        )
        return await agent.run(call)


@pytest.fixture
async def programs(short_tmp: Path) -> AsyncIterator[Programs]:
    made = Programs(short_tmp)
    yield made
    await asyncio.to_thread(wait_until_gone, list_marked(made.mark))


def text_of(result: Result) -> str:
    return "".join(block["text"] for block in result.content if block["type"] == "text")


# --- what it is sent ------------------------------------------------------------------------------


async def test_message_has_text_parts_and_origin(programs: Programs) -> None:
    agent = programs.python("write(type='result', content=message)")
    files = [{"name": "a.bin", "mediaType": "application/pdf", "data": "AAEC"}]
    result = await programs.send(agent, "h\u00e9", arguments={"files": files, "data": {"n": 1}})
    found = result.structured
    assert found["type"] == "message" and found["text"] == "h\u00e9" and found["state"] is None
    assert [part["type"] for part in found["parts"]] == ["text", "data", "resource"]
    assert found["caller"] == "owner:owner" and found["turn"] == 1
    origin = MessageOrigin(
        context="c1", task="t1", id="m1", skill="sell", turn=2, metadata={"k": "v"}
    )
    found = (await programs.send(agent, message=origin)).structured
    assert (found["context"], found["task"], found["message_id"]) == ("c1", "t1", "m1")
    assert (found["skill"], found["turn"], found["metadata"]) == ("sell", 2, {"k": "v"})


async def test_unsupported_input_of_a_command_agent_is_refused(programs: Programs) -> None:
    agent = programs.agent("cat", modes=("text/plain",))
    with pytest.raises(InvalidInput, match="it accepts text/plain"):
        await programs.send(agent, arguments={"data": {"n": 1}})


# --- what it answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo hello; echo; echo 'two  words'", "hello\n\ntwo  words"),
        ("printf 'no newline'", "no newline"),
        ('echo \'{"type": "report", "n": 1}\'', '{"type": "report", "n": 1}'),
        ("echo '{broken'", "{broken"),
        ("printf 'dos\\r\\nlines\\r\\n'", "dos\nlines"),
        ("printf 'bad \\377 byte'", "bad \ufffd byte"),
        (":", ""),
    ],
)
async def test_plain_output_is_the_answer(programs: Programs, script: str, text: str) -> None:
    assert text_of(await programs.send(programs.agent("sh", "-c", script))) == text


async def test_text_lines_and_plain_lines_are_joined(programs: Programs) -> None:
    agent = programs.python(
        "print('a'); write(type='text', text='b'); write(type='text', text='c')"
    )
    assert text_of(await programs.send(agent)) == "a\nbc"


async def test_results_are_those_of_function_agents(programs: Programs) -> None:
    data = await programs.send(programs.python("write(type='result', content={'n': 1})"))
    assert data.structured == {"n": 1} and data.artifacts and not data.failed
    failed = await programs.send(
        programs.python("write(type='result', content='no', failed=True, direct=True)")
    )
    assert failed.failed and failed.direct and text_of(failed) == "no"
    image = "[{'type': 'image', 'data': 'AA==', 'mimeType': 'image/png'}]"
    blocks = await programs.send(programs.python(f"write(type='result', content={image})"))
    assert blocks.content[0]["type"] == "image" and blocks.structured is ABSENT
    # A result without content keeps the text before it.
    kept = await programs.send(programs.python("print('text'); write(type='result', state={})"))
    assert text_of(kept) == "text"


async def test_progress_and_artifacts_are_sent(programs: Programs) -> None:
    agent = programs.python(
        "write(type='progress', message='looking')\n"
        "write(type='artifact', id='a', name='log', content='one', last=False)\n"
        "write(type='artifact', id='a', content=[{'type': 'text', 'text': 'two'}], append=True)\n"
        "print('done')"
    )
    assert text_of(await programs.send(agent)) == "done"
    said, first, second = programs.updates
    assert isinstance(said, Progress) and said.message == "looking"
    assert isinstance(first, Artifact) and isinstance(second, Artifact)
    assert (first.id, first.name, first.last, first.append) == ("a", "log", False, False)
    assert (second.append, second.last, second.content[0]["text"]) == (True, True, "two")


async def test_progress_flood_is_paced(programs: Programs) -> None:
    agent = programs.python(
        "for n in range(100000): write(type='progress', message=str(n))", seconds=1.0
    )
    with pytest.raises(TimedOut):
        await programs.send(agent)
    assert 0 < len(programs.updates) < 20_000


# --- how it fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("write(type='error', message='no stock')", WorkFailed, "own\" failed: no stock"),
        ("write(type='error', message='no stock'); sys.exit(3)", WorkFailed, "failed: no stock$"),
        ("write(type='decline', message='not today')", Declined, "declined: not today"),
        ("sys.exit('it broke')", WorkFailed, "status 1; last line of its stderr: it broke"),
        ("import os; os.abort()", WorkFailed, "terminated by signal SIGABRT"),
        ("write(type='ask')", BadReply, 'invalid answer: its line of type "ask" has no text'),
        ("write(type='ask', question='q', schema=[])", BadReply, "schema.*is not an object"),
        ("write(type='artifact', name='x')", BadReply, 'its artifact needs a "content"'),
        ("write(type='artifact', content=5)", BadReply, "invalid artifact: a int"),
        ("write(type='result', content=5)", WorkFailed, "returned an invalid answer: a int"),
        ("write(type='result', content='x', state='y' * 70000)", BadReply, "more than 65536"),
    ],
)  # fmt: skip
async def test_failures_name_the_agent_and_the_reason(
    programs: Programs, code: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as found:
        await programs.send(programs.python(code))
    assert 'agent "own"' in str(found.value)


async def test_hanging_and_missing_programs_are_reported(programs: Programs) -> None:
    with pytest.raises(TimedOut, match=r'agent "own" did not answer: .* 0\.5 s'):
        await programs.send(programs.agent("sleep", "600", seconds=0.5))
    with pytest.raises(Unreachable, match='agent "own" could not be run: the command "missing"'):
        await programs.send(programs.agent("missing"))


# --- questions and conversations ------------------------------------------------------------------

ASKS = """
if message['state'] is None:
    write(type='ask', question='which?', state={'first': message['text']})
else:
    write(type='result', content={'first': message['state']['first'], 'then': message['text']})
"""


def answer(text: str) -> dict[str, Any]:
    return {"reply": {"action": "accept", "content": {"reply": text}}}


async def test_answer_gets_a_new_process_with_the_state(programs: Programs) -> None:
    agent = programs.python(ASKS)
    asked = await programs.send(agent, "one", session="")  # a client without a session
    assert asked.questions is not None and asked.questions["reply"].text == "which?"
    done = await programs.send(agent, "one", session="", answers=answer("two"), handle=asked.handle)
    assert done.structured == {"first": "one", "then": "two"}
    other = await programs.send(agent, "x", session="", principal=Principal("key", "other"))
    assert other.questions is not None


async def test_turns_are_counted_for_each_answer(programs: Programs) -> None:
    agent = programs.python(
        "if message['turn'] < 3: write(type='ask', question=str(message['turn']), state=1)\n"
        "else: write(type='result', content=str(message['turn']))"
    )
    plain = programs.python("write(type='ask', question=str(message['turn']))")  # without a state
    first = await programs.send(agent, session="")
    second = await programs.send(agent, session="", answers=answer("a"), handle=first.handle)
    third = await programs.send(agent, session="", answers=answer("b"), handle=second.handle)
    assert first.questions and first.questions["reply"].text == "1"
    assert second.questions and second.questions["reply"].text == "2"
    assert text_of(third).startswith("3")
    asked = await programs.send(plain)
    for turn in ("2", "3"):
        asked = await programs.send(plain, answers=answer("a"), handle=asked.handle)
        assert asked.questions and asked.questions["reply"].text == turn


async def test_messages_of_one_conversation_are_answered_in_their_order(
    programs: Programs, tmp_path: Path
) -> None:
    agent = programs.python(
        "import os, time\n"
        "state = message['state'] or ''\n"
        f"gate = {str(tmp_path / 'gate')!r}\n"
        "if message['text'] == 'a':\n"
        "    os.mkfifo(gate + '1'); os.rename(gate + '1', gate)\n"
        "    open(gate).read()\n"
        "write(type='result', content=state, state=state + message['text'])"
    )
    one = MessageOrigin(context="one")
    await programs.send(agent, "-", message=one)
    tasks = [asyncio.ensure_future(programs.send(agent, text, message=one)) for text in "abc"]
    async with asyncio.timeout(60):
        while not (tmp_path / "gate").exists():
            await asyncio.sleep(0.005)
    other = await programs.send(agent, "x", message=MessageOrigin(context="two"))
    assert text_of(other) == "" and not any(task.done() for task in tasks)
    (tmp_path / "gate").write_text("go")
    assert [text_of(await task) for task in tasks] == ["-", "-a", "-ab"]
    assert not agent._queues


async def test_ended_program_agent_answers_its_callers(programs: Programs) -> None:
    agent = programs.python("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    waiting = asyncio.ensure_future(programs.send(agent))
    async with asyncio.timeout(60):
        while not list_marked(programs.mark):
            await asyncio.sleep(0.005)
    agent.end()
    for work in (waiting, programs.send(agent)):
        with pytest.raises(WorkFailed, match="was ended before it answered"):
            await asyncio.wait_for(work, 60)


async def test_state_belongs_to_one_conversation_over_a2a(programs: Programs) -> None:
    agent = programs.python(ASKS)
    first, second = MessageOrigin(context="c1"), MessageOrigin(context="c2")
    await programs.send(agent, "one", message=first)
    await programs.send(agent, "uno", message=second)
    done = await programs.send(agent, "two", message=first)
    assert done.structured == {"first": "one", "then": "two"}
    stranger = await programs.send(
        agent, "three", message=first, principal=Principal("key", "other")
    )
    assert stranger.questions is not None, "another principal's conversation of the same name"


async def test_state_is_kept_until_it_is_forgotten(programs: Programs) -> None:
    agent = programs.python(
        "count = (message['state'] or 0) + 1\n"
        "state = None if message['text'] == 'end' else count\n"
        "write(type='result', content=str(count), state=state)"
    )
    texts = [text_of(await programs.send(agent, text)) for text in ("a", "b", "end", "c")]
    assert texts == ["1", "2", "3", "1"]
    named = await programs.send(agent, "a", session="", arguments={"context": "new"})
    id = named.extra["_meta"]["dragoman.hub/context"]
    assert id in text_of(named)  # a client without a session needs it
    again = await programs.send(agent, "b", session="", arguments={"context": id})
    assert text_of(again).startswith("2")


async def test_unanswered_question_of_a_program_is_declined(programs: Programs) -> None:
    agent = programs.python(ASKS)
    asked = await programs.send(agent, "one")
    with pytest.raises(Declined, match="its question was not answered"):
        await programs.send(
            agent, "one", answers={"reply": {"action": "decline"}}, handle=asked.handle
        )


async def test_login_is_a_question_with_a_url(programs: Programs) -> None:
    agent = programs.python("write(type='login', message='log in', url='https://a.example/x')")
    asked = await programs.send(agent)
    assert asked.questions is not None
    assert asked.questions["auth"].body["url"] == "https://a.example/x"


# --- the sandbox and the examples -----------------------------------------------------------------


@needs_sandbox
async def test_configured_script_runs_in_its_sandbox(programs: Programs, short_tmp: Path) -> None:
    script = short_tmp / "mine" / "agent.py"
    script.parent.mkdir()
    script.write_text(HEAD + "open('note', 'w').write('x'); print(message['text'])")
    folder = str(script.parent)
    settings: dict[str, Any] = {"sandbox": "net", "grants_named_paths": True, "cwd": folder,
                                "readable": [folder]}  # fmt: skip
    command = (sys.executable, str(script))
    with pytest.raises(WorkFailed, match="Read-only file system"):  # a script and its folder
        await programs.send(programs.agent(*command, **settings))
    agent = programs.agent(*command, **settings, writable=[folder])
    assert text_of(await programs.send(agent, "hello")) == "hello"
    assert (script.parent / "note").exists()


async def test_examples_work_as_documented(programs: Programs) -> None:
    page = (ROOT / "docs" / "agents-command.md").read_text(encoding="utf-8")
    for file in ("count.sh", "shop.py"):
        assert (EXAMPLES / file).read_text(encoding="utf-8") in page
    count = programs.agent("sh", str(EXAMPLES / "count.sh"))
    assert text_of(await programs.send(count, "one two three")).strip() == "3"
    shop = programs.agent(sys.executable, str(EXAMPLES / "shop.py"))
    asked = await programs.send(shop, "apples")
    assert asked.questions is not None
    assert asked.questions["reply"].text == "How many apples shall it be?"
    done = await programs.send(shop, "apples", answers=answer("5"), handle=asked.handle)
    assert done.structured == {"ordered": "5 x apples"}
    assert [type(one) for one in programs.updates] == [Progress, Artifact]
    await programs.send(shop, "pears")
    with pytest.raises(Declined, match="that is not a number"):
        await programs.send(shop, "many")


async def test_documented_members_are_those_of_the_message(programs: Programs) -> None:
    page = (ROOT / "docs" / "agents-command.md").read_text(encoding="utf-8")
    table = page.partition("## The message")[2].partition("## Lines")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    found = await programs.send(programs.agent("cat"))
    assert set(json.loads(text_of(found))) == named
