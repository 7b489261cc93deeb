"""From a message to a task under way: what it is for, whether it was sent before, whether it goes
on with something. A task is a running `Hub.call`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from dragoman.a2a.config import HUB
from dragoman.a2a.protocol.dialects import find_traits, operations
from dragoman.a2a.protocol.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from dragoman.a2a.protocol.parts import join_texts
from dragoman.a2a.protocol.validation import AGENT
from dragoman.a2a.server import routing
from dragoman.a2a.server.form_answers import build_agent_answers, parse_answers
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.routing import HUB_FACTS, Destination, MessageRouter
from dragoman.a2a.server.task import AgentTask, new_id
from dragoman.core.call import NOTHING, MessageOrigin, Result, Updates, WantedUpdates
from dragoman.core.errors import (
    AmbiguousName,
    ConfigError,
    NotFound,
    Overloaded,
    Refused,
    StorageFailed,
)
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.ports import StoredTask
from dragoman.core.principal import Principal
from dragoman.core.stored_tasks import StoredTasks
from dragoman.core.tasks import WAITS
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import TraceContext, new_trace

FEATURES: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
"""What whoever sends messages can be asked."""
WANTED = WantedUpdates(progress=True, task_start=True)

MAX_KEYS = 32
"""Of one task: those that its last messages were sent with."""

Find = Callable[[RequestContext, str], AgentTask | None]
SetPush = Callable[[RequestContext, AgentTask, Mapping[str, Any], int], Awaitable[None]]
"""For what happens after the entry of that number."""


class Sending:
    def __init__(
        self,
        hub: Hub,
        tasks: StoredTasks,
        target_agents: MessageRouter,
        find: Find,
        set_push: SetPush,
    ) -> None:
        self._hub = hub
        self._tasks = tasks
        self._targets = target_agents
        self._find = find
        self._set_push = set_push
        self._sends: WeakValueDictionary[tuple[Principal, str], AgentTask] = WeakValueDictionary()
        """What was sent with a key."""

    def load(self) -> None:
        """Takes up the tasks of an earlier hub."""
        self._tasks.load(self._made_again)
        for task in self._tasks:
            if isinstance(task, AgentTask):
                for key in task.sends:
                    self._sends[task.owner, key] = task

    def _made_again(self, stored: StoredTask) -> AgentTask:
        try:
            return AgentTask.made_again(stored, self._call)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f'task "{stored.id[:100]}" in tasks.db cannot be read ({error!r}); restore it from '
                "a backup, or move it away and go on without: dragoman stores accept-loss tasks"
            ) from error

    def take(
        self, ctx: RequestContext, request: Mapping[str, Any], streamed: bool
    ) -> tuple[AgentTask, int]:
        """The task that the message began or went on with, which is under way, and how much had
        happened to it by then."""
        if ctx.key and (known := self._sent_before(ctx, request["message"])) is not None:
            return known, known.count
        task = self._meant(ctx, request)
        if task is not None:
            self._go_on(ctx, task, request, streamed)
        else:
            task = self._new(ctx, request, streamed)
        return self._begun(ctx, task)

    async def take_telling(
        self,
        ctx: RequestContext,
        request: Mapping[str, Any],
        streamed: bool,
        push: Mapping[str, Any],
    ) -> tuple[AgentTask, int]:
        """The same, and a webhook is told of it. Where that is refused nothing has happened."""
        if ctx.key and (known := self._sent_before(ctx, request["message"])) is not None:
            return known, known.count
        task = self._meant(ctx, request)
        if task is not None:
            if task.state in WAITS:  # in any other it takes no message
                await self._set_push(ctx, task, push, task.count)
            return self.take(ctx, request, streamed)
        task = self._new(ctx, request, streamed)
        try:
            await self._set_push(ctx, task, push, task.said_at)
        except BaseException:  # or its client has gone, and it would wait here for ever
            if not task.shown:
                self._tasks.remove(task)
            raise
        return self._begun(ctx, task)

    def _meant(self, ctx: RequestContext, request: Mapping[str, Any]) -> AgentTask | None:
        """The task that the message goes on with; None for one that begins another."""
        id = request["message"].get("taskId")
        if id is None:
            chosen = request.get(operations.TASK_ID)
            return self._find(ctx, chosen) if chosen is not None else None
        known = self._find(ctx, id)
        if known is None:
            raise A2aError(TASK_NOT_FOUND, f'task "{id[:100]}" was not found')
        return known

    def _begun(self, ctx: RequestContext, task: AgentTask) -> tuple[AgentTask, int]:
        mark = task.said_at
        if not task.running and task.state not in WAITS and not task.finished:
            task.begin()
        if ctx.key:
            self._keep_first(task)
        return task, mark

    def _keep_first(self, task: AgentTask) -> None:
        """What is to be done once is stored before it is begun, which is when the loop comes to it:
        whoever sends it again after a crash is told of this one."""
        try:
            self._tasks.flush()
        except StorageFailed:
            if not task.shown:
                self._tasks.remove(task)
            raise

    def _new(self, ctx: RequestContext, request: Mapping[str, Any], streamed: bool) -> AgentTask:
        message = request["message"]
        there = self._targets.route(ctx.agent, request)
        routing.check_agent_requirements(there.facts, ctx.extensions, streamed)
        if there.facts is not HUB_FACTS or not there.tool:
            routing.check_media_types(there.facts, message["parts"])
        spoken = ""
        if not there.tool:
            spoken = self._targets.match_skill(join_texts(message["parts"]), ctx.principal)
            there = self._targets.route(HUB, _naming(request, spoken)) if spoken else there
        task = AgentTask(
            ctx.principal,
            self._call,
            id=request.get(operations.TASK_ID) or new_id(),
            context=message.get("contextId") or new_id(),
            agent=there.agent,
            tool=there.tool,
            skill=there.skill,
        )
        task.carried = ctx.carried or TraceContext(new_trace().id, "", "")
        task.version = ctx.version
        self._say(ctx, task, request)
        self._aim(task, there, spoken)
        self._tasks.insert(task)
        if ctx.key:
            self._sends[task.owner, self._key(ctx)] = task
        if not task.tool:
            task.ask(self._targets.ask_for_skill(ctx.principal))
        return task

    def _aim(self, task: AgentTask, there: Destination, spoken: str = "") -> None:
        """`spoken` is the name of the skill where the whole message is that and nothing else."""
        task.continues = there.is_agent and there.facts.continues
        if there.is_agent:
            task.arguments = routing.build_agent_arguments(task.sent)
        elif spoken:
            task.schema = self._schema(task)
        elif there.tool:
            self._fill(task)

    def _fill(self, task: AgentTask) -> None:
        """The arguments of its tool, with what was said just now."""
        task.schema = self._schema(task)
        task.arguments = routing.build_tool_arguments(task.sent, task.arguments, task.schema)

    def _schema(self, task: AgentTask) -> Any:
        return self._targets.find_visible_tool(task.tool, task.owner).definition.get("inputSchema")

    def _other_skill(self, task: AgentTask, request: Mapping[str, Any]) -> bool:
        """Whether the message leads a task that lacks arguments to another skill, as it then does:
        by metadata, or by a text that is a skill's id and can be no argument of this one."""
        there, spoken = self._targets.route(HUB, request), ""
        if not there.tool:
            text = join_texts(task.sent["parts"])
            taken = routing.find_text_property(self._schema(task), task.arguments, text)
            spoken = self._targets.match_skill(text, task.owner) if taken is None else ""
            there = self._targets.route(HUB, _naming(request, spoken)) if spoken else there
        if there.tool in ("", task.tool):
            return False
        task.tool, task.skill, task.agent = there.tool, there.skill, there.agent
        task.arguments = {}
        self._aim(task, there, spoken)
        return True

    def _go_on(
        self, ctx: RequestContext, task: AgentTask, request: Mapping[str, Any], streamed: bool
    ) -> AgentTask:
        message = request["message"]
        context = message.get("contextId")
        must_match = find_traits(ctx.version).context_must_match
        if context is not None and context != task.context and must_match:
            raise A2aError(
                INVALID_PARAMS,
                f'task "{task.id}" belongs to another context than "{context[:100]}"',
            )
        if task.finished:
            raise A2aError(
                UNSUPPORTED_OPERATION,
                f'task "{task.id}" is {task.status["state"]} and takes no more messages; send one '
                "without taskId to begin another",
            )
        if task.state not in WAITS:
            raise A2aError(
                UNSUPPORTED_OPERATION, f'task "{task.id}" is at work; wait until it asks'
            )
        if task.full:
            raise Overloaded(
                f'task "{task.id}" holds all that one can; cancel it and begin another'
            )
        self._tasks.make_space(task.owned)
        task.owner = ctx.principal  # the same, with what is known of it now: after a restart too
        facts = self._targets.get_facts(task.agent or HUB)
        routing.check_agent_requirements(facts, ctx.extensions, streamed)
        if facts is not HUB_FACTS:
            routing.check_media_types(facts, message["parts"])
        self._say(ctx, task, request)
        if ctx.key:
            self._sends[task.owner, self._key(ctx)] = task
        task.continues = bool(task.agent) and facts.continues
        if task.asked is not None and not task.continues:
            self._answer(task)
            return task
        if not task.tool:
            there = self._chosen(task, request)
            if there is None:
                task.ask_again(self._targets.ask_for_skill(ctx.principal))
                return task
            task.tool, task.skill, task.agent = there.tool, there.skill, there.agent
            self._aim(task, there)
        elif task.continues:
            task.arguments = routing.build_agent_arguments(task.sent)
        elif task.agent or not self._other_skill(task, request):
            self._fill(task)
        task.begin()
        return task

    def _answer(self, task: AgentTask) -> None:
        """Goes on with what the target asked, as soon as all of it is answered."""
        if task.agent:  # which reads messages, and not forms alone
            task.answer(build_agent_answers(task.questions, task.sent))
            return
        answers, missing = parse_answers(task.questions, task.sent, task.said)
        if missing:
            task.said = answers
            task.ask_again(f"This is still missing: {missing}.")
        else:
            task.said = {}
            task.answer(answers)

    def _chosen(self, task: AgentTask, request: Mapping[str, Any]) -> Destination | None:
        """The skill that an answer names; what was said before is for that skill."""
        there = self._targets.route(HUB, request)
        if there.tool:
            return there
        spoken = self._targets.match_skill(join_texts(task.sent["parts"]), task.owner)
        if not spoken:
            return None
        task.sent = dict(task.first_message())
        return self._targets.route(HUB, _naming(request, spoken))

    def _say(self, ctx: RequestContext, task: AgentTask, request: Mapping[str, Any]) -> None:
        message = request["message"]
        task.beside = _beside(ctx, request)
        if references := message.get("referenceTaskIds"):
            task.beside = {**task.beside, "references": self._referenced(ctx, task, references)}
        task.say({**message, "taskId": task.id, "contextId": task.context})
        if ctx.key:
            task.sends[self._key(ctx)] = digest(message)
            while len(task.sends) > MAX_KEYS:
                del task.sends[next(iter(task.sends))]

    def _referenced(
        self, ctx: RequestContext, task: AgentTask, ids: Iterable[str]
    ) -> list[tuple[str, str]]:
        """The tasks of the same agent that the caller names and may read: their ids here and there.
        Others are left out, since an agent behind the hub knows all callers as one."""
        found = (self._find(ctx, id) for id in ids)
        return [(one.id, one.far) for one in found if one is not None and one.agent == task.agent]

    def _key(self, ctx: RequestContext) -> str:
        """What is sent to another agent is something else; the default one has two paths."""
        return f"{self._targets.get_facts(ctx.agent).name}\n{ctx.key}"

    def _sent_before(self, ctx: RequestContext, message: Mapping[str, Any]) -> AgentTask | None:
        key = self._key(ctx)
        task = self._sends.get((ctx.principal, key))
        if task is None or task.tasks is None or key not in task.sends:
            return None
        if task.sends[key] != digest(message):
            raise A2aError(
                INVALID_REQUEST,
                "this Idempotency-Key was used for another message; choose a new one",
            )
        return task

    def _call(
        self,
        task: AgentTask,
        updates: Updates,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Coroutine[Any, Any, Result]:
        """What the call needs is taken from the task here and now: one that was finished forgets
        it, and a question may still have to be given up."""
        message = MessageOrigin(
            context=task.context,
            task=task.id,
            id=task.sent.get("messageId", ""),
            metadata=task.sent.get("metadata", {}),
            skill=task.skill,
            turn=task.turn,
            **task.beside,
        )
        options = CallOptions(
            door="a2a",
            view=EVERYTHING,
            trace_context=task.carried,
            message=message,
            updates=updates,
            wanted_updates=WANTED,
            features=FEATURES,
            answers=answers,
            handle=handle,
        )
        name = self._targets.find_called_tool(task.tool, task.agent, task.skill, task.owner)
        return self._run(task.owner, name, task.arguments, options)

    async def _run(
        self, owner: Principal, name: str, arguments: Mapping[str, Any], options: CallOptions
    ) -> Result:
        _, result = await self._hub.call(owner, name, arguments, options)
        return result

    def unasked(self, task: AgentTask) -> Mapping[str, Any] | None:
        """What need not be a task: a word of answer, or what nobody would take up. The first is
        returned, the second raised; unless somebody knows of the task by now."""
        if task.shown or task.sends:
            return None
        if isinstance(task.error, NotFound | Refused | AmbiguousName | StorageFailed):
            self._tasks.remove(task)
            if isinstance(task.error, NotFound):  # the skill, not a task
                raise A2aError(INVALID_PARAMS, str(task.error))
            raise task.error
        if task.result is None or not task.result.direct or not task.finished:
            return None
        self._tasks.remove(task)
        message = {**task.status.get("message", {"parts": [{"text": ""}]}), "role": AGENT}
        message.pop("taskId", None)
        return message


def _naming(request: Mapping[str, Any], skill: str) -> dict[str, Any]:
    return {**request, "metadata": {"skillId": skill}}


def _beside(ctx: RequestContext, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """What came with a message, for an agent that can use it; nothing with most."""
    uris = request["message"].get("extensions")
    if len(request) == 1 and not ctx.extensions and not uris:
        return NOTHING
    found: dict[str, Any] = {}
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
    return found


_CONFIGURED = ("acceptedOutputModes", "historyLength")
"""What an agent can use of a configuration. Whether the client waits, and where it wants to be
notified, concerns the hub, which follows the agent's task in any case."""


def digest(message: Mapping[str, Any]) -> str:
    """Of what it says, and to what."""
    said = [message.get(member) for member in ("parts", "taskId", "metadata")]
    return hashlib.sha256(repr(said).encode("utf-8", "replace")).hexdigest()[:32]
