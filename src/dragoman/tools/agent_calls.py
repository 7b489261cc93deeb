"""Calls that a built-in tool makes, on behalf of the agent that uses the tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.agent_tool import MESSAGE, build_tool_name
from dragoman.core.call import Call, Result, TaskStarted
from dragoman.core.errors import InvalidInput, NotFound, WorkFailed
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.local_agents import (
    SCHEDULE,
    AgentDirectory,
    build_agent_principal,
    matches_any,
)
from dragoman.core.ports import Schedule
from dragoman.core.principal import Principal
from dragoman.core.structs import replace
from dragoman.core.taint import USER_INPUT, LabelOrigin
from dragoman.core.tool_filter import EVERYTHING
from dragoman.tools.schedule_runner import build_schedule_client, build_schedule_principal


class NestedCalls:
    """A call takes its place in the chain beside the call of the tool, not below it: the chain
    goes from agent to agent."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def call(self, within: Call, name: str, arguments: Mapping[str, Any]) -> Result:
        """Calls a tool by its canonical name, with the time of a task. A question that it asks is
        the result; the answers come with a call of the same tool."""
        above = within.trace.parent
        parent = above.trace if above is not None else within.trace
        within.updates(TaskStarted(is_timed=True))
        options = CallOptions(
            door=within.door,
            view=EVERYTHING,
            updates=within.updates,
            wanted_updates=within.wanted_updates,
            client=within.client,
            revision=within.revision,
            features=within.features,
            answers=within.answers,
            handle=within.handle,
        )
        _, result = await self._hub.call_within(parent, within.principal, name, arguments, options)
        return replace(result, artifacts=())


class ScheduledCalls:
    """Sends the messages of schedules, each in a chain of its own, which has no more rights than
    those for whom the schedule was created."""

    def __init__(
        self,
        hub: Hub,
        directory: AgentDirectory,
        renew: Callable[[Principal], Principal] = lambda principal: principal,
    ) -> None:
        """`renew` takes from a principal what it does not have any more."""
        self._hub = hub
        self._directory = directory
        self._renew = renew

    async def fire(self, schedule: Schedule, message: str) -> None:
        """Implements `schedule_runner.Fire`. The agent that created the schedule must still exist,
        and still be granted the other one."""
        profiles = [one for one in self._directory.list_profiles() if one.name == schedule.owner]
        owner = next((one for one in profiles if one.org == schedule.org), None)
        if owner is None or self._directory.find_profile(build_agent_principal(owner)) is None:
            raise NotFound(f'there is no agent "{schedule.owner}" any more')
        if schedule.agent != owner.name and not matches_any(schedule.agent, owner.agents):
            raise InvalidInput(f'"{owner.name}" was not granted "{schedule.agent}" any more')
        options = CallOptions(
            door=SCHEDULE, view=EVERYTHING, client=build_schedule_client(schedule.id)
        )
        name = build_tool_name(schedule.agent)
        result = await self._call(schedule, name, {MESSAGE: message}, options)
        if result.questions:
            raise WorkFailed("the agent asks a question, which a schedule cannot answer")
        if result.failed:
            texts = (block.get("text") for block in result.content if isinstance(block, dict))
            raise WorkFailed(next((text for text in texts if isinstance(text, str)), "it failed"))

    async def _call(
        self, schedule: Schedule, name: str, arguments: Mapping[str, Any], options: CallOptions
    ) -> Result:
        principal = build_schedule_principal(schedule.org, schedule.owner)
        if not schedule.callers:
            return (await self._hub.call(principal, name, arguments, options))[1]
        callers = [(self._renew(one.build_principal()), one.door) for one in schedule.callers]
        origin = LabelOrigin(name, "", f"message of {callers[0][0]}")
        with self._hub.chains.hold(callers, {USER_INPUT: origin}) as trace:
            within = self._hub.call_within(trace, principal, name, arguments, options)
            return (await within)[1]
