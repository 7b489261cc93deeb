"""From a message to a running task: which agent or tool it is for, whether it was sent before,
whether it continues a task. The task runs `Hub.call`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from time import time
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from dragoman.a2a.config import HUB
from dragoman.a2a.protocol.dialects import find_traits, operations
from dragoman.a2a.protocol.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from dragoman.a2a.protocol.parts import join_texts
from dragoman.a2a.protocol.validation import AGENT
from dragoman.a2a.server import routing
from dragoman.a2a.server.form_answers import build_agent_answers, parse_answers
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.routing import HUB_FACTS, Destination, MessageRouter
from dragoman.a2a.server.skill_question import PLAIN_QUESTION, SkillQuestion
from dragoman.a2a.server.task import (
    MAX_BYTES,
    NO_EXTRA,
    STATES,
    A2aTask,
    A2aTaskHeader,
    A2aTaskRecord,
    A2aTaskRegistry,
    new_id,
)
from dragoman.a2a.server.task_access import TaskAccess
from dragoman.core import errors
from dragoman.core.call import NOTHING, MessageOrigin, Result, Updates, WantedUpdates
from dragoman.core.cluster import find_mark
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.ports import StoredTask
from dragoman.core.principal import Principal
from dragoman.core.tasks import SUBMITTED, WAITS, WORKING, Task
from dragoman.core.tool import Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import KEY_META
from dragoman.core.trace import TraceContext, new_trace

FEATURES: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
"""What a client that sends messages can be asked."""
WANTED = WantedUpdates(progress=True, task_start=True)

MAX_KEYS = 32
"""Idempotency keys that are kept of one task: those of its last messages."""

Sent: TypeAlias = tuple[A2aTask, int]
"""The running task, and the number of its last entry when the message was taken."""


class MessageSender:
    def __init__(
        self,
        hub: Hub,
        tasks: A2aTaskRegistry,
        router: MessageRouter,
        access: TaskAccess,
        push: PushNotifier,
    ) -> None:
        self._hub = hub
        self._tasks = tasks
        self._router = router
        self._access = access
        self._push = push
        self._skill_question = SkillQuestion(hub)
        self._by_key: WeakValueDictionary[tuple[Principal, str], A2aTask] = WeakValueDictionary()
        """The tasks of messages that were sent with an idempotency key."""

    def load(self) -> None:
        """Loads the tasks of an earlier hub."""
        self._tasks.load(self._build_stored)
        self._note_keys(self._tasks)

    async def take_over(self, hub: str) -> None:
        """Takes over the tasks of another hub that has ended."""
        await self._tasks.take_over(hub, self._build_stored, self._note_keys)

    def list_elsewhere(self, principal: Principal) -> list[A2aTask]:
        """Lists the tasks of a principal that other hubs own, to be shown."""
        return self._tasks.list_elsewhere(principal, self._build_stored)

    def _note_keys(self, tasks: Iterable[A2aTask]) -> None:
        for task in tasks:
            for key in task.record.header.sends:
                self._by_key[task.owner, key] = task

    def _build_stored(self, stored: StoredTask) -> A2aTask:
        try:
            if stored.state not in STATES:
                raise TypeError(f'unknown state "{stored.state}"')
            header = A2aTaskHeader.from_stored(stored.about)
        except TypeError as error:
            raise errors.ConfigError(
                f'task "{stored.id[:100]}" in tasks.db is damaged ({error}); restore it from a '
                "backup, or move it away and continue without it: dragoman stores accept-loss tasks"
            ) from error
        record = A2aTaskRecord(stored.id, header, stored.created)
        record.trace_context = TraceContext(header.trace, "", "") if header.trace else None
        record.arguments = header.arguments
        record.shown = True
        return Task(stored.owner, self._call, record, record.id)

    # --- one message ---------------------------------------------------------------------------

    def send(
        self, ctx: RequestContext, request: Mapping[str, Any], streamed: bool
    ) -> Sent | Awaitable[Sent]:
        """Starts a task with the message, or continues the one that it names. The call has started
        when this returns, unless the message comes with a webhook: that is checked first."""
        if len(request) > 1:
            push = request.get("configuration", NOTHING).get("taskPushNotificationConfig")
            if push is not None:
                return self._send_with_push(ctx, request, streamed, push)
        return self._send(ctx, request, streamed)

    def _send(
        self, ctx: RequestContext, request: Mapping[str, Any], streamed: bool
    ) -> Sent | Awaitable[Sent]:
        if ctx.key and (repeated := self._find_repeated(ctx, request["message"])) is not None:
            return repeated, repeated.record.count
        task = self._find_continued(ctx, request)
        if task is None:
            task = self._create(ctx, request, streamed, WORKING)
            if task.state == WORKING:
                task.start()
        else:
            self._continue(ctx, task, request, streamed)
        if ctx.key:
            self._store_first(task)
        sent = task, task.record.message_number
        return sent if task.record.header.tool else self._ask_for_skill(sent)

    async def _ask_for_skill(self, sent: Sent) -> Sent:
        """Asks the client of a task which skill its message is for, also if the search fails or the
        client disconnects meanwhile."""
        task, number = sent
        question = PLAIN_QUESTION
        try:
            text = join_texts(task.record.message["parts"])
            question = await self._skill_question.build(text, task.owner)
        finally:
            is_newest = task.record.message_number == number
            if is_newest and (task.state == SUBMITTED or task.state in WAITS):
                task.ask(question)
        return sent

    async def _send_with_push(
        self,
        ctx: RequestContext,
        request: Mapping[str, Any],
        streamed: bool,
        push: Mapping[str, Any],
    ) -> Sent:
        """Nothing has happened if the webhook is refused."""
        if ctx.key and (repeated := self._find_repeated(ctx, request["message"])) is not None:
            return repeated, repeated.record.count
        task = self._find_continued(ctx, request)
        if task is not None:
            if task.state in WAITS:  # in any other state it takes no message
                await self._set_push(ctx, task, push, task.record.count)
            sent = self._send(ctx, request, streamed)
            return sent if isinstance(sent, tuple) else await sent
        task = self._create(ctx, request, streamed, SUBMITTED)
        try:
            await self._set_push(ctx, task, push, task.record.message_number)
        except BaseException:  # a client that disconnects would leave the task behind for ever
            if not task.record.shown:
                self._tasks.remove(task)
            raise
        sent = task, task.record.message_number
        if not task.record.header.tool:
            await self._ask_for_skill(sent)
        elif task.state == SUBMITTED:
            task.begin()
        if ctx.key:
            self._store_first(task)
        return sent

    async def _set_push(
        self, ctx: RequestContext, task: A2aTask, push: Mapping[str, Any], after: int
    ) -> None:
        routing.check_push_support(
            self._router.get_facts(task.record.header.agent or HUB, ctx.principal)
        )
        await self._push.set(task, push, ctx.version, after=after)

    def _find_continued(self, ctx: RequestContext, request: Mapping[str, Any]) -> A2aTask | None:
        """The task that the message continues; None for a message that starts one."""
        id = request["message"].get("taskId")
        if id is not None:
            return self._access.get(ctx, id)
        chosen = request.get(operations.TASK_ID)
        return self._access.find(ctx, chosen) if chosen is not None else None

    def _store_first(self, task: A2aTask) -> None:
        """A message with an idempotency key is stored before its call begins, in the next step of
        the loop: if it is sent again after a crash, the client gets this task."""
        try:
            self._tasks.flush()
        except errors.StorageFailed:
            if not task.record.shown:
                self._tasks.remove(task)
            raise

    # --- a new task ----------------------------------------------------------------------------

    def _create(
        self, ctx: RequestContext, request: Mapping[str, Any], streamed: bool, state: str
    ) -> A2aTask:
        """A task in `state`, or in SUBMITTED if the message does not say what it is for."""
        self._hub.cluster.check_lease()
        message, router, principal = request["message"], self._router, ctx.principal
        there = router.route(ctx.agent, request, principal)
        routing.check_agent_requirements(there.facts, ctx.extensions, streamed)
        if there.facts is not HUB_FACTS or not there.tool:
            routing.check_media_types(there.facts, message["parts"])
        named = ""
        if not there.tool:
            named = router.match_skill(join_texts(message["parts"]), principal)
            line, content = ("", message) if named else router.match_line(message, principal)
            if skill := named or line:
                there = router.route(HUB, _name_skill(request, skill), principal)
        else:
            content = message
        extra = NO_EXTRA
        arguments, schema = self._build_arguments(principal, there, content, NOTHING, named)
        if len(request) > 1 or ctx.extensions or not _PLAIN.issuperset(message):
            extra = self._collect_extra(ctx, there.agent, request)
        trace_context = ctx.trace_context or TraceContext(new_trace().id, "", "")
        context = message.get("contextId") or new_id()
        header = A2aTaskHeader(
            context, there.agent, there.tool, ctx.version, 0, there.skill, trace_context.id
        )
        id = request.get(operations.TASK_ID) or new_id(self._hub.cluster.mark)
        record = A2aTaskRecord(id, header, time())
        record.trace_context, record.arguments, record.schema = trace_context, arguments, schema
        record.continues = there.is_agent and there.facts.continues
        record.add_message(message, extra)
        if there.tool and state == WORKING:
            record.log_state(state, "")
        else:
            state = SUBMITTED
        task: A2aTask = Task(principal, self._call, record, record.id, state)
        if ctx.key:
            if self._hub.cluster.mark:
                self._claim_key(ctx, task)
            self._note_key(ctx, task, message)
        self._tasks.insert(task)
        return task

    def _build_arguments(
        self,
        principal: Principal,
        there: Destination,
        message: Mapping[str, Any],
        known: Mapping[str, Any],
        named: str = "",
    ) -> tuple[dict[str, Any], Any]:
        """The arguments of the call, and the schema of a tool's. `known` are those of earlier
        messages; `named` is the skill if the whole message is its name and nothing else."""
        if there.is_agent:
            return routing.build_agent_arguments(message), None
        if not there.tool:
            return {}, None
        tool = self._router.find_visible_tool(there.tool, principal)
        schema = tool.definition.get("inputSchema")
        if named:
            return {}, schema
        return routing.build_tool_arguments(message, known, schema), schema

    def _collect_extra(
        self, ctx: RequestContext, agent: str, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """What came with a message, for an agent that can use it."""
        message = request["message"]
        uris, references = message.get("extensions"), message.get("referenceTaskIds")
        found: dict[str, Any] = dict(NO_EXTRA)
        if uris:
            found["message_extensions"] = uris
        configuration = request.get("configuration", NOTHING)
        kept = {name: configuration[name] for name in _CONFIGURED if name in configuration}
        if kept:
            found["configuration"] = kept
        if metadata := request.get("metadata"):
            found["request_metadata"] = metadata
        if ctx.extensions:
            found["extensions"] = sorted(ctx.extensions)
        if references:
            # The ids, here and at the agent, of those tasks of the same agent that the client may
            # read. Others are left out: to an agent behind the hub, all callers are one.
            tasks = (self._access.find_here(ctx, id) for id in references)
            found["references"] = [
                (task.id, task.record.header.far)
                for task in tasks
                if task is not None and task.record.header.agent == agent
            ]
        return found

    # --- a task that continues -------------------------------------------------------------------

    def _continue(
        self, ctx: RequestContext, task: A2aTask, request: Mapping[str, Any], streamed: bool
    ) -> None:
        message, record, header = request["message"], task.record, task.record.header
        self._check_continues(ctx, task, message)
        assert task.owned is not None
        self._tasks.make_space(task.owned)
        task.owner = ctx.principal  # equal, with its present roles: after a restart too
        facts = self._router.get_facts(header.agent or HUB, ctx.principal)
        routing.check_agent_requirements(facts, ctx.extensions, streamed)
        if facts is not HUB_FACTS:
            routing.check_media_types(facts, message["parts"])
        record.add_message(message, self._collect_extra(ctx, header.agent, request))
        if ctx.key:
            self._note_key(ctx, task, message)
        record.continues = bool(header.agent) and facts.continues
        if task.asked is not None and not record.continues:
            self._answer(task)
            return
        if record.continues and header.tool:
            record.arguments = routing.build_agent_arguments(record.message)
        elif not self._aim(task, request):
            return  # `_send` asks
        task.begin()

    def _check_continues(
        self, ctx: RequestContext, task: A2aTask, message: Mapping[str, Any]
    ) -> None:
        context = message.get("contextId")
        must_match = find_traits(ctx.version).context_must_match
        if context is not None and context != task.record.header.context and must_match:
            raise A2aError(
                INVALID_PARAMS,
                f'task "{task.id}" belongs to another context than "{context[:100]}"',
            )
        if task.finished:
            raise A2aError(
                UNSUPPORTED_OPERATION,
                f'task "{task.id}" is {STATES[task.state]} and takes no more messages; send one '
                "without taskId to start another",
            )
        if task.state not in WAITS:
            raise A2aError(
                UNSUPPORTED_OPERATION, f'task "{task.id}" is at work; wait until it asks'
            )
        if task.record.full or task.size >= MAX_BYTES:
            raise errors.Overloaded(
                f'task "{task.id}" has reached its size limit; cancel it and start another'
            )

    def _aim(self, task: A2aTask, request: Mapping[str, Any]) -> bool:
        """Adds the message to the arguments of the task's tool, or leads the task to the skill that
        the message names: by metadata, or by a text that is or begins with a skill's id and cannot
        be an argument of the tool. Returns False if there is no tool yet and the message names
        none."""
        record, header, router = task.record, task.record.header, self._router
        message, named, line = record.message, "", ""
        known: Mapping[str, Any] = record.arguments
        there = Destination(header.agent, HUB_FACTS, header.tool, header.skill, False)
        if not header.agent:
            chosen = router.route(HUB, request, task.owner)
            if not chosen.tool:
                text = join_texts(message["parts"])
                if not header.tool or not self._takes_text(task, text):
                    named = router.match_skill(text, task.owner)
                    if not named:
                        line, message = router.match_line(message, task.owner)
                if skill := named or line:
                    chosen = router.route(HUB, _name_skill(request, skill), task.owner)
            if not chosen.tool and not header.tool:
                return False
            if chosen.tool in ("", header.tool):
                named = ""
            else:
                if not header.tool and named:  # the first message is for the skill that this names
                    record.message = message = record.entries[0].event["message"]
                    named = ""
                there, known = chosen, NOTHING
                header.tool, header.skill, header.agent = there.tool, there.skill, there.agent
                record.continues = there.is_agent and there.facts.continues
        found = self._build_arguments(task.owner, there, message, known, named)
        record.arguments, record.schema = found
        return True

    def _takes_text(self, task: A2aTask, text: str) -> bool:
        tool = self._router.find_visible_tool(task.record.header.tool, task.owner)
        schema = tool.definition.get("inputSchema")
        return routing.find_text_property(schema, task.record.arguments, text) is not None

    def _answer(self, task: A2aTask) -> None:
        """Answers the target's questions, as soon as the client has answered all of them."""
        message = task.record.message
        if task.record.header.agent:  # it reads messages, and not forms alone
            task.answer(build_agent_answers(task.questions, message))
            return
        answers, missing = parse_answers(task.questions, message, task.partial_answers)
        task.partial_answers = answers if missing else {}
        if missing:
            task.ask(f"This is still missing: {missing}.")
        else:
            task.answer(answers)

    # --- idempotency ---------------------------------------------------------------------------

    def _build_key(self, ctx: RequestContext) -> str:
        """A key counts per agent; the default agent has two paths and one name."""
        return f"{self._router.get_facts(ctx.agent, ctx.principal).name}\n{ctx.key}"

    def _note_key(self, ctx: RequestContext, task: A2aTask, message: Mapping[str, Any]) -> None:
        key, keys = self._build_key(ctx), task.record.header.sends
        keys[key] = digest_message(message)
        while len(keys) > MAX_KEYS:
            del keys[next(iter(keys))]
        self._by_key[task.owner, key] = task

    def _find_repeated(self, ctx: RequestContext, message: Mapping[str, Any]) -> A2aTask | None:
        key = self._build_key(ctx)
        task = self._by_key.get((ctx.principal, key))
        if task is None or task.registry is None:
            return None
        digest = task.record.header.sends.get(key)
        if digest is not None and digest != digest_message(message):
            raise A2aError(
                INVALID_REQUEST,
                "this Idempotency-Key was used for another message; choose a new one",
            )
        return None if digest is None else task

    def _claim_key(self, ctx: RequestContext, task: A2aTask) -> None:
        """Several hubs may get the same message: one of them runs it. Raises `OwnedElsewhere` for a
        message that another hub has taken."""
        holder = self._tasks.claim_key(task, self._build_key(ctx))
        if holder == task.id:
            return
        # A task that is just being created is not stored yet, but its id names its hub.
        hub = self._tasks.find_hub(ctx.principal, holder) or find_mark(holder)
        self._hub.cluster.check(hub)
        raise errors.Overloaded(
            "a message with this Idempotency-Key is being taken by another hub; send it again"
        )

    # --- its call ------------------------------------------------------------------------------

    def _call(
        self, task: A2aTask, updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
    ) -> Coroutine[Any, Any, tuple[Tool, Result]]:
        """Takes what the call needs at once: a finished task is released, and an open question of
        it may still have to be withdrawn."""
        record, header = task.record, task.record.header
        name = header.tool
        if header.skill and header.agent:
            name = self._router.find_called_tool(name, header.agent, header.skill, task.owner)
        message = record.message
        origin = MessageOrigin(
            context=header.context,
            task=task.id,
            id=message.get("messageId", ""),
            metadata=message.get("metadata", NOTHING),
            skill=header.skill,
            turn=header.turn,
            **record.context_extra,
        )
        options = CallOptions(
            door="a2a",
            view=EVERYTHING,
            trace_context=record.trace_context,
            meta=_build_meta(header.sends) if header.sends else None,
            message=origin,
            updates=updates,
            wanted_updates=WANTED,
            features=FEATURES,
            answers=answers,
            handle=handle,
            attempt=task.attempt,
        )
        is_withdrawal = handle is not None and answers is None
        if header.sends and not is_withdrawal:
            return self._store_and_call(task, name, options)
        return self._hub.call(task.owner, name, record.arguments, options)

    async def _store_and_call(
        self, task: A2aTask, name: str, options: CallOptions
    ) -> tuple[Tool, Result]:
        """Makes the call of a message with an idempotency key once the key is stored. The heir of a
        hub that has ended sends what it does not know of again."""
        self._tasks.flush(task)
        return await self._hub.call(task.owner, name, task.record.arguments, options)

    def take_direct_reply(self, task: A2aTask) -> Mapping[str, Any] | None:
        """The message that answers in place of a task, if the target gave one and no client has
        seen the task; None where it stays a task. Raises the error of a call that never started."""
        record = task.record
        if record.shown or record.header.sends:
            return None
        if isinstance(task.error, _NOT_STARTED):
            self._tasks.remove(task)
            if isinstance(task.error, errors.NotFound):  # the skill, not a task
                raise A2aError(INVALID_PARAMS, str(task.error))
            raise task.error
        if task.result is None or not task.result.direct or not task.finished:
            return None
        self._tasks.remove(task)
        status = record.view.status if record.view is not None else NOTHING
        message = {**status.get("message", {"parts": [{"text": ""}]}), "role": AGENT}
        message.pop("taskId", None)
        return message


_NOT_STARTED = (errors.NotFound, errors.Refused, errors.AmbiguousName, errors.StorageFailed)
"""Errors of a call that has not reached its target."""


def _build_meta(sends: dict[str, str]) -> Mapping[str, Any]:
    """Passes the idempotency key of the last message on that had one."""
    return {KEY_META: next(reversed(sends)).partition("\n")[2]}


def _name_skill(request: Mapping[str, Any], skill: str) -> dict[str, Any]:
    return {**request, "metadata": {"skillId": skill}}


_PLAIN = frozenset(("messageId", "contextId", "taskId", "role", "parts", "metadata"))
"""The members of a message with nothing beside it."""

_CONFIGURED = ("acceptedOutputModes", "historyLength")
"""What an agent can use of a configuration. Whether the client waits, and where it wants to be
notified, concerns the hub, which follows the agent's task in any case."""


def digest_message(message: Mapping[str, Any]) -> str:
    """Of its content, and of the task it is for."""
    content = [message.get(member) for member in ("parts", "taskId", "metadata")]
    return hashlib.sha256(repr(content).encode("utf-8", "replace")).hexdigest()[:32]
