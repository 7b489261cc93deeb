"""`event_publish`: an event of an agent on the bus of the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dragoman.core.call import Result
from dragoman.core.errors import InvalidInput
from dragoman.core.events import Event, UserEvent
from dragoman.core.taint import NET
from dragoman.tools.tool_spec import BoundTool, ToolSpec, ToolUse, build_text_result
from dragoman.wire.json import encode

MAX_PAYLOAD = 16_384

EVENT_PUBLISH = ToolSpec(
    name="event_publish",
    title="Publish an event",
    description="Publishes an event, for people and programs that follow the events of the hub.",
    properties={
        "event_type": {
            "type": "string",
            "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$",
            "description": 'Such as "review.finished".',
        },
        "payload": {"type": "object", "description": "The data of the event."},
    },
    required=("event_type",),
    sinks=frozenset({NET}),
)


class EventTools:
    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(EVENT_PUBLISH, self._publish)

    async def _publish(self, use: ToolUse) -> Result:
        payload, kind = use.arguments.get("payload", {}), use.arguments["event_type"]
        size = len(encode(payload))
        if size > MAX_PAYLOAD:
            raise InvalidInput(f"the payload is too large: {size} bytes, and {MAX_PAYLOAD} allowed")
        self._emit(UserEvent(use.agent.name, kind, payload, use.call.trace.id, use.agent.org))
        return build_text_result(f'published "{kind}"')
