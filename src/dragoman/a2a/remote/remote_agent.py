"""An agent of others as a target: offered as a tool that takes messages and one for each of its
skills, and called.

Its tasks are followed, by their stream where it has one and by asking where not; what it says
meanwhile are updates of the call, what it asks is a question of the call. Whoever leaves has its
task cancelled. Knows no dialect, and not when the agent is there: the registry's watch does, and
offers or withdraws it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.a2a.cards.signing import load_public_key
from dragoman.a2a.client.card_discovery import CardTrust, parse_origin
from dragoman.a2a.client.client import A2aClient, build_user_message
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import A2aErrorStatus, AgentHttpStatus
from dragoman.a2a.config import WIRE_SKILL_ONLY, ExternalAgent
from dragoman.a2a.protocol.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    TASK_NOT_FOUND,
    A2aError,
)
from dragoman.a2a.protocol.parts import Part, part_from_block
from dragoman.a2a.protocol.skill_tools import (
    AS_DATA,
    SkillOwner,
    build_skill_tools,
    choose_argument_forms,
    slug_from_name,
)
from dragoman.a2a.remote.circuit_breaker import CircuitBreaker
from dragoman.a2a.remote.remote_task import (
    AUTH,
    REPLY,
    RemoteTask,
    decode_handle,
    encode_handle,
    parts_from_answer,
)
from dragoman.a2a.remote.skill_results import parts_from_arguments, remote_error, result_of
from dragoman.a2a.remote.task_follower import EXTENSION, LOGIN_SECONDS, TaskFollower, Work
from dragoman.core.agent_tool import MESSAGE, SCHEMA, agent_tool, blocks_from_arguments
from dragoman.core.call import FOLLOW, Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.conversations import (
    CONTEXT,
    Conversation,
    ConversationLimits,
    Conversations,
    add_context,
    context_in_meta,
    is_conversation_id,
)
from dragoman.core.errors import (
    BadReply,
    ConfigError,
    Declined,
    HubError,
    NeedsInput,
    RemoteA2ATimeoutError,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.ports import HttpClient, SchemaCompiler
from dragoman.core.question_handles import unanswerable
from dragoman.core.tool import (
    EXTERNAL,
    TRUSTED,
    AgentFacts,
    Nowhere,
    TargetFacts,
    TargetTraits,
    Tool,
)
from dragoman.core.urls import HIDDEN, render_origin

MAX_TAKEN = 10
AWAY = frozenset((502, 503, 504))
"""What is answered for a server by whatever stands before it."""
SOURCES = {
    EXTERNAL: frozenset(("untrusted_agent", "external_network")),
    TRUSTED: frozenset(("external_network",)),
}
TRUST = {"external": EXTERNAL, "trusted": TRUSTED}
SINKS = frozenset(("agent", "net"))
"""What an agent of others is given leaves the hub."""
TAKES_MESSAGES = (
    "Takes a message in plain words, with files and data, and goes on with a conversation."
)
OTHERWISE = "call one of those for exactly that skill, and this for anything else."
STALE = frozenset((INVALID_PARAMS, INVALID_REQUEST, TASK_NOT_FOUND))
"""What agents answer to a message of a conversation that they do not know any more."""

OpenHttp = Callable[[str, bool], HttpClient]
"""The way out for one registered url, and whether it may lead to private addresses."""


class RemoteAgent:
    def __init__(
        self,
        entry: ExternalAgent,
        reach: OpenHttp,
        catalog: Catalog,
        compile_schema: SchemaCompiler,
        *,
        headers: Mapping[str, str],
        signatures: str,
        prefix: str = "dragoman_agent_",
        place: Path = Path(),
        org: str = "default",
        timeout: float | None = None,
        conversations: ConversationLimits | None = None,
    ) -> None:
        """`headers` are the entry's with their values put in; `signatures` holds where the entry
        says nothing of its own; `place` is where the files of its keys are. `timeout` is how long a
        skill may take, where that is not what the entry says."""
        self.entry = entry
        self.name = entry.name
        self.slug = slug_from_name(entry.name)
        self.state = "starting"
        self.reason = "it is being looked for"
        self.patience = timeout or entry.timeout_secs
        """Seconds that a skill may take; whoever times it from outside gives more."""
        self.breaker = CircuitBreaker()
        facts = TargetFacts(
            type="RemoteAgent",
            org=org,
            trust=TRUST[entry.trust],
            transport="a2a",
            healthy=False,
        )
        self.traits = TargetTraits(
            facts=facts,
            may_last=True,
            timeout=self.patience,
            timeout_error=RemoteA2ATimeoutError,
            ends_questions=True,
            is_published=entry.public,
        )
        """The watch keeps the facts true."""
        self.client = A2aClient(
            reach(entry.url, entry.allow_private),
            headers,
            entry.timeout_secs,
            registered=entry.url,
            trust=_trust(entry, signatures, place),
            wire=entry.wire,
        )
        self.probed: ProbedAgent | None = None
        """As it is offered: its calls go where this card says, whatever its card says now."""
        self._offered: tuple[ProbedAgent, str, str] | None = None
        self.was_found = False
        """Whether it was offered since the hub has started."""
        self._forms: Mapping[str, str] = {}
        """How the arguments of each skill are sent."""
        self._is_skill_only = entry.wire == WIRE_SKILL_ONLY
        self._catalog = catalog
        self._compile = compile_schema
        self._validate = compile_schema(SCHEMA)
        self._prefix = prefix
        self._following = TaskFollower(self.name, self.client)
        self._conversations = Conversations(self.name, conversations)

    # --- what is known of it ----------------------------------------------------------------------

    def offer(self, probed: ProbedAgent, card_id: str) -> None:
        """Puts what the peer's card says in the place of what was offered before. Raises
        `ConfigError` where some of it is called as another's tools are, and offers the rest."""
        offered = (probed, card_id, self.entry.trust)
        if self._offered == offered:
            return
        tools = self._tools(probed, card_id)
        self._offered, self.probed = offered, probed
        self.was_found = True
        self._forms = choose_argument_forms(probed.found.raw, probed.card)
        self.state, self.reason = "connected", ""
        try:
            self._catalog.offer(self.name, tools)
        except ConfigError as error:
            raise ConfigError(self._taken(tools) or str(error)) from None

    def withdraw(self, why: str) -> None:
        self._catalog.withdraw(self.name)
        self._offered = self.probed = None
        self.state, self.reason = "failed", why

    async def stop(self) -> None:
        self.withdraw("it was stopped")
        self.state = "stopped"
        await self._following.close()
        await self.client.close()

    def snapshot(self) -> dict[str, Any]:
        probed = self.probed
        return {
            "name": self.name,
            "url": render_origin(self.entry.url),
            "state": self.state,
            "reason": self.reason,
            "dialect": str(probed.endpoint) if probed and probed.endpoint else None,
            "skills": len(probed.card["skills"]) if probed else 0,
            "findings": list(probed.findings) if probed else [],
        }

    # --- its tools --------------------------------------------------------------------------------

    def _tools(self, probed: ProbedAgent, card_id: str) -> list[Tool]:
        sources = SOURCES[TRUST[self.entry.trust]]
        whole = agent_tool(self, _facts(self.name, probed.card), self._prefix, self._validate)
        # In the hub's own words: the ids of skills may not have been approved yet.
        description = f"{whole.description.rstrip()} {TAKES_MESSAGES}"
        if self.slug and probed.card.get("skills"):
            description += f' Its skills are also tools, named "{self.slug}.…": {OTHERWISE}'
        whole = replace(
            whole,
            description=description,
            definition={**whole.definition, "description": description},
            sources=sources,
            sinks=SINKS,
        )
        if not self.slug:
            probed.add_finding(
                f'its skills are no tools: "{self.name}" has nothing to make names of'
            )
            return [whole]
        owner = SkillOwner(self, self.slug, card_id, render_origin(self.entry.url), sources, SINKS)
        odd: list[str] = []
        skills = build_skill_tools(owner, probed.card, self._compile, {whole.name}, odd)
        for finding in odd:
            probed.add_finding(finding)
        return [whole, *skills]

    def _taken(self, tools: list[Tool]) -> str:
        """Which names are another's, and whose."""
        found = []
        for tool in tools:
            holder = self._catalog.find(tool.name).target
            if holder is not self and not isinstance(holder, Nowhere):
                found.append(f'"{tool.name}" is a tool of "{holder.name}" already')
        names = "; ".join(found[:MAX_TAKEN])
        more = f" and {len(found) - MAX_TAKEN} more" if len(found) > MAX_TAKEN else ""
        told = f'agent "{self.name}" is not offered whole: {names}{more}; rename one of the two'
        return told if found else ""

    # --- calls ------------------------------------------------------------------------------------

    async def run(self, call: Call) -> Result:
        skill = call.tool.bridged is not None
        try:
            probed = self._there()
            result = await (self._timed(call, probed) if skill else self._work(Work(call, probed)))
        except (HubError, A2aError) as error:
            self._judge(error)
            if skill:
                told = remote_error(error, self.name)
            elif isinstance(error, HubError):
                told = error
            else:
                told = WorkFailed(f'agent "{self.name}" answered: {error.message}')
            if told is error:
                raise
            raise told from error
        except BaseException:
            self.breaker.release()
            raise
        self.breaker.record_success()
        return result

    def _there(self) -> ProbedAgent:
        wait = self.breaker.admit()
        if wait:
            raise _NotTried(
                f'agent "{self.name}" could not be reached several times in a row; it is tried '
                f"again in {max(1, round(wait))} s",
                sent=False,
            )
        if self.probed is None:
            raise _NotTried(f'agent "{self.name}" is not there now: {self.reason}', sent=False)
        return self.probed

    def _judge(self, error: HubError | A2aError) -> None:
        """What the error says of whether anybody is there."""
        status = error.status if isinstance(error, AgentHttpStatus | A2aErrorStatus) else 0
        if isinstance(error, _NotTried):
            return
        if isinstance(error, Unreachable) or status in AWAY:
            self.breaker.record_failure()
        elif isinstance(error, A2aError | BadReply | WorkFailed | Declined | NeedsInput):
            self.breaker.record_success()
        else:
            self.breaker.release()

    async def _timed(self, call: Call, probed: ProbedAgent) -> Result:
        work = Work(call, probed, self.patience)
        try:
            return await self._work(work)
        except asyncio.CancelledError:
            if work.patience is None or not work.patience.ran_out():
                raise
            raise RemoteA2ATimeoutError(self._late(call)) from None
        except TimedOut as error:
            if call.notes.remote_task is None:
                raise RemoteA2ATimeoutError(self._late(call)) from error
            raise
        finally:
            if work.patience is not None:
                work.patience.end()

    def _late(self, call: Call) -> str:
        said = f'"{call.tool.name}" took longer than {self.patience:g} s'
        task = call.notes.remote_task
        if task is None:
            return f"{said} without an answer; it may or may not have been done"
        where = render_origin(self.entry.url)
        where = where if HIDDEN not in where else "URL"
        return (
            f'{said}; agent "{self.name}" goes on with it as task "{task}": look at it with '
            f"`dragoman a2a task {where} {task}`"
        )

    async def _work(self, work: Work) -> Result:
        call = work.call
        if call.handle is not None:
            return await self._continued(work)
        asked = context_in_meta(call)
        arguments = call.arguments
        if not asked and self._names_conversation(call):
            asked = str(arguments[CONTEXT])
            arguments = {name: arguments[name] for name in arguments if name != CONTEXT}
        conversation = Conversation()
        if not self._is_skill_only:  # there messages have no member for it
            conversation = self._conversations.find(call, asked)
        return await self._done(work, self._parts(call, arguments), conversation)

    def _names_conversation(self, call: Call) -> bool:
        """Whether the argument `context` is the hub's. A skill may have one of its own."""
        if CONTEXT not in call.arguments:
            return False
        if call.tool.bridged is None:
            return True
        properties = call.tool.definition["inputSchema"].get("properties")
        own = isinstance(properties, Mapping) and CONTEXT in properties
        return not own and is_conversation_id(call.arguments[CONTEXT])

    def _parts(self, call: Call, arguments: Mapping[str, Any]) -> list[Part]:
        if call.tool.bridged is not None:
            form = self._forms.get(call.tool.remote_name, AS_DATA)
            return parts_from_arguments(arguments, AS_DATA if self._is_skill_only else form)
        if len(arguments) == 1 and isinstance(text := arguments.get(MESSAGE), str):  # as most
            return [{"text": text}]
        return [part_from_block(block) for block in blocks_from_arguments(arguments)]

    async def _done(
        self, work: Work, parts: list[Part], conversation: Conversation, task: str = ""
    ) -> Result:
        """Sends the parts and follows what the agent makes of them."""
        message = build_user_message(parts, context=conversation.context, task=task)
        work.address(message)
        try:
            far = await self._following.begun(work, message)
        except A2aError as error:
            if conversation.context and not conversation.asked and error.reason in STALE:
                self._conversations.end(work.call, conversation)
            raise
        return self._result(far, work, conversation)

    def _result(self, far: RemoteTask, work: Work, conversation: Conversation) -> Result:
        call = work.call
        id = ""
        if not self._is_skill_only:
            id = self._conversations.keep(call, conversation, far.context)
        handle = "" if far.is_over else encode_handle(far, id)
        if call.tool.bridged is None:
            result = far.result(handle)
        else:
            version = work.probed.endpoint.version if work.probed.endpoint is not None else ""
            result = result_of(far, handle, self.name, version)
        if result.questions and (problem := unanswerable(result.questions, call)):
            self._following.cancel(far.id, work)
            raise problem
        if not id or result.questions:
            return result
        return add_context(result, call, id, shown=call.tool.bridged is None)

    # --- answers to its questions -----------------------------------------------------------------

    async def _continued(self, work: Work) -> Result:
        task, conversation = decode_handle(work.call)
        if work.call.answers is FOLLOW:
            far = await self._following.followed(work, task, conversation.context)
            return self._result(far, work, conversation)
        answers = work.call.answers or {}
        name = AUTH if AUTH in answers else REPLY
        answer = answers.get(name)
        if not isinstance(answer, Mapping) or answer.get("action", "accept") != "accept":
            self._following.cancel(task, work)
            raise WorkFailed(
                f'the task of agent "{self.name}" was given up: its question was not answered'
            )
        parts = parts_from_answer(answer.get("content"))
        if name == AUTH or not parts:
            seconds = 0.0 if parts else LOGIN_SECONDS
            gone_on = await self._following.gone_on(work, task, conversation.context, seconds)
            if gone_on is not None:
                return self._result(gone_on, work, conversation)
            parts = parts or [{"text": "It is done; please go on."}]
        return await self._done(work, parts, conversation, task)


class _NotTried(Unreachable):
    """Nothing was tried: it says nothing of whether anybody is there."""


# --- from an entry and a card ---------------------------------------------------------------------


def _trust(entry: ExternalAgent, signatures: str, place: Path) -> CardTrust:
    origin = parse_origin(entry.url)
    if origin is None:
        raise ConfigError(
            f'agent "{entry.name}" is at "{render_origin(entry.url)}", which is no http:// or '
            "https:// address"
        )
    keys = [load_public_key(place / path) for path in entry.keys]
    return CardTrust(entry.signatures or signatures, {origin: keys} if keys else None)


MAX_EXTENSIONS = 32
_VERSION = re.compile(r"[vV]?[0-9][0-9A-Za-z.+_-]{0,31}")


def _version(said: Any) -> str:
    """A version is not pinned, because it changes with every release: so no other words pass as
    one."""
    return said if isinstance(said, str) and _VERSION.fullmatch(said) else "1.0.0"


def _facts(name: str, card: Mapping[str, Any]) -> AgentFacts:
    return AgentFacts(
        name=name,
        description=card.get("description") or f'The agent "{card.get("name")}".',
        version=_version(card.get("version")),
        skills=card.get("skills") or (),
        input_modes=card.get("defaultInputModes") or ("text/plain",),
        output_modes=card.get("defaultOutputModes") or ("text/plain",),
        extensions=_extensions(card),
    )


def _extensions(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By their names alone: callers who know an extension know what it is, and what an agent says
    of those that it does not require is not pinned."""
    declared = card.get("capabilities", {}).get("extensions") or ()
    return [
        {"uri": one["uri"], "description": "", "required": one.get("required") is True}
        for one in declared[:MAX_EXTENSIONS]
        if EXTENSION.fullmatch(str(one.get("uri", "")))
    ]
