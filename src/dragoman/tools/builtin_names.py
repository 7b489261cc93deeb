"""The names of the built-in tools, and those that similar tools have elsewhere.

Loaded by every hub, to know whether an agent was granted any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from dragoman.core.local_agents import matches_any
from dragoman.core.tool_identity import BUILTIN

FALLBACK_NAMES: Mapping[str, tuple[str, ...]] = {
    "file_read": ("Read", "read_file", "read", "fs-read", "fs_read", "cat", "ReadFile"),
    "file_write": ("Write", "write_file", "write", "fs-write", "fs_write", "Edit", "WriteFile"),
    "file_list": (
        "Glob",
        "Grep",
        "LS",
        "ls",
        "glob",
        "grep",
        "list_files",
        "list_directory",
        "list_dir",
        "fs-list",
        "fs_list",
    ),
    "apply_patch": ("ApplyPatch", "patch", "MultiEdit"),
    "web_fetch": ("WebFetch", "fetch", "fetch_url", "http_fetch", "web-fetch"),
    "web_search": ("WebSearch", "search_web", "web-search"),
    "shell_exec": ("Bash", "bash", "exec", "run", "shell", "run_command", "execute_command"),
    "agent_send": ("send_to_agent", "AgentSend", "message_agent"),
    "agent_spawn": ("spawn_agent", "AgentSpawn", "Task"),
    "agent_list": ("list_agents", "AgentList"),
    "agent_kill": ("kill_agent", "AgentKill"),
    "agent_find": ("find_agent", "AgentFind"),
    "memory_store": ("store_memory", "remember", "MemoryStore"),
    "memory_recall": ("recall_memory", "recall", "MemoryRecall"),
    "task_post": ("post_task", "TaskPost"),
    "task_claim": ("claim_task", "TaskClaim"),
    "task_complete": ("complete_task", "TaskComplete"),
    "task_list": ("list_tasks", "TaskList"),
    "event_publish": ("publish_event", "EventPublish"),
    "schedule_create": ("create_schedule", "cron_create", "ScheduleCreate"),
    "schedule_list": ("list_schedules", "cron_list", "ScheduleList"),
    "schedule_delete": ("delete_schedule", "cron_cancel", "ScheduleDelete"),
    "image_analyze": ("analyze_image", "media_describe", "ImageAnalyze"),
    "system_time": ("get_time", "current_time", "SystemTime"),
    "a2a_discover": ("discover_agent", "A2aDiscover"),
    "a2a_send": ("send_a2a_message", "A2aSend"),
}
"""The other names of each built-in tool. They lead to it as long as no other tool has them."""


@lru_cache(4096)  # it is asked about every agent again and again
def grants_builtin_tools(patterns: tuple[str, ...]) -> bool:
    """Whether grants of tools include a built-in one."""
    return any(
        matches_any(name, patterns)
        or matches_any(f"{BUILTIN}.{name}", patterns)
        or any(one in patterns for one in others)
        for name, others in FALLBACK_NAMES.items()
    )
