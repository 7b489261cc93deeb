"""Agents that are programs: one process for each message, JSON lines in and out.

The program reads one line with the message from stdin and writes lines to stdout: progress,
artifacts, and its answer (docs/agents-command.md). Output that is not in this form is its answer as
text. A question ends the process, as any answer does; the answer to it starts another, which gets
the state that the program has left. So no process waits for a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dragoman.agents.agent_runs import AgentRuns
from dragoman.agents.messages import (
    Ask,
    Decline,
    NeedsAuth,
    Reply,
    Request,
    build_blocks,
    build_request,
    find_turn,
    read_text,
    result_from_value,
)
from dragoman.core.agent_tool import SCHEMA, build_agent_tool
from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.conversations import (
    CONTEXT,
    ContextStore,
    Conversation,
    ConversationLimits,
    Conversations,
    add_context,
    find_context_in_meta,
    new_conversation_id,
)
from dragoman.core.errors import BadReply, Declined, TimedOut, Unreachable, WorkFailed
from dragoman.core.read_pacing import Pace
from dragoman.core.structs import replace
from dragoman.core.tool import ISOLATED, AgentFacts, TargetFacts, TargetTraits, Validator
from dragoman.processes.command_runner import CommandOutcome, CommandRunner, CommandSpec
from dragoman.wire.json import Malformed, decode_reply, encode

MAX_STATE = 64 * 1024
"""Bytes of the state that a program leaves in a conversation."""
CONVERSATIONS = ConversationLimits(of_principal=200, total=2_000)


class _Queue:
    """The calls of one conversation."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0


class CommandAgent:
    """A target with one tool, which takes a message."""

    def __init__(
        self,
        facts: AgentFacts,
        spec: CommandSpec,
        runner: CommandRunner,
        prefix: str,
        validate: Validator,
        org: str = "default",
        store: ContextStore | None = None,
    ) -> None:
        """`prefix` precedes the names of agents in lists; `validate` validates the arguments of an
        agent's tool; `store` keeps the states of its conversations beyond a restart."""
        self.name = facts.name
        self._facts = dataclasses.replace(facts, continues=True)  # each message starts a process
        self._spec = spec
        self._runner = runner
        reach = ISOLATED if spec.sandbox == "strict" else ""
        self.traits = TargetTraits(facts=TargetFacts(type="Agent", org=org, reach=reach))
        self.tool = build_agent_tool(self, self._facts, prefix, validate, SCHEMA)
        self._conversations = Conversations(facts.name, CONVERSATIONS, store=store)
        self._runs = AgentRuns(facts.name)
        self._queues: dict[tuple[str, str], _Queue] = {}
        """By principal and conversation, while there are calls."""

    async def run(self, call: Call) -> Result:
        return await self._runs.run(self._answer, call)

    async def _answer(self, call: Call) -> Result:
        try:
            text = read_text(call)
        except Decline as error:
            raise Declined(f'agent "{self.name}" declined: {error}') from None
        blocks = build_blocks(call, self.name, self._facts.input_modes)
        await self._load_conversation(call)
        async with self._in_order(call) as has_waited:
            if has_waited:
                await self._load_conversation(call)
            return await self._run_program(call, text, blocks)

    async def _run_program(self, call: Call, text: str, blocks: list[Any]) -> Result:
        conversation = self._find_conversation(call)
        context = call.message.context if call.message is not None else conversation.id
        request = build_request(call, text, blocks, context)
        answer = _Answer(self.name, request)
        outcome = await self._exchange(_render_request(request, conversation.context), answer)
        value = answer.read_value(outcome)
        return self._keep_state(
            call, conversation, answer.state, result_from_value(value, self.name)
        )

    @contextlib.asynccontextmanager
    async def _in_order(self, call: Call) -> AsyncIterator[bool]:
        """Messages of one conversation are answered one after the other: each gets the state that
        the one before it has left. Yields whether the call had to wait."""
        key = call.principal.key, self._find_conversation(call).id
        queue = self._queues.setdefault(key, _Queue())
        queue.calls += 1
        has_waited = queue.lock.locked()
        try:
            async with queue.lock:
                yield has_waited
        finally:
            queue.calls -= 1
            if not queue.calls:
                del self._queues[key]

    async def _exchange(self, message: bytes, answer: _Answer) -> CommandOutcome:
        """Runs the program with the message; `answer` takes its lines."""
        where = f'agent "{self.name}"'
        try:
            async with self._runner.open_lines(self._spec) as lines:
                with contextlib.suppress(Unreachable):  # it does not have to read the message
                    lines.write_line(message)
                lines.close_input()
                pace = Pace()
                async for line in lines:
                    if answer.take(line) and (pause := pace.pause(1)):
                        await asyncio.sleep(pause)
                return lines.outcome
        except TimedOut as error:
            raise TimedOut(f"{where} did not answer: {error}") from None
        except Unreachable as error:
            raise Unreachable(f"{where} could not be run: {error}", sent=error.sent) from None
        except BadReply as error:
            raise BadReply(f"{where} gave an invalid answer: {error}") from None

    async def _load_conversation(self, call: Call) -> None:
        if id := self._conversations.find_unloaded(call, _find_asked(call)):
            await self._conversations.load(call, id)

    def _find_conversation(self, call: Call) -> Conversation:
        """Finds the conversation, or starts one; its `context` is the program's state."""
        found = self._conversations.find(call, _find_asked(call))
        return found if found.id else found._replace(id=new_conversation_id())

    def _keep_state(
        self, call: Call, conversation: Conversation, state: Any, result: Result
    ) -> Result:
        if result.questions:
            result = replace(result, handle=str(find_turn(call)))
        if state is None:
            self._conversations.forget(call, conversation)
            return result
        kept = conversation.context
        if state is not ABSENT:
            kept = encode(state).decode()
            if len(kept) > MAX_STATE:
                raise BadReply(
                    f'agent "{self.name}" has a state of more than {MAX_STATE} bytes; keep it in a '
                    "file of its home instead"
                )
        if not kept:
            return result
        id = self._conversations.keep(call, conversation, kept)
        if result.questions:
            return replace(result, handle=f"{result.handle} {id}")
        return add_context(result, call, id, shown=True)

    def end(self) -> None:
        self._runs.end()

    def close(self) -> None:
        """Its processes end with their calls."""


def _find_asked(call: Call) -> str:
    """Finds the id of the conversation that the call names itself; its protocol may name one."""
    if call.message is not None:
        return ""
    handle = (call.handle or "").partition(" ")[2]
    return str(handle or find_context_in_meta(call) or call.arguments.get(CONTEXT) or "")


def _render_request(request: Request, state: str) -> bytes:
    message = {
        "type": "message",
        "text": request.text,
        "parts": request.parts,
        "metadata": dict(request.metadata),
        "context": request.context,
        "task": request.task,
        "message_id": request.message_id,
        "skill": request.skill,
        "turn": request.turn,
        "caller": request.caller,
        "accepts": request.accepts,
        "extensions": request.extensions,
        "references": request.references,
        "state": decode_reply(state.encode()) if state else None,
    }
    return encode(message)


class _Answer:
    """What the lines of a program amount to."""

    def __init__(self, agent: str, request: Request) -> None:
        self._agent = agent
        self._request = request
        self._texts: list[str] = []
        self._value: Any = ABSENT
        self._error = ""
        self._declined = ""
        self.state: Any = ABSENT
        """The state that it leaves in the conversation; None if it forgets what there is."""

    def take(self, line: bytes) -> bool:
        """Returns whether the client was sent an update."""
        message = _parse_line(line)
        if message is None:
            self._texts.append(line.decode("utf-8", "replace").removesuffix("\r") + "\n")
            return False
        kind = message["type"]
        if kind == "progress":
            self._request.say(_read(message, "message"))
        elif kind == "artifact":
            self._send_artifact(message)
        elif kind == "text":
            self._texts.append(str(message.get("text", "")))
        elif kind == "error":
            self._error = _read(message, "message")
        elif kind == "decline":
            self._declined = _read(message, "message")
        elif kind == "login":
            self._value = NeedsAuth(_read(message, "message"), str(message.get("url") or ""))
        elif kind == "ask":
            schema = message.get("schema")
            if schema is not None and not isinstance(schema, dict):
                raise BadReply('the "schema" of its question is not an object')
            self._value = Ask(_read(message, "question"), schema)
        elif "content" in message:
            failed, direct = (message.get(name) is True for name in ("failed", "direct"))
            self._value = Reply(message["content"], direct=direct, failed=failed)
        if "state" in message:
            self.state = message["state"]
        return kind in ("progress", "artifact")

    def _send_artifact(self, message: Mapping[str, Any]) -> None:
        texts = {name: message.get(name) or "" for name in ("id", "name", "description")}
        if "content" not in message or not all(isinstance(one, str) for one in texts.values()):
            raise BadReply('its artifact needs a "content"; "id" and "name" are texts')
        try:
            self._request.artifact(
                message["content"],
                **texts,
                append=message.get("append") is True,
                last=message.get("last", True) is not False,
            )
        except TypeError as error:
            raise BadReply(str(error)) from None

    def read_value(self, outcome: CommandOutcome) -> Any:
        """Returns the answer, as a function would return it."""
        if self._declined:
            raise Declined(f'agent "{self._agent}" declined: {self._declined}')
        if self._error:
            raise WorkFailed(f'agent "{self._agent}" failed: {self._error}')
        if not outcome.succeeded:
            last = outcome.stderr.read_last_line()
            how = f"{outcome.describe()}; last line of its stderr: {last}"
            raise WorkFailed(f'agent "{self._agent}" failed: {how if last else outcome.describe()}')
        if self._value is not ABSENT:
            return self._value
        return "".join(self._texts).removesuffix("\n") or None


_KINDS = frozenset(("progress", "artifact", "text", "result", "error", "decline", "login", "ask"))


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Parses a line of the protocol; None for text."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        message = decode_reply(line)
    except Malformed:
        return None
    is_known = isinstance(message, dict) and message.get("type") in _KINDS
    return message if is_known else None


def _read(message: Mapping[str, Any], member: str) -> str:
    value = message.get(member)
    if not isinstance(value, str) or not value:
        raise BadReply(f'its line of type "{message["type"]}" has no text "{member}"')
    return value
