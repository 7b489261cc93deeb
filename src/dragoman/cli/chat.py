"""`chat`: a conversation with an agent in the terminal, or one message in a pipe.

Uses the API's call of the agent's tool, whose stream has the text as it is written and the tool
calls that the agent makes; works for every agent, whether the hub serves A2A or not.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import click

from dragoman.cli.base import prompt
from dragoman.cli.base.errors import (
    FAILED,
    NO_HUB,
    NOT_FOUND,
    USAGE,
    build_error,
    fail,
    say,
)
from dragoman.cli.base.hub_client import (
    HubClient,
    HubProblem,
    HubUnavailable,
    connect_hub,
    suggest,
)
from dragoman.cli.base.output import (
    StatusLine,
    clean,
    common_options,
    print_json_line,
    render_output,
    style,
)
from dragoman.cli.base.schema_text import get_properties
from dragoman.cli.completion import complete_chat_agents
from dragoman.cli.tools import print_content
from dragoman.core.conversations import CONTEXT
from dragoman.core.conversations import META as CONTEXT_META

CONNECT_SECONDS = 5.0
"""How long to wait for servers and agents that a hub is still connecting to."""
MAX_MESSAGE = 7 * 1024 * 1024
STDIN = "-"
MESSAGE_SUFFIX = ".message"
"""Ends the canonical name of an agent's tool."""
_COMMAND = re.compile(r"/[a-z]+")
HELP = "/new starts another conversation, /quit or Ctrl-D ends the chat, Ctrl-C cancels an answer"


@click.command()
@click.argument("name", required=False, shell_complete=complete_chat_agents)
@click.argument("words", nargs=-1, metavar="[MESSAGE] [-]")
@click.option("--context", metavar="ID", help="Continue this conversation.")
@common_options
def chat(
    name: str | None, words: tuple[str, ...], context: str | None, home: str | None, as_json: bool
) -> None:
    """Talk to agent NAME, or send it one MESSAGE and print the answer.

    \b
    dragoman chat helper                                     a conversation in the terminal
    dragoman chat helper "What is in the workspace?"         one message
    echo "What time is it?" | dragoman chat helper           the same in a pipe
    git diff | dragoman chat reviewer "Review this:" -       a message and stdin
    dragoman chat helper "And tomorrow?" --context ctx-…     continues a conversation

    The answer is shown while it is written, with a line for every tool that the agent has used. Its
    questions are asked in the terminal. In a conversation /new starts another one, /quit or Ctrl-D
    ends it, and Ctrl-C cancels the answer that is being written.

    --json prints one object per line: {"event": "tool" | "text" | "answer" | "error", …}; the
    answer has the id of the conversation as context. Exit codes are those of `dragoman call`.
    """
    if name is None:
        _fail_without_name(home)
    message = _read_message(words)
    if message is None and as_json:
        fail("give a MESSAGE, or pipe one into the command: --json is for programs", USAGE)
    with connect_hub(home) as hub:
        agent = _find_agent(hub, name)
        printer: AnswerPrinter
        if as_json:
            printer = JsonPrinter()
        elif message is None or sys.stdout.isatty():
            printer = TerminalPrinter(agent["server"])
        else:
            printer = PipePrinter(agent["server"])
        chatting = Chat(hub, agent, printer, context)
        if message is None:
            return chatting.run()
        try:
            code = chatting.ask(message)
        except KeyboardInterrupt:
            printer.pause()
            raise
        if code:
            raise SystemExit(code)


def _fail_without_name(home: str | None) -> NoReturn:
    with connect_hub(home) as hub:
        names = [one["server"] for one in _list_agents(hub)]
    known = f"this hub has {', '.join(names[:20])}" if names else "see: dragoman agents new --help"
    fail(f"name the agent to talk to; {known}", USAGE)


def _read_message(words: tuple[str, ...]) -> str | None:
    """Returns the message of the arguments and stdin; None for a conversation in the terminal."""
    parts = list(words)
    wants_stdin = parts[-1:] == [STDIN] or (not parts and not sys.stdin.isatty())
    if parts[-1:] == [STDIN]:
        parts.pop()
    text = " ".join(parts)
    if wants_stdin:
        data = sys.stdin.buffer.read(MAX_MESSAGE + 1)
        if len(data) > MAX_MESSAGE:
            fail(f"the message is too large, over {MAX_MESSAGE >> 20} MB", USAGE)
        text = "\n\n".join(filter(None, (text, data.decode("utf-8", "replace").strip("\n"))))
    elif not parts and not sys.stdout.isatty():
        fail("give a MESSAGE: a conversation needs a terminal", USAGE)
    elif not parts:
        return None
    if not text.strip():
        fail("the message is empty", USAGE)
    return text


def _find_agent(hub: HubClient, name: str) -> dict[str, Any]:
    """Finds the tool of an agent by the agent's name, its slug or the tool's name."""
    hub.wait_until_connected(CONNECT_SECONDS)  # an agent has the tools of connected servers
    found = _list_agents(hub)
    if (agent := _pick(found, name)) is not None:
        return agent
    failed = hub.get("/api/status").get("agents", {}).get("failed", {})
    if name in failed:
        fail(f'agent "{name}" could not be loaded: {failed[name]}', NOT_FOUND)
    names = [one["server"] for one in found]
    known = f"known: {', '.join(names[:20])}" if names else "see: dragoman agents new --help"
    fail(f'there is no agent "{name}"; {suggest(name, names) or known}', NOT_FOUND)


def _list_agents(hub: HubClient) -> list[dict[str, Any]]:
    return [one for one in hub.get("/api/tools")["tools"] if one["source"] == "agent"]


def _pick(agents: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    plain = _fold(name)
    exact = [one for one in agents if name in (one["server"], one["name"], one["id"])]
    return next(iter([*exact, *(one for one in agents if _fold(one["server"]) == plain)]), None)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


# --- the conversation -----------------------------------------------------------------------------


class AnswerPrinter(Protocol):
    """Shows one answer after the other."""

    def begin(self) -> None: ...

    def handle_event(self, kind: str, event: Mapping[str, Any]) -> None:
        """Shows a piece of the answer, or a tool call."""

    def pause(self) -> None:
        """Ends an open line before a question is asked."""

    def finish(self, result: Mapping[str, Any], context: str | None) -> None: ...

    def fail(self, problem: HubProblem | HubUnavailable, code: int) -> None: ...


class Chat:
    def __init__(
        self,
        hub: HubClient,
        agent: Mapping[str, Any],
        printer: AnswerPrinter,
        context: str | None = None,
    ) -> None:
        self._hub = hub
        self._agent = agent
        self._printer = printer
        schema = hub.get_tool(agent["id"])["definition"].get("inputSchema")
        self._keeps = CONTEXT in get_properties(schema if isinstance(schema, dict) else {})
        """Whether the agent keeps conversations."""
        self._context = context

    def run(self) -> None:
        """Reads messages from the terminal until the user ends the chat."""
        with contextlib.suppress(ImportError):
            import readline  # edits the line, and keeps a history

            readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message
        name, about = clean(self._agent["server"]), clean(self._agent["description"])
        print(style(f"{name}: {about}", bold=True))
        print(style(HELP, dim=True))
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print(f"\n{style(HELP, dim=True)}")
                continue
            if not line:
                continue
            if _COMMAND.fullmatch(line):
                if not self._obey(line):
                    return
                continue
            try:
                self.ask(line)
            except (KeyboardInterrupt, click.Abort):
                self._printer.pause()
                say("the answer was cancelled")

    def _obey(self, command: str) -> bool:
        """Runs a command of the chat; returns whether the chat goes on."""
        if command in ("/quit", "/exit", "/bye"):
            return False
        if command == "/new":
            self._context = None
            print(style("a new conversation begins", dim=True))
        else:
            print(style(HELP, dim=True))
        return True

    def ask(self, message: str) -> int:
        """Sends a message and shows the answer; returns the exit code."""
        self._printer.begin()
        try:
            result = self._call(message)
        except HubProblem as problem:
            if not self._context or "unknown conversation" not in problem.message:
                return self._fail(problem, problem.code)
            self._context = None  # the hub was restarted, or has dropped it
            self._printer.pause()
            say("the hub no longer has this conversation; another one begins")
            return self.ask(message)
        except HubUnavailable as error:
            return self._fail(error, NO_HUB)
        meta = result.get("extra", {}).get("_meta", {})
        if self._keeps and isinstance(meta.get(CONTEXT_META), str):
            self._context = meta[CONTEXT_META]
        self._printer.finish(result, self._context)
        return FAILED if result["failed"] else 0

    def _fail(self, problem: HubProblem | HubUnavailable, code: int) -> int:
        self._printer.fail(problem, code)
        return code

    def _call(self, message: str) -> Any:
        arguments = {"message": message}
        if self._keeps and self._context:
            arguments[CONTEXT] = self._context
        kinds = prompt.list_question_kinds() if not isinstance(self._printer, JsonPrinter) else []
        body: dict[str, Any] = {"arguments": arguments}
        body |= {"can": kinds} if kinds else {}
        tool, follow = str(self._agent["id"]), self._printer.handle_event
        result = self._hub.stream_call(tool, body, follow)
        for _ in range(prompt.MAX_ROUNDS):
            if "questions" not in result:
                return result
            self._printer.pause()
            answers = prompt.ask_questions(result["questions"])
            self._printer.begin()
            body |= {"answers": answers, "handle": result["handle"]}
            result = self._hub.stream_call(tool, body, follow)
        name = self._agent["server"]
        fail(f'"{name}" asked more than {prompt.MAX_ROUNDS} rounds of questions; not continued')


# --- what is shown --------------------------------------------------------------------------------


def _find_text(content: Any) -> str:
    blocks = content if isinstance(content, list) else []
    return "".join(str(one.get("text") or "") for one in blocks if one.get("type") == "text")


def _render_tool(tool: str) -> str:
    return clean(tool.removesuffix(MESSAGE_SUFFIX))


def _render_problem(problem: HubProblem | HubUnavailable) -> str:
    if isinstance(problem, HubUnavailable):
        return f"the hub did not answer: {problem}; see: dragoman status"
    return problem.message + (f" (trace {problem.trace[:8]})" if problem.trace else "")


class PipePrinter:
    """Prints the answer alone, when it is complete; tool calls go to a terminal on stderr."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._status = StatusLine()

    def begin(self) -> None:
        self._status.show(f"{self._agent} thinks …")

    def handle_event(self, kind: str, event: Mapping[str, Any]) -> None:
        step = event.get("step") if kind == "progress" else None
        if isinstance(step, dict):
            self._show_step(step)
        elif kind == "progress" and event.get("message"):
            self._status.show(str(event["message"]))

    def _show_step(self, step: Mapping[str, Any]) -> None:
        agent, tool = clean(step["agent"]), _render_tool(str(step["tool"]))
        self._status.clear()
        if not step["outcome"]:
            self._status.show(f"{agent} uses {tool} …")
        elif sys.stderr.isatty():
            words = f"  {agent} → {tool}: {step['outcome']}, {step['durationMs']:.0f} ms"
            if step.get("problem"):
                words += f": {clean(step['problem'])}"
            color = None if step["outcome"] in ("completed", "asked") else "yellow"
            print(style(words, sys.stderr, dim=color is None, fg=color), file=sys.stderr)
            self._status.show(f"{self._agent} thinks …")

    def pause(self) -> None:
        self._status.clear()

    def finish(self, result: Mapping[str, Any], context: str | None) -> None:
        self.pause()
        print_content(result["content"], sys.stderr if result["failed"] else sys.stdout)

    def fail(self, problem: HubProblem | HubUnavailable, code: int) -> None:
        self.pause()
        say(_render_problem(problem))


class TerminalPrinter(PipePrinter):
    """Also prints the answer while it is written."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self._text = ""
        """The text of the last answer of the model, as far as it was printed."""

    def begin(self) -> None:
        self._text = ""
        super().begin()

    def handle_event(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind != "artifact":
            self._end_line()
            return super().handle_event(kind, event)
        if not event.get("append"):
            self._end_line()
            self._text = ""
        self._write(_find_text(event.get("content")))

    def _write(self, text: str) -> None:
        self._status.clear()
        print(render_output(text, sys.stdout), end="", flush=True)
        self._text += text

    def _end_line(self) -> None:
        if self._text and not self._text.endswith("\n"):
            self._text += "\n"
            print(flush=True)

    def pause(self) -> None:
        super().pause()
        self._end_line()

    def finish(self, result: Mapping[str, Any], context: str | None) -> None:
        content = result["content"]
        texts = [one for one in content if one.get("type") == "text"]
        whole, shown = _find_text(texts[:1]), self._text
        if result["failed"] or not shown or not whole.startswith(shown):
            self.pause()
            return super().finish(result, context)
        self._write(whole[len(shown) :])
        self.pause()
        print_content([one for one in content if one is not texts[0]], sys.stdout)


class JsonPrinter:
    """Prints an object per line."""

    def begin(self) -> None:
        pass

    def handle_event(self, kind: str, event: Mapping[str, Any]) -> None:
        step = event.get("step") if kind == "progress" else None
        if isinstance(step, dict) and step["outcome"]:
            print_json_line({"event": "tool", **step})
        elif kind == "artifact" and (text := _find_text(event.get("content"))):
            print_json_line({"event": "text", "text": text, "append": bool(event.get("append"))})

    def pause(self) -> None:
        pass

    def finish(self, result: Mapping[str, Any], context: str | None) -> None:
        answer = {"event": "answer", "text": _find_text(result["content"]), "context": context}
        more = {
            name: result[name] for name in ("failed", "content", "structured") if name in result
        }
        print_json_line({**answer, **more})

    def fail(self, problem: HubProblem | HubUnavailable, code: int) -> None:
        found = problem if isinstance(problem, HubProblem) else None
        kind, trace = (found.kind, found.trace) if found is not None else ("", "")
        words = _render_problem(problem)
        print_json_line({"event": "error", **build_error(words, code, kind, trace)})
        say(words)
