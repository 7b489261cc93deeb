"""Renders events for the outside: the three phases of a call as the hook bus names them, calls of
agents in the envelope of `EXEC:TOOL_CALL`, and all others. `redact_event` removes what must not
leave the process."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from dragoman.core import errors, events
from dragoman.core.call import Call
from dragoman.core.errors import HubError
from dragoman.core.events import Event
from dragoman.core.logs import render_time
from dragoman.core.redaction import (
    list_secrets,
    outline_arguments,
    redact_message,
    render_name,
    shorten,
)
from dragoman.core.structs import asdict
from dragoman.core.tool import Tool
from dragoman.core.trace import Trace

PRE_VERB, POST_VERB, VERB_ERROR = "pre-verb", "post-verb", "verb-error"
USER = "user"
TOOL_CALL, TOOL_RESULT = "EXEC:TOOL_CALL", "EXEC:TOOL_RESULT"

MAX_REASON = 1_000

CODES: dict[type[HubError], int] = {
    HubError: -32603,
    errors.Denied: -32003,
    errors.TimedOut: -32201,
    errors.Unreachable: -32202,
    errors.BadReply: -32203,
    errors.WorkFailed: -32204,
    errors.Declined: -32205,
    errors.NeedsInput: -32206,
    errors.LoginRequired: -32207,
    errors.TooDeep: -32211,
    errors.Looping: -32212,
    errors.Quarantined: -32213,
    errors.Overloaded: -32214,
    errors.ShuttingDown: -32214,
    errors.Repeating: -32216,
    errors.Tainted: -32217,
    errors.NoCandidate: -32218,
    errors.ApprovalPending: -32219,
    errors.ApprovalClosed: -32220,
    errors.RateLimited: -32215,
    errors.NotFound: -32601,
    errors.InvalidInput: -32602,
}
"""The same for all listeners, whatever the client's protocol shows."""
FAILED, CRASHED, CANCELLED = CODES[errors.WorkFailed], CODES[HubError], -32800


def find_code(error: HubError) -> int:
    return errors.find_row(CODES, type(error))


def session_id_from_trace(tool: Tool, trace: Trace) -> str:
    """The id that a call has on both sides of a bridge."""
    bridged = tool.bridged
    return trace.id if bridged is None else f"a2a-{bridged.card_id}-{bridged.skill_id}-{trace.id}"


def is_denied(call: Call, error: HubError | None) -> bool:
    """Whether policies or a gate denied the call; the client may have received "not found"."""
    decision = call.notes.decision
    return isinstance(error, errors.Denied) or (decision is not None and not decision.allowed)


def render_verb_event(event: events.PreVerb | events.PostVerb | events.VerbError) -> dict[str, Any]:
    """`args` is the call's own object: changing it changes the call."""
    if isinstance(event, events.PreVerb):
        return _render_verb(PRE_VERB, event.call, None, event.at)
    if isinstance(event, events.VerbError):
        error = event.error
        said = _render_verb(VERB_ERROR, event.call, error, event.at)
        return said | {"error": {"code": find_code(error), "message": str(error)}}
    said = _render_verb(POST_VERB, event.call, event.error, event.at)
    return said | {"durationMs": round(event.duration_ms, 3), "outcome": event.outcome}


def _render_verb(phase: str, call: Call, error: HubError | None, at: float) -> dict[str, Any]:
    tool, principal, skill = call.tool, call.principal, call.tool.bridged
    return {
        "phase": phase,
        "verb": render_name(tool.name, tool.kind),
        "legacyAlias": skill.alias if skill is not None else None,
        "orgId": principal.org,
        "agentCardId": skill.card_id if skill is not None else None,
        "agentUrl": skill.url if skill is not None else None,
        "skillId": skill.skill_id if skill is not None else None,
        "sessionId": session_id_from_trace(call.tool, call.trace),
        "args": call.trace.secrets.mask(call.arguments),
        "emittedAt": render_time(at),
        "context": {
            "denied": phase != PRE_VERB and is_denied(call, error),
            "caller": principal.label,
            "onBehalfOf": call.trace.origin or principal.behalf or None,
            "askedAs": render_name(call.requested_name, tool.kind),
            "door": call.door,
            "traceId": call.trace.id,
            "depth": call.trace.depth,
        },
    }


def render_exec_event(event: events.ToolCall | events.ToolResult) -> dict[str, Any]:
    call = event.call
    verb = render_name(call.tool.name, call.tool.kind)
    if isinstance(event, events.ToolCall):
        kind, source = TOOL_CALL, call.principal.serves or call.principal.label
        payload = {
            "toolCallId": event.id,
            "tool": verb,
            "arguments": call.trace.secrets.mask(call.arguments),
        }
    else:
        kind, source = TOOL_RESULT, call.tool.target.name
        payload = {"toolCallId": event.call_id, "tool": verb, **_render_end(event)}
    return {
        "id": event.id,
        "timestamp": int(event.at * 1000),
        "traceId": call.trace.id,
        "source": source,
        "sessionId": session_id_from_trace(call.tool, call.trace),
        "type": kind,
        "payload": payload,
    }


def _render_end(event: events.ToolResult) -> dict[str, Any]:
    result, error = event.result, event.error
    if result is not None and not result.failed:
        return {"success": True}
    tool = event.call.tool
    code, source = FAILED, tool.target.name
    message = f'"{render_name(tool.name, tool.kind)}" reported a failure'
    if error is not None:
        code, message = find_code(error), str(error)
        source = source if isinstance(error, errors.TargetFailed) else "hub"
    elif result is None:
        code = CANCELLED if event.cancelled else CRASHED
        message = "the client disconnected" if event.cancelled else "internal error of the hub"
        source = "hub"
    return {"success": False, "error": {"code": code, "message": message, "source": source}}


def render_event(event: Event) -> tuple[str, dict[str, Any]] | None:
    """Returns the name and the payload of an event; None for internal ones."""
    match event:
        case events.PreVerb() | events.PostVerb() | events.VerbError():
            said = render_verb_event(event)
            return said["phase"], said
        case events.ToolCall() | events.ToolResult():
            said = render_exec_event(event)
            return said["type"], said
        case events.CostReported(call=call, usage=usage, at=at):
            return "cost", {
                "verb": render_name(call.tool.name, call.tool.kind),
                "sessionId": session_id_from_trace(call.tool, call.trace),
                "traceId": call.trace.id,
                "usage": usage,
                "emittedAt": render_time(at),
            }
        case events.UserEvent(agent=agent, type=kind, data=data, trace=trace, at=at):
            return USER, {
                "type": kind,
                "source": agent,
                "data": data,
                "traceId": trace,
                "emittedAt": render_time(at),
            }
        case (
            events.ServerChanged()
            | events.AgentChanged()
            | events.LoginNeeded()
            | events.LoginChanged()
            | events.PolicyChanged()
            | events.PinHeld()
            | events.PinAdded()
            | events.RunChanged()
            | events.StepChanged()
        ):
            said = {name: shorten(text, MAX_REASON) for name, text in asdict(event).items()}
            return _NAMES[type(event)], {**said, "emittedAt": render_time(time())}
        case events.ApprovalRequested() | events.ApprovalDecided():
            return _NAMES[type(event)], _render_approval(event)
    return None


def _render_approval(
    event: events.ApprovalRequested | events.ApprovalDecided,
) -> dict[str, Any]:
    said = {
        "id": event.id,
        "title": shorten(event.title, MAX_REASON),
        "requester": shorten(event.requester),
        "org": event.org,
    }
    if isinstance(event, events.ApprovalRequested):
        said["reason"] = shorten(event.reason, MAX_REASON)
        said["expiresAt"] = render_time(event.expires_at)
    else:
        said |= {"state": event.state, "decidedBy": shorten(event.decided_by)}
    return {**said, "emittedAt": render_time(time())}


_NAMES: dict[type[Event], str] = {
    events.ServerChanged: "server-changed",
    events.AgentChanged: "agent-changed",
    events.LoginNeeded: "login-needed",
    events.LoginChanged: "login-changed",
    events.PolicyChanged: "policy-changed",
    events.PinHeld: "pin-held",
    events.PinAdded: "pin-added",
    events.ApprovalRequested: "approval-requested",
    events.ApprovalDecided: "approval-decided",
    events.RunChanged: "run-changed",
    events.StepChanged: "step-changed",
}
EVENT_NAMES: dict[type[Event], str] = {
    events.PreVerb: PRE_VERB,
    events.PostVerb: POST_VERB,
    events.VerbError: VERB_ERROR,
    events.ToolCall: TOOL_CALL,
    events.ToolResult: TOOL_RESULT,
    events.CostReported: "cost",
    events.UserEvent: USER,
    **_NAMES,
}
"""The events that are published, and their public names."""


def redact_event(said: Mapping[str, Any], call: Call | None) -> dict[str, Any]:
    """Removes argument values and addresses of resources from a payload, and shortens names."""
    if call is None:
        return dict(said)
    arguments, secrets = call.arguments, list_secrets(call)
    found = dict(said)
    if "args" in found:
        found["args"] = outline_arguments(arguments)
    if "error" in found:
        found["error"] = _redact_message(found["error"], secrets)
    if "context" in found:
        found["context"] = {**found["context"], "askedAs": shorten(found["context"]["askedAs"])}
    if "verb" in found:
        found["verb"] = shorten(found["verb"])
    if "payload" in found:
        found["payload"] = _redact_payload(found["payload"], arguments, secrets)
    return found


def _redact_payload(
    payload: Mapping[str, Any], arguments: Mapping[str, Any], secrets: Any
) -> dict[str, Any]:
    found = {**payload, "tool": shorten(payload["tool"])}
    if "arguments" in found:
        found["arguments"] = outline_arguments(arguments)
    if "error" in found:
        found["error"] = _redact_message(found["error"], secrets)
    return found


def _redact_message(error: Mapping[str, Any], secrets: Any) -> dict[str, Any]:
    return {**error, "message": redact_message(error["message"], secrets)}
