"""All built-in tools, family by family, for documentation and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.tools import (
    a2a,
    agents,
    events,
    files,
    media,
    memory,
    patch,
    schedules,
    shell,
    tasks,
    time,
    web,
)
from dragoman.tools.tool_spec import ToolSpec

FAMILIES: Mapping[str, Sequence[ToolSpec]] = {
    "Files": (files.FILE_READ, files.FILE_WRITE, files.FILE_LIST, patch.APPLY_PATCH),
    "Web": (web.WEB_FETCH, web.WEB_SEARCH),
    "Commands": (shell.SHELL_EXEC,),
    "Agents": (
        agents.AGENT_SEND,
        agents.AGENT_SPAWN,
        agents.AGENT_LIST,
        agents.AGENT_KILL,
        agents.AGENT_FIND,
    ),
    "Memory": (memory.MEMORY_STORE, memory.MEMORY_RECALL),
    "Tasks": (tasks.TASK_POST, tasks.TASK_CLAIM, tasks.TASK_COMPLETE, tasks.TASK_LIST),
    "Events": (events.EVENT_PUBLISH,),
    "Schedules": (
        schedules.SCHEDULE_CREATE,
        schedules.SCHEDULE_LIST,
        schedules.SCHEDULE_DELETE,
    ),
    "Images": (media.IMAGE_ANALYZE,),
    "Time": (time.SYSTEM_TIME,),
    "A2A agents": (a2a.A2A_DISCOVER, a2a.A2A_SEND),
}
SPECS: Sequence[ToolSpec] = tuple(spec for specs in FAMILIES.values() for spec in specs)
