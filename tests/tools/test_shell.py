"""`shell_exec`: granted commands, no shell, what a pattern does and does not cover."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from faults.tools_fuzz import WORDS, fuzz_command
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman.core.errors import HubError, InvalidInput, NotFound, TimedOut
from dragoman.core.local_agents import AgentProfile
from dragoman.tools.shell import (
    ShellLimits,
    ShellOutcome,
    is_granted_command,
    split_command,
)

pytestmark = pytest.mark.promise("T2")


class PlainRunner:
    """Runs programs without a sandbox, for tests of everything around it."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []

    async def run(
        self, agent: AgentProfile, argv: Sequence[str], timeout: float, limits: ShellLimits
    ) -> ShellOutcome:
        self.ran.append(list(argv))
        child = await asyncio.create_subprocess_exec(
            *argv,
            cwd=agent.workspace,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout):
                output, errors = await child.communicate()
        except TimeoutError:
            child.kill()
            await child.communicate()
            return ShellOutcome(-1, "", "", timed_out=True)
        most = limits.output_bytes
        is_cut = len(output) > most or len(errors) > most
        code = child.returncode or 0
        return ShellOutcome(code, output[:most].decode(), errors[:most].decode(), is_cut=is_cut)


@pytest.fixture
async def runner() -> PlainRunner:
    return PlainRunner()


@pytest.fixture
async def rig(tmp_path: Path, runner: PlainRunner) -> AsyncIterator[ToolRig]:
    made = ToolRig(tmp_path, "command_kilobytes = 1\ncommand_secs = 5\n", runner=runner)
    made.add_agent(
        made.build_profile("coder", shell=("echo *", "cat a.txt", "false", "seq *", "sleep *"))
    )
    yield made
    await made.close()


async def test_command_runs_in_the_workspace(rig: ToolRig, runner: PlainRunner) -> None:
    await rig.use("file_write", "coder", path="a.txt", content="hello\n")
    done = await rig.use("shell_exec", "coder", command="cat a.txt")
    assert read_text(done) == "hello\n" and read_object(done)["exitCode"] == 0
    listed = await rig.use("shell_exec", "coder", command=["echo", "a;b", "$HOME", "*", "`x`"])
    assert read_text(listed) == "a;b $HOME * `x`\n"
    assert runner.ran[-1] == ["echo", "a;b", "$HOME", "*", "`x`"]


async def test_failure_and_long_output_are_reported(rig: ToolRig) -> None:
    failed = await rig.use("shell_exec", "coder", command="false")
    assert failed.failed and read_text(failed) == "[exit code 1]"
    long = await rig.use("shell_exec", "coder", command="seq 100000")
    assert len(read_object(long)["stdout"]) == 1024 and not read_object(long)["complete"]
    with pytest.raises(TimedOut, match="longer than 1 s and was ended"):
        await rig.use("shell_exec", "coder", command="sleep 30", timeout_seconds=1)
    with pytest.raises(InvalidInput, match="5 s at most"):
        await rig.use("shell_exec", "coder", command="sleep 1", timeout_seconds=6)


@pytest.mark.parametrize(
    ("line", "syntax"),
    [
        ("echo a; rm b", "command list"),
        ("echo a | cat", "pipe"),
        ("echo a && echo b", "background"),
        ("echo a & ", "background"),
        ("echo a > b", "redirection"),
        ("cat < a.txt", "redirection"),
        ("echo $(id)", "variable or substitution"),
        ('echo "$(id)"', "variable or substitution"),
        ("echo $HOME", "variable or substitution"),
        ("echo ${HOME}", "variable or substitution"),
        ("echo `id`", "command substitution"),
        ('echo "`id`"', "command substitution"),
        ("(echo a)", "subshell"),
        ("echo a\necho b", "several commands"),
        ("echo 'a' \"b\" 'c' | x", "pipe"),
    ],
)
async def test_shell_syntax_is_refused_by_name(
    rig: ToolRig, runner: PlainRunner, line: str, syntax: str
) -> None:
    with pytest.raises(InvalidInput, match=f"shell syntax, .*{syntax}.*no shell runs it"):
        await rig.use("shell_exec", "coder", command=line)
    assert not runner.ran


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo 'a;b' \"c|d\"", ["echo", "a;b", "c|d"]),
        (r"echo a\;b", ["echo", "a;b"]),
        ("grep '$HOME' x", ["grep", "$HOME", "x"]),
        ("echo 5$ a$", ["echo", "5$", "a$"]),
        ('echo "it\'s"', ["echo", "it's"]),
    ],
)
def test_quoted_text_is_an_argument(line: str, words: list[str]) -> None:
    assert split_command(line) == words


@pytest.mark.parametrize(
    "command", ["", "   ", "echo 'a", [""], ["a\0b"], ["\udc80"], ["x"] * 1001]
)
def test_malformed_command_is_refused(command: str | list[str]) -> None:
    with pytest.raises(InvalidInput):
        split_command(command)


@pytest.mark.parametrize(
    ("pattern", "argv", "granted"),
    [
        ("git diff *", ["git", "diff"], True),
        ("git diff *", ["git", "diff", "--stat", "a b"], True),
        ("git diff *", ["git", "push"], False),
        ("git diff *", ["git", "-c", "x=y", "diff"], False),
        ("git diff *", ["git", "diff; rm -rf /"], False),
        ("git diff *", ["git diff", "x"], False),
        ("git diff *", ["./git", "diff"], False),
        ("git diff *", ["/tmp/git", "diff"], False),
        ("cat notes.txt", ["cat", "notes.txt"], True),
        ("cat notes.txt", ["cat", "notes.txt", "/etc/passwd"], False),
        ("cat notes.txt", ["cat", "-n", "notes.txt"], False),
        ("cat notes.txt", ["cat notes.txt"], False),
        ("cat *.txt", ["cat", "a.txt"], True),
        ("cat *.txt", ["cat", "a.txt", "b.txt"], False),
        ("cat *.txt", ["cat", "x /etc/passwd.txt"], True),  # one argument, one file name
        ("*", ["ls", "-l"], True),
        ("*", ["bash", "-c", "a | b"], False),
        ("*", ["/bin/ls"], False),
        ("*", ["/bin/bash"], False),
        ("ba*", ["bash", "-c"], False),
        ("bash -c *", ["bash", "-c", "a | b"], True),
        ("e* *", ["env", "x"], False),
        ("'my tool' *", ["my tool", "x"], True),
        ("./run.sh *", ["./run.sh", "x"], True),
        ("'unfinished", ["unfinished"], False),
        ("", ["ls"], False),
    ],
)
def test_pattern_covers_whole_words(pattern: str, argv: list[str], granted: bool) -> None:
    assert is_granted_command(argv, [pattern]) is granted


async def test_command_that_was_not_granted_is_refused(rig: ToolRig, runner: PlainRunner) -> None:
    with pytest.raises(InvalidInput, match=r"`rm -rf /` was not granted.*granted commands: echo"):
        await rig.use("shell_exec", "coder", command="rm -rf /")
    with pytest.raises(InvalidInput, match="granted commands: none"):
        await rig.use("shell_exec", command="ls")
    assert not runner.ran


async def test_tool_is_not_offered_without_a_runner(tmp_path: Path) -> None:
    rig = ToolRig(tmp_path)
    try:
        with pytest.raises(NotFound):
            await rig.use("shell_exec", command="ls")
    finally:
        await rig.close()


# --- fuzzing --------------------------------------------------------------------------------------

ARGUMENTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=6)


@settings(max_examples=300, deadline=None)
@given(words=ARGUMENTS, joins=st.sampled_from(["", " ", "quoted"]))
def test_fuzzed_command_is_granted_only_in_whole_words(words: list[str], joins: str) -> None:
    if joins == "quoted":
        safe = [word for word in words if "\0" not in word]
        line = shlex.join(safe)
        with contextlib.suppress(HubError):
            assert split_command(line) == safe  # what was quoted comes back
        fuzz_command(line)
    else:
        fuzz_command(joins.join(words) if joins else words)
