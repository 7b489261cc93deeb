"""What 0.1 and 0.3 have in common and 1.0 does not: parts with a discriminator (`type` in 0.1,
`kind` from 0.2 on), states and roles in lower case, push configurations within another object.

Rendering is strict, parsing accepts any of them. Requests are validated afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.validation import AGENT, UNSPECIFIED, USER, put

STATES_OUT: Mapping[str, str] = {
    UNSPECIFIED: "unknown",
    validation.SUBMITTED: "submitted",
    validation.WORKING: "working",
    validation.COMPLETED: "completed",
    validation.FAILED: "failed",
    validation.CANCELED: "canceled",
    validation.INPUT_REQUIRED: "input-required",
    validation.REJECTED: "rejected",
    validation.AUTH_REQUIRED: "auth-required",
}
STATES_IN: Mapping[str, str] = {
    **{said: state for state, said in STATES_OUT.items()},
    "cancelled": validation.CANCELED,  # bare tasks, and 0.3's proto
    "inputrequired": validation.INPUT_REQUIRED,
    "authrequired": validation.AUTH_REQUIRED,
    "waiting": validation.WORKING,  # python-a2a's
    "unspecified": UNSPECIFIED,
}
ROLES_OUT: Mapping[str, str] = {USER: "user", AGENT: "agent"}
ROLES_IN: Mapping[str, str] = {"user": USER, "agent": AGENT, USER: USER, AGENT: AGENT}

WRAPPED = "data_part_compat"
"""Marks in a part's metadata that its data is not an object and is wrapped in one as `value`. The
official SDK sets and reads the same mark."""


def parse_state(state: Any) -> str:
    """Accepts any spelling of a state; returns UNSPECIFIED for an unknown one."""
    if not isinstance(state, str):
        return UNSPECIFIED
    said = state.lower().replace("_", "-").removeprefix("task-state-")
    return STATES_IN.get(said, UNSPECIFIED)


def render_part(part: Mapping[str, Any], key: str) -> dict[str, Any]:
    """`key` is the name of the discriminator. These dialects have no media type or file name for
    text and data."""
    metadata = part.get("metadata")
    if "text" in part:
        out = {key: "text", "text": part["text"]}
    elif "data" in part:
        data = part["data"]
        if not isinstance(data, dict):  # a DataPart's data is an object
            data, metadata = {"value": data}, {**(metadata or {}), WRAPPED: True}
        out = {key: "data", "data": data}
    else:
        out = {key: "file", "file": render_file(part)}
    return put(out, metadata=metadata)


def render_file(part: Mapping[str, Any]) -> dict[str, Any]:
    file: dict[str, Any] = {"bytes": part["raw"]} if "raw" in part else {"uri": part.get("url")}
    return put(file, name=part.get("filename"), mimeType=part.get("mediaType"))


def parse_part(part: Any) -> dict[str, Any] | None:
    """Converts a part of any dialect to 1.0's form; returns None if its kind is unknown."""
    if not isinstance(part, dict):
        return None
    kind = part.get("kind", part.get("type"))
    if kind is None:
        kind = _find_kind(part)
    if kind == "text":
        found: dict[str, Any] = {"text": part.get("text")}
        put(found, mediaType=part.get("mediaType"), filename=part.get("filename"))
    elif kind == "data":
        found = _parse_data(part)
    elif kind == "file":
        found = _parse_file(part)
    elif kind == "as-is":
        found = dict(part)
    elif kind in ("function_call", "function_response", "error"):
        found = _parse_function(part, kind)
    else:
        return None
    metadata = part.get("metadata")
    if metadata is not None and "metadata" not in found and kind != "data":
        found["metadata"] = metadata
    return found


def _find_kind(part: Mapping[str, Any]) -> str | None:
    if "file" in part:
        return "file"
    if "raw" in part or "url" in part or "mediaType" in part:
        return "as-is"
    return next((name for name in ("text", "data") if name in part), None)


def _parse_data(part: Mapping[str, Any]) -> dict[str, Any]:
    data, metadata = part.get("data"), part.get("metadata")
    if isinstance(metadata, dict) and metadata.get(WRAPPED) is True:
        metadata = {name: value for name, value in metadata.items() if name != WRAPPED} or None
        if isinstance(data, dict) and data.keys() == {"value"}:
            data = data["value"]
    found: dict[str, Any] = {"data": data}
    media = part.get("mediaType", part.get("mime_type"))
    return put(found, mediaType=media or None, metadata=metadata)


def _parse_file(part: Mapping[str, Any]) -> dict[str, Any]:
    """Accepts the file of 0.1 and 0.3 (`file{bytes|uri,name,mimeType}`) and that of bare tasks
    (`name, mime_type, data` in the part itself)."""
    file = part.get("file")
    file = file if isinstance(file, dict) else part
    raw = file.get("bytes", file.get("data", file.get("raw")))
    url = file.get("uri", file.get("url"))
    found: dict[str, Any] = {}
    if raw is not None and not (raw == "" and url):
        found["raw"] = raw
    if url is not None and url != "":
        found["url"] = url
    return put(
        found,
        filename=file.get("name", file.get("filename")) or None,
        mediaType=file.get("mimeType", file.get("mime_type", file.get("mediaType"))) or None,
    )


def _parse_function(part: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Converts the contents of python-a2a to the data parts that it makes of them itself."""
    if kind == "error":
        return {"data": {"error": part.get("message", "")}}
    value = "parameters" if kind == "function_call" else "response"
    return {"data": {kind: {"name": part.get("name", ""), value: part.get(value)}}}


# --- push configurations --------------------------------------------------------------------------


def render_push_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """1.0's flat configuration -> the `pushNotificationConfig` of 0.1 and 0.3."""
    out: dict[str, Any] = {"url": config.get("url", "")}
    put(out, id=config.get("id"), token=config.get("token"))
    authentication = config.get("authentication")
    if authentication:
        scheme = authentication.get("scheme")
        out["authentication"] = put(
            {"schemes": [scheme] if scheme else []}, credentials=authentication.get("credentials")
        )
    return out


def parse_push_config(config: Any) -> Any:
    """The reverse, without the task; passes on what is not an object, for the validation."""
    if not isinstance(config, dict):
        return config
    found = {name: config[name] for name in ("id", "url", "token") if config.get(name)}
    authentication = config.get("authentication")
    if isinstance(authentication, dict):
        scheme, schemes = authentication.get("scheme"), authentication.get("schemes")
        if scheme is None and isinstance(schemes, list) and schemes:
            scheme = "Bearer" if "Bearer" in schemes else schemes[0]
        credentials = authentication.get("credentials") or None
        found["authentication"] = put({}, scheme=scheme, credentials=credentials)
    elif authentication is not None:
        found["authentication"] = authentication
    return found


# --- names ----------------------------------------------------------------------------------------

_OPAQUE = frozenset(("metadata", "data", "params", "header"))
"""Members with content of the application, whose names are kept."""


def camelize(value: Any) -> Any:
    """Renames members from `message_id`, which proto-JSON allows, to `messageId`."""
    if isinstance(value, list):
        return [camelize(each) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, held in value.items():
        if "_" in name and not name.startswith("_"):
            first, *rest = name.split("_")
            name = first + "".join(word.capitalize() for word in rest)
        found[name] = held if name in _OPAQUE else camelize(held)
    return found
