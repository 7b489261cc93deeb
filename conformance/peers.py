"""Foreign programs through the hub: npm's server-everything, and the Inspector's CLI."""

import contextlib
import json
import re
from dataclasses import dataclass

from conformance.paths import EVERYTHING, HUB, INSPECTOR, NODE, PYTHON
from conformance.processes import Command, free_port, reachable, run, started, wait_for
from conformance.targets import FIXTURE, child, fixture, hub, remote

SECONDS = 60.0
ERAS = ("legacy", "modern")


@dataclass(frozen=True)
class Result:
    name: str
    problem: str | None


def run_peers(only: str) -> list[Result]:
    found = []
    for part in (everything_over_stdio, everything_over_http, inspector):
        found += part(only)
    return found


def everything_over_stdio(only: str) -> list[Result]:
    name = "server-everything over stdio"
    if not re.search(only, name):
        return []
    with hub("everything-stdio", child([NODE, EVERYTHING, "stdio"])) as (url, _):
        return use_everything(name, url)


def everything_over_http(only: str) -> list[Result]:
    name = "server-everything over Streamable HTTP"
    if not re.search(only, name):
        return []
    port = free_port()
    command: Command = [NODE, EVERYTHING, "streamableHttp"]
    with started("everything-http", command, {"PORT": str(port)}) as process:
        wait_for(process, lambda: reachable(port))
        with hub("everything-http", remote(f"http://127.0.0.1:{port}/mcp")) as (url, _):
            return use_everything(name, url)


def use_everything(name: str, url: str) -> list[Result]:
    found = []
    for era in ERAS:
        label = f"{name}, {era} client"
        command: Command = [PYTHON, "-m", "conformance.everything", url, era]
        code, out, errors = run(f"peer-{slug(label)}", command, SECONDS)
        for line in out.splitlines():
            said = json.loads(line)
            found.append(Result(f"{label}: {said['name']}", said["problem"]))
        if code:
            last = errors.strip().splitlines()[-1:] or [""]
            found.append(Result(label, f"exit code {code}: {last[0][:300]}"))
    return found


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


@dataclass(frozen=True)
class Question:
    method: str
    arguments: tuple[str, ...]
    expected: str  # in the answer's JSON


QUESTIONS = (
    Question("tools/list", (), "json_schema_2020_12_tool"),
    Question("tools/call", ("--tool-name", "test_simple_text"), "This is a simple text response"),
    Question(
        "tools/call",
        ("--tool-name", "test_x_mcp_header", "--tool-args-json", '{"region": "eu"}'),
        "region=eu",
    ),
    Question("resources/list", (), "test://static-text"),
    Question("resources/templates/list", (), "test://template/{id}/data"),
    Question("resources/read", ("--uri", "test://static-text"), "static text resource"),
    Question("prompts/list", (), "test_prompt_with_arguments"),
    Question(
        "prompts/get",
        ("--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=a", "arg2=b"),
        "arg1='a', arg2='b'",
    ),
)


def inspector(only: str) -> list[Result]:
    if not re.search(only, "Inspector"):
        return []
    found = []
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(fixture("inspector", [*FIXTURE, "http"]))
        url, home = stack.enter_context(hub("inspector", remote(upstream)))
        for era in ERAS:
            for question in QUESTIONS:
                found.append(inspect(f"Inspector over HTTP, {era}", [url], era, question))
            for question in QUESTIONS:
                target: Command = ["--", HUB, "mcp", "--home", home]
                found.append(inspect(f"Inspector over stdio, {era}", target, era, question))
    return found


def inspect(name: str, target: Command, era: str, question: Question) -> Result:
    label = f"{name}: {' '.join((question.method, *question.arguments[:2]))}"
    options: Command = ["--protocol-era", era, "--method", question.method, *question.arguments]
    options += ["--format", "json", "-q"]
    stdio = target[0] == "--"
    command: Command = [NODE, INSPECTOR, "--cli"]
    command += ["--transport", "stdio", *options, *target] if stdio else [*target, *options]
    code, out, errors = run(f"peer-{slug(label)}", command, SECONDS)
    if code:
        return Result(label, f"exit code {code}: {(errors or out).strip()[-300:]}")
    if question.expected not in json_text(out):
        return Result(label, f"{question.expected!r} is not in the answer: {out.strip()[:200]}")
    return Result(label, None)


def json_text(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
