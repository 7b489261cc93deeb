"""A remote agent as a target: its tools, one for messages and one for each skill, and their calls.

The agent's progress becomes updates of the call, its questions become questions of the call. Knows
no dialect. The registry's health watch offers and withdraws the agent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.a2a.cards.signing import load_public_key
from dragoman.a2a.client.card_discovery import CardTrust, FoundCard
from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import A2aErrorStatus, AgentHttpStatus
from dragoman.a2a.config import WIRE_SKILL_ONLY, ExternalAgent
from dragoman.a2a.protocol.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    A2aError,
)
from dragoman.a2a.protocol.parts import JSON, Part, part_from_block
from dragoman.a2a.protocol.skill_tools import (
    AS_BOTH,
    AS_DATA,
    AS_TEXT,
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
    decode_place,
    encode_handle,
    parts_from_answer,
    result_from_task,
)
from dragoman.a2a.remote.task_follower import (
    EXTENSION,
    LOGIN_SECONDS,
    AgentTasks,
    TaskFollower,
    says_nothing,
)
from dragoman.core import errors
from dragoman.core.agent_tool import MESSAGE, SCHEMA, blocks_from_arguments, build_agent_tool
from dragoman.core.call import FOLLOW, Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.conversations import (
    CONTEXT,
    ContextStore,
    Conversation,
    ConversationLimits,
    Conversations,
    add_context,
    find_context_in_meta,
    is_conversation_id,
)
from dragoman.core.errors import HubError, Unreachable
from dragoman.core.holders import (
    bind_handle,
    bind_named,
    find_holder,
    open_handle,
    require_holder,
)
from dragoman.core.ports import SchemaCompiler, Viewer
from dragoman.core.question_handles import build_needs_input
from dragoman.core.structs import replace as replace_fields
from dragoman.core.tool import (
    EXTERNAL,
    TRUSTED,
    AgentFacts,
    Nowhere,
    TargetFacts,
    TargetTraits,
    Tool,
    Validator,
)
from dragoman.core.urls import HIDDEN, parse_origin, render_origin
from dragoman.wire.http import HolderClients, HttpClient
from dragoman.wire.json import encode

MAX_TAKEN = 10
ANSWERS = (A2aError, errors.BadReply, errors.WorkFailed, errors.Declined, errors.NeedsInput)
"""Errors that show that the agent is reachable."""
AWAY = frozenset((502, 503, 504))
"""Statuses by which a proxy reports that the agent is unreachable."""
SOURCES = {
    EXTERNAL: frozenset(("untrusted_agent", "external_network")),
    TRUSTED: frozenset(("external_network",)),
}
TRUST = {"external": EXTERNAL, "trusted": TRUSTED}
SINKS = frozenset(("agent", "net"))
"""What a remote agent receives leaves the hub."""
TAKES_MESSAGES = (
    "Takes a message in plain words, with files and data, and goes on with a conversation."
)
OTHERWISE = "call one of those for exactly that skill, and this for anything else."
STALE = frozenset((INVALID_PARAMS, INVALID_REQUEST, TASK_NOT_FOUND))
"""Reasons by which agents reject a message of a conversation that they have forgotten."""

NO_CONVERSATION = Conversation()
MAX_HOLDERS = 1_000
"""Users with credentials of their own whose conversations are kept."""

OpenHttp = Callable[[str, bool], HttpClient]
"""Opens an HTTP client for a registered URL; the flag allows private addresses."""


class _HolderState(NamedTuple):
    """What the callers with one credential share."""

    tasks: AgentTasks
    conversations: Conversations


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
        store: ContextStore | None = None,
        clients: HolderClients | None = None,
        check_message: Validator | None = None,
    ) -> None:
        """`headers` have the entry's names and placeholders or values; `signatures` is the default
        policy; `place` is the folder of its key files; `timeout` overrides the entry's for skills;
        `store` keeps its conversations beyond a restart; `clients` send the credentials of logins,
        for an agent without others; `check_message` is the compiled schema of messages, which many
        agents share."""
        self.entry = entry
        self.name = entry.name
        self.slug = slug_from_name(entry.name)
        self.reason = "it was not checked yet"
        self.timeout = timeout or entry.timeout_secs
        """Seconds that a skill may take; the hub's own timeout is longer."""
        self.breaker = CircuitBreaker()
        facts = TargetFacts(
            type="RemoteAgent", org=org, trust=TRUST[entry.trust], transport="a2a", healthy=False
        )
        self.traits = TargetTraits(
            facts=facts,
            may_last=True,
            timeout=self.timeout,
            timeout_error=errors.RemoteA2ATimeoutError,
            ends_questions=True,
            is_published=entry.public,
            finds_tasks=True,
        )
        """The health watch keeps the facts up to date."""
        self.clients = clients
        self.is_per_user = clients is not None and clients.is_per_user
        """Whether each user's calls are made with a credential of that user."""
        self.client = A2aClient(
            clients.get_list_client() if clients else reach(entry.url, entry.allow_private),
            headers,
            entry.timeout_secs,
            registered=entry.url,
            trust=_build_trust(entry, signatures, place),
            wire=entry.wire,
        )
        self.probed: ProbedAgent | None = None
        """As offered: calls go to the endpoint of this card, whatever its card says now."""
        self._offered: tuple[ProbedAgent, FoundCard | None, str, str] | None = None
        self.was_found = False
        """Whether it was offered since the hub started."""
        self._forms: Mapping[str, str] = {}
        """How the arguments of each skill are sent."""
        self._is_skill_only = entry.wire == WIRE_SKILL_ONLY
        self._catalog = catalog
        self._compile = compile_schema
        self._validate = check_message or compile_schema(SCHEMA)
        self._prefix = prefix
        self._limits = conversations
        self._store = store
        self._shared = _HolderState(
            AgentTasks(self.name, self.client), self._build_conversations("")
        )
        self._holders: dict[str, _HolderState] = {}
        """Of users with credentials of their own."""

    # --- offering ---------------------------------------------------------------------------------

    def offer(self, probed: ProbedAgent, card_id: str) -> None:
        """Replaces its tools by those of the card. Raises `ConfigError` if some names are taken by
        another target, and offers the rest."""
        offered = (probed, probed.extended, card_id, self.entry.trust)
        if self._offered == offered:
            return
        tools = self._build_tools(probed, card_id)
        self._offered, self.probed = offered, probed
        self.was_found = True
        self._forms = choose_argument_forms(probed.found.raw, probed.card)
        if (extended := probed.extended) is not None:
            forms = choose_argument_forms(extended.raw, extended.card)
            self._forms = {**forms, **self._forms}
        self.reason = ""
        try:
            self._catalog.offer(self.name, tools)
        except errors.ConfigError as error:
            raise errors.ConfigError(self._describe_conflicts(tools) or str(error)) from None

    def withdraw(self, why: str) -> None:
        self._catalog.withdraw(self.name)
        self._offered = self.probed = None
        self.reason = why

    async def stop(self) -> None:
        self.withdraw("it was stopped")
        for state in (self._shared, *self._holders.values()):
            await state.tasks.close()
            await state.tasks.client.close()

    # --- tools ------------------------------------------------------------------------------------

    def _build_tools(self, probed: ProbedAgent, card_id: str) -> list[Tool]:
        sources = SOURCES[TRUST[self.entry.trust]]
        card, extended = probed.card, probed.extended
        facts = _build_facts(self.name, card)
        if extended is not None:
            card = {**card, "skills": merge_skills(card["skills"], extended.card["skills"])}
            more = replace(_build_facts(self.name, extended.card), skills=())
            facts = replace(facts, skills=card["skills"], extended=True, extended_facts=more)
        whole = build_agent_tool(self, facts, self._prefix, self._validate)
        # Names no skill: the ids of skills may not be approved yet.
        description = f"{whole.description.rstrip()} {TAKES_MESSAGES}"
        if self.slug and card.get("skills"):
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
                f'its skills are not tools: no tool name can be made of "{self.name}"'
            )
            return [whole]
        owner = SkillOwner(self, self.slug, card_id, render_origin(self.entry.url), sources, SINKS)
        odd: list[str] = []
        skills = build_skill_tools(owner, card, self._compile, {whole.name}, odd)
        for finding in odd:
            probed.add_finding(finding)
        return [whole, *skills]

    def _describe_conflicts(self, tools: list[Tool]) -> str:
        """Lists the names that other targets have; empty if there are none."""
        found = []
        for tool in tools:
            holder = self._catalog.find(tool.name).target
            if holder is not self and not isinstance(holder, Nowhere):
                found.append(f'"{tool.name}" is a tool of "{holder.name}" already')
        names = "; ".join(found[:MAX_TAKEN])
        more = f" and {len(found) - MAX_TAKEN} more" if len(found) > MAX_TAKEN else ""
        problem = f'agent "{self.name}" is offered in part: {names}{more}; rename one of them'
        return problem if found else ""

    # --- logins -----------------------------------------------------------------------------------

    def needs_login(self, viewer: Call | Viewer) -> bool:
        """Whether calls of such a client will fail until its user, or an administrator, logs in."""
        if self.clients is None:
            return False
        if not self.is_per_user:
            return not self.clients.has_login(self.clients.find_list_holder())
        holder = find_holder(viewer)
        return holder is not None and not self.clients.has_login(holder)

    def _find_state(self, holder: str) -> _HolderState:
        state = self._holders.get(holder)
        if state is None:
            assert self.clients is not None
            if len(self._holders) >= MAX_HOLDERS:
                raise errors.Overloaded(
                    f'agent "{self.name}" is used by {MAX_HOLDERS} users, which is the limit'
                )
            client = self.client.share(self.clients.get_client(holder))
            state = self._holders[holder] = _HolderState(
                AgentTasks(self.name, client), self._build_conversations(holder)
            )
        return state

    def _build_conversations(self, holder: str) -> Conversations:
        """Another agent under the same name, and another login, do not know the contexts."""
        peer = sha256(f"{self.entry.url}\0{holder}".encode()).hexdigest()[:16]
        scope = f"{self.name} {peer}"
        return Conversations(self.name, self._limits, store=self._store, scope=scope)

    # --- calls ------------------------------------------------------------------------------------

    def run(self, call: Call) -> Coroutine[Any, Any, Result]:
        """Makes the call; with the credential of the user who started its chain where each user has
        one."""
        return self._run_for_user(call) if self.is_per_user else self._run(call, self._shared)

    async def _run_for_user(self, call: Call) -> Result:
        """A handle is bound to the user, too: agents that serve several users are one principal."""
        holder = require_holder(call, self.name)
        if call.handle is not None:
            handle = open_handle(call.handle, holder)
            if handle is None:
                raise errors.InvalidInput(
                    f'the question of "{call.tool.name}" is no longer open; start the call again'
                )
            call = replace_fields(call, handle=handle)
        if call.task is not None:
            call = replace_fields(call, updates=bind_named(call.updates, holder))
        result = await self._run(call, self._find_state(holder))
        if result.handle is None:
            return result
        return replace_fields(result, handle=bind_handle(result.handle, holder))

    async def _run(self, call: Call, state: _HolderState) -> Result:
        follower: TaskFollower | None = None
        conversation = NO_CONVERSATION
        try:
            probed = self.probed
            if probed is None or self.breaker.failures:
                probed = self._require_reachable()
            seconds = self.timeout if call.tool.bridged is not None else None
            if call.task is not None and call.sends_nothing:
                follower = TaskFollower(state.tasks, probed, call, seconds)
                if call.handle is None:
                    task = await follower.find()
                else:
                    task_id, conversation = decode_handle(call)
                    task = await self._ask_about(follower, task_id, conversation.context)
            elif call.handle is None:
                conversation, arguments = await self._find_conversation(call, state.conversations)
                parts = self._build_parts(call, arguments)
                follower = TaskFollower(state.tasks, probed, call, seconds)
                task = await follower.send(parts, conversation.context)
            else:
                task_id, conversation = decode_handle(call)
                follower = TaskFollower(state.tasks, probed, call, seconds)
                task = await self._continue(follower, task_id, conversation.context)
            result = self._build_result(task, follower, conversation, state.conversations)
        except (HubError, A2aError) as error:
            raised = self._convert_error(error, call, conversation, state.conversations)
            if raised is error:
                raise
            raise raised from error
        except asyncio.CancelledError as error:
            self.breaker.release()
            if follower is None or not follower.take_timeout():
                raise
            raise errors.RemoteA2ATimeoutError(self._describe_timeout(call)) from error
        except BaseException:
            self.breaker.release()
            raise
        finally:
            if follower is not None and follower.timer is not None:
                follower.stop_timer()
        if self.breaker.failures:
            self.breaker.record_success()
        return result

    def _require_reachable(self) -> ProbedAgent:
        if wait := self.breaker.admit():
            raise _NotTried(
                f'agent "{self.name}" was unreachable several times in a row; the next attempt is '
                f"in {max(1, round(wait))} s",
                sent=False,
            )
        if self.probed is None:
            raise _NotTried(f'agent "{self.name}" is unavailable: {self.reason}', sent=False)
        return self.probed

    def _convert_error(
        self,
        error: HubError | A2aError,
        call: Call,
        conversation: Conversation,
        conversations: Conversations,
    ) -> HubError:
        """Informs the circuit breaker, and returns the error that clients of the tool know."""
        is_stale = isinstance(error, A2aError) and error.reason in STALE
        if is_stale and conversation.context and not conversation.is_named:
            conversations.forget(call, conversation)
        status = error.status if isinstance(error, AgentHttpStatus | A2aErrorStatus) else 0
        if isinstance(error, Unreachable) or status in AWAY:
            if not isinstance(error, _NotTried):
                self.breaker.record_failure()
        elif isinstance(error, ANSWERS):
            self.breaker.record_success()
        else:
            self.breaker.release()
        if call.sends_nothing:
            error = self._convert_poll_error(error, call)
        if call.tool.bridged is not None:
            if isinstance(error, errors.TimedOut) and call.notes.remote_task is None:
                return errors.RemoteA2ATimeoutError(self._describe_timeout(call))
            return convert_skill_error(error, self.name)
        if isinstance(error, HubError):
            return error
        return errors.WorkFailed(f'agent "{self.name}" answered: {error.message}')

    def _convert_poll_error(self, error: HubError | A2aError, call: Call) -> HubError | A2aError:
        """Tells what is known of the task by an error: that it is lost, or nothing."""
        reason = error.reason if isinstance(error, A2aError) else ""
        if reason == TASK_NOT_FOUND:
            return errors.TaskLost(self._describe_lost(call))
        if says_nothing(error) and not isinstance(error, errors.PASSING):
            return Unreachable(f'agent "{self.name}" does not say how the task stands: {error}')
        return error

    def _describe_lost(self, call: Call) -> str:
        task = call.notes.remote_task or ""
        made, endpoint = decode_place(call.handle), self.probed and self.probed.endpoint
        said = f'agent "{self.name}" does not know its task "{task}" any more'
        if made and endpoint is not None and str(endpoint) != made:
            said += f", which it made as {made} and is now asked for as {endpoint}"
        return (
            f"{said}: it was restarted, or has deleted the task; whether the work was done is "
            "unknown"
        )

    def _describe_timeout(self, call: Call) -> str:
        said = f'"{call.tool.name}" took longer than {self.timeout:g} s'
        task = call.notes.remote_task
        if task is None:
            return f"{said} without an answer; it may or may not have been done"
        where = render_origin(self.entry.url)
        where = where if HIDDEN not in where else "URL"
        return (
            f'{said}; agent "{self.name}" continues it as task "{task}": see '
            f"`dragoman a2a task {where} {task}`"
        )

    async def _find_conversation(
        self, call: Call, conversations: Conversations
    ) -> tuple[Conversation, Mapping[str, Any]]:
        """Returns the conversation that the call continues, and its arguments without the id."""
        arguments = call.arguments
        if self._is_skill_only:  # its messages have no context id
            return NO_CONVERSATION, arguments
        asked = find_context_in_meta(call) if call.meta else ""
        if not asked and CONTEXT in arguments and self._names_conversation(call):
            asked = str(arguments[CONTEXT])
            arguments = {name: arguments[name] for name in arguments if name != CONTEXT}
        if id := conversations.find_unloaded(call, asked):
            await conversations.load(call, id)
        return conversations.find(call, asked), arguments

    def _names_conversation(self, call: Call) -> bool:
        """Whether the argument `context` is the hub's: a skill may have one of its own."""
        if call.tool.bridged is None:
            return True
        properties = call.tool.definition["inputSchema"].get("properties")
        own = isinstance(properties, Mapping) and CONTEXT in properties
        return not own and is_conversation_id(call.arguments[CONTEXT])

    def _build_parts(self, call: Call, arguments: Mapping[str, Any]) -> list[Part]:
        if call.tool.bridged is not None:
            form = self._forms.get(call.tool.remote_name, AS_DATA)
            return parts_from_arguments(arguments, AS_DATA if self._is_skill_only else form)
        if len(arguments) == 1 and isinstance(text := arguments.get(MESSAGE), str):
            return [{"text": text}]
        return [part_from_block(block) for block in blocks_from_arguments(arguments)]

    def _build_result(
        self,
        task: RemoteTask,
        follower: TaskFollower,
        conversation: Conversation,
        conversations: Conversations,
    ) -> Result:
        call, id = follower.call, ""
        endpoint = follower.probed.endpoint
        if call.cancels:
            return Result()
        if call.task is not None and not task.is_settled:
            handle = encode_handle(task, conversation.id, str(endpoint or ""))
            return Result(unfinished=True, handle=handle)
        if not self._is_skill_only:
            id = conversations.keep(call, conversation, task.context)
        is_skill = call.tool.bridged is not None
        version = endpoint.version if endpoint is not None else ""
        handle = "" if task.is_over else encode_handle(task, id)
        result = result_from_task(task, handle, version if is_skill else None)
        if result.questions and (problem := build_needs_input(result.questions, call)):
            follower.cancel(task.id)
            raise problem
        if not id or result.questions:
            return result
        return add_context(result, call, id, shown=not is_skill)

    async def _ask_about(self, follower: TaskFollower, task_id: str, context: str) -> RemoteTask:
        """Asks how a task stands, or cancels it: one that has ended or is forgotten needs no
        more."""
        if not follower.call.cancels:
            return await follower.poll(task_id, context)
        try:
            await follower.end(task_id)
        except A2aError as error:
            if error.reason not in (TASK_NOT_FOUND, TASK_NOT_CANCELABLE):
                raise
        except TimeoutError:
            raise errors.TimedOut(
                f'agent "{self.name}" did not confirm in time that its task is cancelled'
            ) from None
        return RemoteTask(self.name, follower.call.updates, task_id, context)

    async def _continue(self, follower: TaskFollower, task_id: str, context: str) -> RemoteTask:
        """Sends the answer to a question of the agent, or waits for a login elsewhere."""
        call = follower.call
        if call.answers is FOLLOW:
            return await follower.wait_for_login(task_id, context)
        answers = call.answers or {}
        name = AUTH if AUTH in answers else REPLY
        answer = answers.get(name)
        if not isinstance(answer, Mapping) or answer.get("action", "accept") != "accept":
            follower.cancel(task_id)
            raise errors.WorkFailed(
                f'the task of agent "{self.name}" was cancelled: its question was not answered'
            )
        parts = parts_from_answer(answer.get("content"))
        if name == AUTH or not parts:
            seconds = 0.0 if parts else LOGIN_SECONDS
            resumed = await follower.continue_after_login(task_id, context, seconds)
            if resumed is not None:
                return resumed
            parts = parts or [{"text": "It is done; please go on."}]
        return await follower.send(parts, context, task_id)


def parts_from_arguments(arguments: Mapping[str, Any], form: str) -> list[Part]:
    """Builds one part of data, one of text, or both. A single argument that is text is the text;
    otherwise the text is the arguments' JSON."""
    parts: list[Part] = [] if form == AS_TEXT else [{"data": arguments, "mediaType": JSON}]
    if form == AS_TEXT or (form == AS_BOTH and arguments):
        first = next(iter(arguments.values()), "")
        alone = len(arguments) <= 1 and isinstance(first, str)
        parts.append({"text": first if alone else encode(arguments).decode()})
    return parts


def convert_skill_error(error: HubError | A2aError, agent: str) -> HubError:
    """Returns the error under the name that it has for skills, if it has one."""
    if isinstance(error, A2aErrorStatus):
        message = f'agent "{agent}" answered with HTTP {error.status}: {error.message}'
        return errors.RemoteA2ATransportError(message)
    if isinstance(error, A2aError):
        return errors.RemoteA2ATaskFailedError(f'agent "{agent}" answered: {error.message}')
    if isinstance(error, AgentHttpStatus):
        return errors.RemoteA2ATransportError(str(error))
    if isinstance(error, Unreachable):
        return errors.RemoteA2ATransportError(str(error), sent=error.sent)
    if isinstance(error, errors.TimedOut):
        return errors.RemoteA2ATimeoutError(str(error))
    if isinstance(error, errors.BadReply):
        return errors.RemoteA2AInvalidResponseError(str(error))
    if isinstance(error, errors.WorkFailed) and not isinstance(error, errors.TaskLost):
        return errors.RemoteA2ATaskFailedError(str(error), error.native)
    return error


class _NotTried(Unreachable):
    """Nothing was sent: it does not count as a failure of the agent."""


# --- parsing entries and cards --------------------------------------------------------------------


def _build_trust(entry: ExternalAgent, signatures: str, place: Path) -> CardTrust:
    origin = parse_origin(entry.url)
    if origin is None:
        raise errors.ConfigError(
            f'invalid address "{render_origin(entry.url)}" of agent "{entry.name}": use http:// or '
            "https://"
        )
    keys = [load_public_key(place / path) for path in entry.keys]
    return CardTrust(entry.signatures or signatures, {origin: keys} if keys else None)


def merge_skills(
    public: Sequence[Mapping[str, Any]], extended: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The skills of both cards; of one that is on both, what the public card says."""
    known = {skill["id"] for skill in public}
    more = [{**skill, "public": False} for skill in extended if skill["id"] not in known]
    return [*public, *more]


MAX_EXTENSIONS = 32
_VERSION = re.compile(r"[vV]?[0-9][0-9A-Za-z.+_-]{0,31}")


def _build_facts(name: str, card: Mapping[str, Any]) -> AgentFacts:
    # The version is not pinned, since it changes with every release: it must not carry other text.
    version = card.get("version")
    is_version = isinstance(version, str) and _VERSION.fullmatch(version)
    return AgentFacts(
        name=name,
        description=card.get("description") or f'The agent "{card.get("name")}".',
        version=str(version) if is_version else "1.0.0",
        skills=card.get("skills") or (),
        input_modes=card.get("defaultInputModes") or ("text/plain",),
        output_modes=card.get("defaultOutputModes") or ("text/plain",),
        extensions=_list_extensions(card),
        judges_media=True,
    )


def _list_extensions(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists the extensions by URI only: what an agent says about those that it does not require is
    not pinned."""
    declared = card.get("capabilities", {}).get("extensions") or ()
    return [
        {"uri": one["uri"], "description": "", "required": one.get("required") is True}
        for one in declared[:MAX_EXTENSIONS]
        if EXTENSION.fullmatch(str(one.get("uri", "")))
    ]
