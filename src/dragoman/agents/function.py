"""Agents that are Python functions: how they are loaded and how they run.

A function that is not async runs in one of its agent's few threads, so that one that hangs affects
no other agent. Knows no protocol.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import typing
from collections.abc import Callable
from typing import Any

from dragoman.agents.agent_runs import AgentRuns
from dragoman.agents.config import AgentEntry
from dragoman.agents.messages import (
    Decline,
    Request,
    build_blocks,
    build_request,
    describe_error,
    find_turn,
    read_text,
    result_from_value,
)
from dragoman.agents.threads import AgentThreads
from dragoman.core.agent_tool import SCHEMA, TEXT_SCHEMA, build_agent_tool
from dragoman.core.call import Call, Result
from dragoman.core.conversations import (
    CONTEXT,
    ContextStore,
    Conversation,
    Conversations,
    add_context,
    find_context_in_meta,
    new_conversation_id,
)
from dragoman.core.errors import ConfigError, Declined, HubError, WorkFailed
from dragoman.core.structs import replace
from dragoman.core.tool import AgentFacts, TargetFacts, TargetTraits, Validator

log = logging.getLogger(__name__)

MAX_THREADS = 16
KEPT = "kept by the function"
"""Stands for the agent's own conversation id: a function uses the client's."""


class FunctionAgent:
    """A target with one tool, which takes a message."""

    def __init__(
        self,
        entry: AgentEntry,
        prefix: str,
        validate: Validator,
        org: str = "default",
        store: ContextStore | None = None,
    ) -> None:
        """`store` keeps the ids of its conversations beyond a restart."""
        self.traits = TargetTraits(facts=TargetFacts(type="Agent", org=org))
        self.entry = entry
        self.name = entry.name
        self._function, self._takes_text = _load_function(entry)
        self._async = inspect.iscoroutinefunction(self._function)
        self._threads = None if self._async else AgentThreads(MAX_THREADS, f"agent-{entry.name}")
        schema = TEXT_SCHEMA if self._takes_text else SCHEMA
        self.tool = build_agent_tool(self, _build_facts(entry), prefix, validate, schema)
        self._conversations = Conversations(entry.name, store=store)
        self._runs = AgentRuns(entry.name)

    async def run(self, call: Call) -> Result:
        return await self._runs.run(self._answer, call)

    async def _answer(self, call: Call) -> Result:
        request: Request | None = None
        try:
            given: Any = read_text(call)
            if not self._takes_text:
                blocks = build_blocks(call, self.name, self.entry.input_modes)
                context = await self._find_context(call)
                given = request = build_request(call, given, blocks, context)
            if self._threads is None:
                value = await self._function(given)
            else:
                value = await self._threads.run(self._function, given)
        except SystemExit as error:
            raise WorkFailed(f'agent "{self.name}" tried to exit the hub: {error!r}') from None
        except Decline as error:
            raise Declined(f'agent "{self.name}" declined: {error}') from None
        except HubError:
            raise
        except Exception as error:
            log.exception('agent "%s" failed', self.name)
            raise WorkFailed(f'agent "{self.name}" failed: {describe_error(error)}') from error
        result = result_from_value(value, self.name)
        if result.questions is not None and call.message is None:
            result = replace(result, handle=str(find_turn(call)))
        if request is None or not request._keeps_context or call.message is not None:
            return result
        id = self._conversations.keep(call, Conversation(request._context), KEPT)
        return result if result.questions else add_context(result, call, id, shown=True)

    async def _find_context(self, call: Call) -> str:
        """Finds the id of the conversation, which the client knows too."""
        if call.message is not None:
            return call.message.context
        asked = str(find_context_in_meta(call) or call.arguments.get(CONTEXT) or "")
        if id := self._conversations.find_unloaded(call, asked):
            await self._conversations.load(call, id)
        return self._conversations.find(call, asked).id or new_conversation_id()

    def end(self) -> None:
        """A function that runs in a thread continues, and its result is dropped."""
        self._runs.end()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()


def _build_facts(entry: AgentEntry) -> AgentFacts:
    return AgentFacts(
        name=entry.name,
        description=entry.description or f'The agent "{entry.name}".',
        version=entry.version,
        skills=[
            {
                "id": skill.id,
                "name": skill.name or skill.id.replace("_", " "),
                "description": skill.description or f"Can do {skill.id}.",
                "tags": skill.tags or ["agent"],
                "examples": skill.examples,
                "public": skill.public,
            }
            for skill in entry.skills
        ],
        input_modes=tuple(entry.input_modes),
        output_modes=tuple(entry.output_modes),
        streaming=entry.streaming,
        push=entry.push,
        extended=entry.extended_card,
        extensions=[
            {name: getattr(one, name) for name in one.__struct_fields__} for one in entry.extensions
        ],
        continues=True,
    )


def _load_function(entry: AgentEntry) -> tuple[Callable[[Any], Any], bool]:
    module, colon, name = entry.function.partition(":")
    where = f'the function "{entry.function}" of agent "{entry.name}"'
    if not colon or not module or not name:
        raise ConfigError(f'{where} is invalid: write "module:function"')
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"{where} cannot be loaded: {describe_error(error)}") from error
    for step in name.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        raise ConfigError(f'{where} does not exist: module "{module}" has no function "{name}"')
    try:
        parameters = list(inspect.signature(found).parameters.values())
        hints = typing.get_type_hints(found)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{where} cannot be used: {describe_error(error)}") from error
    if not parameters or any(one.default is one.empty for one in parameters[1:]):
        raise ConfigError(f"{where} must take one argument: the text, or a dragoman.agent.Request")
    hint = hints.get(parameters[0].name)
    by_name = hint is None and parameters[0].name in ("message", "text")
    return found, hint is str or by_name
