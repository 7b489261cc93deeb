"""Values of `$env` in runs: steps use them, and no record, output, event or database has them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.workflows.run_rig import RunRig, ask, call, node, run_rig

from dragoman.app.build_workflows import StoredVersions
from dragoman.app.workflows_view import WorkflowsView
from dragoman.core.call import Call
from dragoman.core.errors import InvalidInput, WorkFailed
from dragoman.core.event_payloads import render_event
from dragoman.core.events import PreVerb, RunChanged, StepChanged, ToolCall
from dragoman.core.principal import OWNER
from dragoman.core.runs import COMPLETED, FAILED, WAITING
from dragoman.core.secret_rules import Author
from dragoman.workflows.authorship import set_author
from dragoman.workflows.folder import WorkflowFolder
from dragoman.workflows.loader import check_definition

pytestmark = pytest.mark.anyio
CANARY = "canary-7712-aws"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def set_variables(rig: RunRig, **variables: str) -> None:
    rig.app.parts.live.variables.update(variables)


def find_bytes(home: Path, text: str) -> list[str]:
    """Lists the files of the home that have the text."""
    files = [one for one in home.rglob("*") if one.is_file()]
    return [one.name for one in files if text.encode() in one.read_bytes()]


def observe(rig: RunRig) -> list[Any]:
    seen: list[Any] = []
    for kind in (RunChanged, StepChanged):
        rig.bus.observe(kind, seen.append, "a test")
    for shown in (PreVerb, ToolCall):
        rig.bus.observe(shown, lambda event: seen.append(render_event(event)), "a test")
    return seen


async def test_a_step_gets_the_value_and_nothing_keeps_it(short_tmp: Path) -> None:
    got: list[Any] = []

    def echo(one: Call) -> dict[str, Any]:
        got.append(one.arguments)
        return {"sent": dict(one.arguments), "plain": "${secret env:TOKEN}"}

    async with run_rig(short_tmp) as rig:
        seen = observe(rig)
        set_variables(rig, TOKEN=CANARY)
        rig.add("echo", echo)
        rig.add("ask", lambda one: ask(f"is it {CANARY}?") if one.answers is None else one.answers)
        rig.add("fail", _raise)
        await rig.define(
            "w",
            call("one", tool="echo", arguments={"auth": "Bearer {{ $env.TOKEN }}"}),
            call("two", "one", tool="echo",
                 arguments={"again": "{{ nodes.one.sent.auth }}", "not": "{{ nodes.one.plain }}"}),
            node("same", "transform", value="{{ $env.TOKEN == nodes.two.sent.again }}"),
            call("asked", "two", tool="ask", arguments={"x": "{{ $env.TOKEN }}"}),
            call("bad", "two", tool="fail", onError="continue",
                 arguments={"x": "{{ $env.TOKEN }}"}),
            output={"two": "{{ nodes.two }}", "token": "{{ $env.TOKEN }}"},
            env=["TOKEN"],
        )  # fmt: skip
        run = await rig.start("w")
        waiting = await rig.until(run.id, WAITING)
        await rig.until_idle()  # from here on it continues from the store
        shown = await WorkflowsView(rig.app.parts.workflows).get_run(OWNER, waiting.id)
        assert CANARY not in json.dumps(shown) and "is it ${secret env:TOKEN}?" in json.dumps(shown)
        await rig.service.answer(OWNER, run.id, "asked", {"choice": {"name": CANARY}})
        run = await rig.until(run.id)
        assert run.state == COMPLETED, run.problem
        # The steps had the value, also what came back from a server, and not what looked like it.
        assert got[0] == {"auth": f"Bearer {CANARY}"}
        assert got[1] == {"again": f"Bearer {CANARY}", "not": "${secret env:TOKEN}"}
        assert rig.stub.calls[-1].arguments["x"] == CANARY
        assert run.output["token"] == "${secret env:TOKEN}"
        steps = await rig.steps(run)
        assert CANARY not in repr((run, steps, seen)) and len(seen) > 8
        assert "refused ${secret env:TOKEN}" in steps["bad"].problem
        assert not find_bytes(short_tmp, CANARY)
    assert not find_bytes(short_tmp, CANARY)


def _raise(one: Call) -> Any:
    raise WorkFailed(f"the server refused {one.arguments['x']}")


NAMED: dict[str, dict[str, Any]] = {
    "tool.call": {"tool": "%s"},
    "wait": {"event": "%s", "timeout": "1s"},
    "workflow.run": {"workflow": "%s"},
    "agent.invoke": {"agentCardId": "%s", "message": "x"},
    "agent.dispatch": {"description": "x", "requiredSkills": ["%s"]},
}


@pytest.mark.parametrize("kind", NAMED)
def test_no_variable_names_what_is_called(kind: str) -> None:
    """Names are recorded, shown and logged."""
    text = json.dumps({"env": ["TOKEN"], "steps": [node("a", kind, **NAMED[kind])]})
    for value in ("{{ $env.TOKEN }}", "x.{{ $env.TOKEN | lower }}"):
        [problem] = check_definition(text.replace("%s", value), "w")
        assert '"$env.TOKEN" is a secret, and "' in problem.message
    assert not check_definition(text.replace("%s", "{{ $trigger.name }}"), "w")
    fine = call("a", arguments={"tool": "{{ $env.TOKEN }}", "event": ["{{ $env.TOKEN }}"]})
    assert not check_definition(json.dumps({"env": ["TOKEN"], "steps": [fine]}), "w")


async def test_a_value_that_another_step_returned_is_in_no_name(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dragoman")
    async with run_rig(short_tmp) as rig:
        assert rig.hub.startup is not None
        rig.hub.startup.settle()  # no server will have the tool
        seen = observe(rig)
        set_variables(rig, TOKEN=CANARY)
        rig.add("login", lambda one: {"said": one.arguments["token"]})
        said = "{{ nodes.login.said }}"
        after = {"dependsOn": ["login"], "onError": "continue"}
        await rig.define(
            "w",
            call("login", arguments={"token": "{{ $env.TOKEN }}"}),
            {**node("named", "tool.call", tool=f"x.{said}"), **after},
            {**node("asked", "agent.invoke", agentCardId=said, message="x"), **after},
            node("waits", "wait", "login", event=said, timeout="30m"),
            env=["TOKEN"],
        )
        run = await rig.start("w")
        run = await rig.until(run.id, WAITING)
        await rig.until_idle()
        shown = await WorkflowsView(rig.app.parts.workflows).get_run(OWNER, run.id)
        steps = {one["id"]: one for one in shown["steps"]}
        assert steps["named"]["tool"] == "x.${secret env:TOKEN}"
        assert 'there is no tool "x.${secret env:TOKEN}"' in steps["named"]["problem"]
        assert CANARY not in repr((shown, seen, caplog.text))
        assert not find_bytes(short_tmp, CANARY)
        await rig.service.cancel(OWNER, run.id)
        await rig.until(run.id)
        assert CANARY not in repr((await rig.steps(run), seen, caplog.text))
    assert not find_bytes(short_tmp, CANARY)


async def test_a_value_that_another_step_returned_carries_the_label(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        set_variables(rig, TOKEN=CANARY)
        rig.add("login", lambda one: {"said": one.arguments["token"]}, openWorldHint=True)
        rig.add("post", lambda one: {}, openWorldHint=True)
        login = call("login", arguments={"token": "{{ $env.TOKEN }}"})
        fine = call("post", "login", arguments={"text": "hello"})
        leak = call("leak", "login", tool="post",
                    arguments={"text": "{{ nodes.login.said }}"})  # fmt: skip
        await rig.define("plain", login, fine, env=["TOKEN"])
        run = await rig.run("plain")
        assert run.state == COMPLETED, run.problem
        await rig.define("leaking", login, leak, env=["TOKEN"])
        run = await rig.run("leaking")
        assert run.state == FAILED and "secret" in run.problem and rig.stub.count("post") == 1


async def test_a_definition_of_the_api_reads_only_what_is_set_aside(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        set_variables(rig, AWS_SECRET_ACCESS_KEY=CANARY, DRAGOMAN_AGENT_X="set-aside")
        parts = await rig.app.parts.workflows.require()
        steps = [node("a", "transform", value="{{ $env.%s }}")]
        text = json.dumps({"env": ["%s"], "steps": steps})
        parts.folder._check_reference = lambda reference, use: None  # as if it had been loaded
        parts.folder.write("bad", text % (("AWS_SECRET_ACCESS_KEY",) * 2), Author.API)
        run = await rig.run("bad")
        assert run.state == FAILED and "was written by the API" in run.problem
        parts.folder.write("good", text % (("DRAGOMAN_AGENT_X",) * 2), Author.API)
        run = await rig.run("good")
        assert run.output == {"a": "${secret env:DRAGOMAN_AGENT_X}"}
    assert not find_bytes(short_tmp, CANARY)


async def test_a_run_executes_no_other_definition_than_its_own(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        parts = await rig.app.parts.workflows.require()
        text = json.dumps({"steps": [node("a", "transform", value=1)]})
        parts.folder.write("w", text, Author.OWNER)
        run, runner = await rig.run("w"), parts.service._runner
        own = runner._compiled.pop(run.digest).workflow
        # As a writer of the database has left it.
        with pytest.raises(InvalidInput, match="the stored definition of run"):
            runner.find_workflow(run, own.source.replace("1", "2"))
        assert runner.find_workflow(run, own.source) == own


def test_a_shared_database_does_not_say_who_wrote_a_definition(tmp_path: Path) -> None:
    folder = WorkflowFolder(tmp_path / "workflows")
    own = json.dumps({"env": ["AWS"], "steps": [node("a", "transform", value=1)]})
    changed = own.replace("AWS", "AWS_OTHER")
    folder.write("w", own, Author.OWNER)
    shared = StoredVersions(folder, True)
    assert shared.parse("w", own).author is Author.OWNER  # it was a file here
    with pytest.raises(InvalidInput, match='"w" was written in a shared database'):
        shared.parse("w", changed)
    aside = shared.parse("w", own.replace("AWS", "DRAGOMAN_AGENT_X"))
    assert aside.author is Author.STORED
    # The database of the home is the owner's, like the files beside it, but for what is marked.
    private = StoredVersions(folder, False)
    assert private.parse("w", changed).author is Author.OWNER
    with pytest.raises(InvalidInput, match="was written by the API"):
        private.parse("w", set_author(changed, Author.API))
