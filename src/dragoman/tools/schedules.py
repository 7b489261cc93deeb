"""`schedule_create`, `schedule_list`, `schedule_delete`: messages that agents get by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.label_keys import build_context_key
from dragoman.core.local_agents import AGENT as LOCAL_AGENT
from dragoman.core.local_agents import SCHEDULE, matches_any
from dragoman.core.ports import Schedule, ScheduleCaller, ScheduleStore
from dragoman.core.schedule_times import find_next, parse_timing
from dragoman.core.taint import AGENT
from dragoman.tools.schedule_runner import NEVER, build_schedule_client, build_schedule_principal
from dragoman.tools.tasks import build_call_id
from dragoman.tools.tool_spec import (
    BoundTool,
    ToolSpec,
    ToolUse,
    build_json_result,
    build_text_result,
)

MAX_MESSAGE = 10_000

SCHEDULE_CREATE = ToolSpec(
    name="schedule_create",
    title="Create a schedule",
    description="Sends a message to you, or to another agent, by the clock: once or again and "
    'again. The time is a cron expression ("0 9 * * 1-5"), an interval ("every 10 minutes"), a '
    'time of day ("daily at 9:00", "monday at 14:30"), or once ("in 20 minutes"). Schedules '
    "survive restarts; a run that was missed is made up for once, and the message says so.",
    properties={
        "description": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_MESSAGE,
            "description": "The message, with everything that the agent needs at that time.",
        },
        "schedule": {"type": "string", "minLength": 1, "maxLength": 100},
        "agent": {
            "type": "string",
            "maxLength": 64,
            "description": "The agent that gets the message. Default: you.",
        },
        "time_zone": {
            "type": "string",
            "maxLength": 60,
            "description": 'Of a time of day, such as "Europe/Berlin". Default: "UTC".',
        },
        "once": {
            "type": "boolean",
            "description": "Whether it runs only once. Default: false.",
        },
    },
    required=("description", "schedule"),
    sinks=frozenset({AGENT}),
)
SCHEDULE_LIST = ToolSpec(
    name="schedule_list",
    title="List schedules",
    description="Lists your schedules: when each runs next, how its last run ended, and how many "
    "runs were missed.",
    read_only=True,
)
SCHEDULE_DELETE = ToolSpec(
    name="schedule_delete",
    title="Delete a schedule",
    description="Deletes one of your schedules. A run that has begun continues.",
    properties={"id": {"type": "string", "minLength": 1, "maxLength": 60}},
    required=("id",),
    destructive=True,
    idempotent=True,
)


class ScheduleTools:
    def __init__(
        self,
        store: ScheduleStore,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wake` is called after every change."""
        self._store = store
        self._wake = wake
        self._clock = clock

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(SCHEDULE_CREATE, self._create, self._list_written)
        yield BoundTool(SCHEDULE_LIST, self._list)
        yield BoundTool(SCHEDULE_DELETE, self._delete)

    def _list_written(self, use: ToolUse) -> Iterable[str]:
        """The conversation that the runs of the schedule will have."""
        who = build_schedule_principal(use.agent.org, use.agent.name)
        client = build_schedule_client(build_call_id("schedule", use.call))
        target = str(use.arguments.get("agent") or use.agent.name)
        return [build_context_key(who.org, who.label, target, client)]

    async def _create(self, use: ToolUse) -> Result:
        arguments, agent, now = use.arguments, use.agent, self._clock()
        if use.call.principal.kind != LOCAL_AGENT:
            raise InvalidInput("only agents can create schedules; ask one to create it")
        target = arguments.get("agent") or agent.name
        if target != agent.name and not matches_any(target, agent.agents):
            raise NotFound(f'there is no agent "{target}" that you may know of; see agent_list')
        timing = parse_timing(
            arguments["schedule"], arguments.get("time_zone", "UTC"), bool(arguments.get("once"))
        )
        schedule = Schedule(
            id=build_call_id("schedule", use.call),
            org=agent.org,
            owner=agent.name,
            agent=target,
            message=arguments["description"].encode("utf-8", "replace").decode(),
            spec=timing.spec,
            zone=timing.zone,
            once=timing.once,
            created=now,
            next_at=find_next(timing, now),
            callers=_list_callers(use.call),
        )
        self._store.add(schedule)
        self._wake()
        return build_json_result({"id": schedule.id, "nextRun": _render_time(schedule.next_at)})

    async def _list(self, use: ToolUse) -> Result:
        return build_json_result(
            {"schedules": [render_schedule(one) for one in self._list_own(use)]}
        )

    def _list_own(self, use: ToolUse) -> list[Schedule]:
        return self._store.list_schedules(use.agent.org, use.agent.name)

    async def _delete(self, use: ToolUse) -> Result:
        id = use.arguments["id"]
        if any(one.id == id and one.source for one in self._list_own(use)):
            raise InvalidInput(f'"{id}" is in your manifest, where its author can remove it')
        if not self._store.delete(use.agent.org, use.agent.name, id):
            raise InvalidInput(f'you have no schedule "{id}"; see schedule_list')
        self._wake()
        return build_text_result(f'deleted "{id}"')


def _list_callers(call: Call) -> tuple[ScheduleCaller, ...]:
    """Lists the principals for whom the agent works, the first in the chain first."""
    found: list[ScheduleCaller] = []
    above = call.trace.parent
    while above is not None:
        who = above.principal
        if who is not None and who.kind != SCHEDULE:
            one = ScheduleCaller(
                who.kind, who.id, who.org, who.roles, who.scopes, who.behalf, who.serves, above.door
            )
            if one not in found:
                found.append(one)
        above = above.parent
    return tuple(reversed(found))


def render_schedule(schedule: Schedule) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": schedule.id,
        "agent": schedule.agent,
        "description": schedule.message,
        "schedule": schedule.spec,
        "timeZone": schedule.zone,
        "once": schedule.once,
        "runs": schedule.runs,
        "missed": schedule.missed,
    }
    if schedule.next_at < NEVER:
        shown["nextRun"] = _render_time(schedule.next_at)
    if schedule.callers:
        shown["createdFor"] = f"{schedule.callers[0].kind}:{schedule.callers[0].id}"
    if schedule.source:
        shown["source"] = schedule.source
    if schedule.last_at:
        shown |= {"lastRun": _render_time(schedule.last_at), "lastOutcome": schedule.outcome}
    return shown


def _render_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
