"""`system_time`: the date and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from dragoman.core.call import Result
from dragoman.core.schedule_times import find_zone
from dragoman.tools.tool_spec import BoundTool, ToolSpec, ToolUse, build_json_result

SYSTEM_TIME = ToolSpec(
    name="system_time",
    title="Tell the time",
    description="Returns the current date and time, in UTC or in a time zone.",
    properties={
        "time_zone": {
            "type": "string",
            "maxLength": 60,
            "description": 'Such as "Europe/Berlin". Default: "UTC".',
        }
    },
    read_only=True,
)


class TimeTools:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(SYSTEM_TIME, self._tell)

    async def _tell(self, use: ToolUse) -> Result:
        name = use.arguments.get("time_zone", "UTC")
        now = datetime.fromtimestamp(self._clock(), find_zone(name))
        return build_json_result(
            {
                "time": now.isoformat(timespec="seconds"),
                "weekday": now.strftime("%A"),
                "timeZone": name,
                "unixTime": int(now.timestamp()),
            }
        )
