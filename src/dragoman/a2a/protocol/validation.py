"""Validates requests in the form of 1.0.

A valid request is passed on without a copy. Members that the protocol does not have are dropped, so
that they cannot come out elsewhere, and so are null ones. An invalid request is an error that names
the field. Counts and lengths are bounded. Knows no wire form and no dialect but 1.0.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dragoman.a2a.protocol.errors import A2aError, invalid

USER, AGENT = "ROLE_USER", "ROLE_AGENT"

UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
SUBMITTED = "TASK_STATE_SUBMITTED"
WORKING = "TASK_STATE_WORKING"
COMPLETED = "TASK_STATE_COMPLETED"
FAILED = "TASK_STATE_FAILED"
CANCELED = "TASK_STATE_CANCELED"
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
REJECTED = "TASK_STATE_REJECTED"
AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

STATES: Final = frozenset(
    (SUBMITTED, WORKING, COMPLETED, FAILED, CANCELED, INPUT_REQUIRED, REJECTED, AUTH_REQUIRED)
)

MAX_ID = 256
MAX_PARTS = 1000
MAX_NAMES = 100
"""The most extensions, output modes or referenced tasks in one message or request."""
MAX_NAME = 2048
MAX_PAGE = 100
MAX_INT = 2**31 - 1
MAX_URL = 2048
MAX_SECRET = 4096
MAX_PART_URL = 65536
"""Longer than other URLs: it may be a `data:` URL."""

CONTENT = ("text", "raw", "url", "data")
PART = frozenset((*CONTENT, "filename", "mediaType", "metadata"))
MESSAGE = frozenset({
    "messageId", "contextId", "taskId", "role", "parts", "metadata", "extensions",
    "referenceTaskIds",
})  # fmt: skip

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")  # RFC 9110, a token
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?([Zz]|[+-]\d\d:\d\d)"
)


def put(holder: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Adds the members that are not None."""
    for name, value in members.items():
        if value is not None:
            holder[name] = value
    return holder


# --- single values --------------------------------------------------------------------------------


def check_id(holder: Mapping[str, Any], name: str, field: str) -> str:
    """Returns a required id."""
    value = holder.get(name)
    if type(value) is not str or not value:
        raise invalid(field, "is required, and is a string")
    if len(value) > MAX_ID or not value.isprintable():
        raise invalid(field, f"must be at most {MAX_ID} printable characters")
    return value


def check_optional_id(holder: Mapping[str, Any], name: str, field: str) -> str | None:
    """Returns an optional id; an empty one counts as missing, as in proto-JSON."""
    value = holder.get(name)
    return None if value is None or value == "" else check_id(holder, name, field)


def check_count(
    holder: Mapping[str, Any], name: str, field: str, *, least: int = 0, most: int = MAX_INT
) -> int | None:
    value = holder.get(name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)  # proto-JSON allows 10.0 for 10
    if type(value) is not int or not least <= value <= most:
        raise invalid(field, f"must be a whole number from {least} to {most}")
    return value


def check_flag(holder: Mapping[str, Any], name: str, field: str) -> bool | None:
    value = holder.get(name)
    if value is not None and type(value) is not bool:
        raise invalid(field, "must be true or false")
    return value


def check_object(holder: Mapping[str, Any], name: str, field: str) -> dict[str, Any] | None:
    value = holder.get(name)
    if value is not None and type(value) is not dict:
        raise invalid(field, "must be an object")
    return value


def check_text(
    holder: Mapping[str, Any], name: str, field: str, most: int = MAX_NAME
) -> str | None:
    value = holder.get(name)
    if value is None or value == "":
        return None
    if type(value) is not str or len(value) > most:
        raise invalid(field, f"must be a string of at most {most} characters")
    return value


def check_names(holder: Mapping[str, Any], name: str, field: str) -> list[str] | None:
    value = holder.get(name)
    if value is None:
        return None
    if type(value) is not list or len(value) > MAX_NAMES:
        raise invalid(field, f"must be a list of at most {MAX_NAMES} strings")
    for each in value:
        if type(each) is not str or len(each) > MAX_NAME:
            raise invalid(field, f"must list strings of at most {MAX_NAME} characters")
    return value


def seconds_from_timestamp(value: str) -> float | None:
    """Returns the seconds since 1970 of an RFC 3339 timestamp; None if it is invalid."""
    match = _INSTANT.fullmatch(value)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{zone}")
    except ValueError:
        return None
    return moment.timestamp()


def normalize_base64(text: str) -> str | None:
    """Returns the standard alphabet with padding; None if `text` is not base64."""
    if not text.isascii():
        return None
    try:
        a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError):
        pass
    else:
        return text
    # proto-JSON also allows the URL-safe alphabet, and no padding
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    padded = bare + "=" * (-len(bare) % 4)
    try:
        a2b_base64(padded, strict_mode=True)
    except (Base64Error, ValueError):
        return None
    return padded


# --- messages -------------------------------------------------------------------------------------


def validate_part(given: Any, field: str) -> dict[str, Any]:
    """Returns the part, which has exactly one content."""
    if type(given) is not dict:
        raise invalid(field, "must be an object")
    part: dict[str, Any] = given
    if len(part) == 1 and type(part.get("text")) is str:
        return part  # the usual case
    if not PART.issuperset(part) or None in part.values():
        part = {
            name: value
            for name, value in part.items()
            if name in PART and (value is not None or name == "data")
        }
    contents = [name for name in CONTENT if name in part]
    if len(contents) != 1:
        raise invalid(field, "must have exactly one of text, raw, url and data")
    content = contents[0]
    if content != "data" and type(part[content]) is not str:
        raise invalid(f"{field}.{content}", "must be a string")
    if content == "raw":
        raw = normalize_base64(part["raw"])
        if raw is None:
            raise invalid(f"{field}.raw", "must be base64")
        if raw is not part["raw"]:
            part = {**part, "raw": raw}
    elif content == "url" and not 0 < len(part["url"]) <= MAX_PART_URL:
        raise invalid(f"{field}.url", f"must have 1 to {MAX_PART_URL} characters")
    check_text(part, "filename", f"{field}.filename")
    check_text(part, "mediaType", f"{field}.mediaType")
    check_object(part, "metadata", f"{field}.metadata")
    return part


def validate_parts(parts: Any, field: str) -> list[dict[str, Any]]:
    if type(parts) is not list or not parts:
        raise invalid(field, "must have at least one part")
    if len(parts) > MAX_PARTS:
        raise invalid(field, f"must have at most {MAX_PARTS} parts")
    if len(parts) == 1:
        part = validate_part(parts[0], f"{field}[0]")
        return parts if part is parts[0] else [part]
    return [validate_part(part, f"{field}[{index}]") for index, part in enumerate(parts)]


def validate_message(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message of a client's request."""
    message = params.get("message")
    if type(message) is not dict:
        raise invalid("message", "is required, and is an object")
    check_id(message, "messageId", "message.messageId")
    if message.get("role") != USER:
        raise invalid("message.role", f"must be {USER} in a message to an agent")
    parts = validate_parts(message.get("parts"), "message.parts")
    if len(message) > 3:
        context = check_optional_id(message, "contextId", "message.contextId")
        task = check_optional_id(message, "taskId", "message.taskId")
        check_object(message, "metadata", "message.metadata")
        check_names(message, "extensions", "message.extensions")
        check_names(message, "referenceTaskIds", "message.referenceTaskIds")
        if (
            not MESSAGE.issuperset(message)
            or None in message.values()
            or (context is None and "contextId" in message)
            or (task is None and "taskId" in message)
        ):
            message = {
                name: value
                for name, value in message.items()
                if name in MESSAGE
                and value is not None
                and (value != "" or name not in ("contextId", "taskId"))
            }
    if parts is not message["parts"]:
        message = {**message, "parts": parts}
    return message


def validate_send(given: Any) -> dict[str, Any]:
    """Validates a SendMessageRequest."""
    params = _check_params(given)
    message = validate_message(params)
    same = message is params["message"]
    if len(params) == 1 and same:
        return params
    tenant = check_text(params, "tenant", "tenant", MAX_ID)
    metadata = check_object(params, "metadata", "metadata")
    configuration = validate_configuration(params)
    request: dict[str, Any] = {"message": message}
    if tenant is not None:
        request["tenant"] = tenant
    if configuration is not None:
        request["configuration"] = configuration
    if metadata is not None:
        request["metadata"] = metadata
    return request


def validate_configuration(params: Mapping[str, Any]) -> dict[str, Any] | None:
    given = check_object(params, "configuration", "configuration")
    if given is None:
        return None
    configuration: dict[str, Any] = {}
    modes = check_names(given, "acceptedOutputModes", "configuration.acceptedOutputModes")
    if modes:
        configuration["acceptedOutputModes"] = modes
    length = check_count(given, "historyLength", "configuration.historyLength")
    if length is not None:
        configuration["historyLength"] = length
    if check_flag(given, "returnImmediately", "configuration.returnImmediately"):
        configuration["returnImmediately"] = True
    field = "configuration.taskPushNotificationConfig"
    push = check_object(given, "taskPushNotificationConfig", field)
    if push is not None:
        configuration["taskPushNotificationConfig"] = validate_push_config(push, f"{field}.")
    return configuration


# --- tasks ----------------------------------------------------------------------------------------


def validate_get(params: Any) -> dict[str, Any]:
    request = validate_task_key(params)
    length = check_count(params, "historyLength", "historyLength")
    if length is not None:
        request["historyLength"] = length
    return request


def validate_task_key(params: Any) -> dict[str, Any]:
    """Validates a request about one task: to subscribe to it, to cancel it."""
    params = _check_params(params)
    request: dict[str, Any] = {"id": check_id(params, "id", "id")}
    return _add_tenant(request, params)


def validate_cancel(params: Any) -> dict[str, Any]:
    request = validate_task_key(params)
    return put(request, metadata=check_object(params, "metadata", "metadata"))


def validate_list(params: Any) -> dict[str, Any]:
    params = _check_params(params)
    request: dict[str, Any] = {}
    status = params.get("status")
    if type(status) is str and status in STATES:
        request["status"] = status
    elif status not in (None, "", UNSPECIFIED):
        raise invalid("status", f"must be one of {', '.join(sorted(STATES))}")
    after = check_text(params, "statusTimestampAfter", "statusTimestampAfter", 64)
    if after is not None and seconds_from_timestamp(after) is None:
        raise invalid("statusTimestampAfter", "must be a time such as 2026-01-31T12:00:00Z")
    put(
        request,
        contextId=check_optional_id(params, "contextId", "contextId"),
        pageSize=check_count(params, "pageSize", "pageSize", least=1, most=MAX_PAGE),
        pageToken=check_text(params, "pageToken", "pageToken"),
        historyLength=check_count(params, "historyLength", "historyLength"),
        statusTimestampAfter=after,
        includeArtifacts=check_flag(params, "includeArtifacts", "includeArtifacts"),
    )
    return _add_tenant(request, params)


def validate_card_request(params: Any) -> dict[str, Any]:
    return {} if params is None else _add_tenant({}, _check_params(params))


# --- push notifications ---------------------------------------------------------------------------


def validate_push_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Validates a TaskPushNotificationConfig, without its task."""
    url = check_text(config, "url", f"{prefix}url", MAX_URL)
    if url is None or not url.lower().startswith(("http://", "https://")) or not _is_plain(url):
        raise invalid(f"{prefix}url", "is required, and is an address with http:// or https://")
    id = check_optional_id(config, "id", f"{prefix}id")
    token = _check_secret(config, "token", prefix)
    found = put({"url": url}, id=id, token=token)
    authentication = check_object(config, "authentication", f"{prefix}authentication")
    if authentication:  # clients of 0.3 send an empty one for none
        found["authentication"] = _validate_authentication(
            authentication, f"{prefix}authentication."
        )
    return found


def _validate_authentication(given: Mapping[str, Any], prefix: str) -> dict[str, str]:
    scheme = given.get("scheme")
    if type(scheme) is not str or _SCHEME.fullmatch(scheme) is None:
        raise invalid(f"{prefix}scheme", "is required, and is the name of an HTTP scheme")
    return put({"scheme": scheme}, credentials=_check_secret(given, "credentials", prefix))


def _check_secret(holder: Mapping[str, Any], name: str, prefix: str) -> str | None:
    secret = check_text(holder, name, f"{prefix}{name}", MAX_SECRET)
    if secret is not None and not _is_plain(secret):
        raise invalid(f"{prefix}{name}", "must be one line of printable characters")
    return secret


def validate_push_set(params: Any) -> dict[str, Any]:
    params = _check_params(params)
    request = {"taskId": check_id(params, "taskId", "taskId"), **validate_push_config(params)}
    return _add_tenant(request, params)


def validate_push_key(params: Any) -> dict[str, Any]:
    """Validates a request about one configuration: to read it, to delete it."""
    params = _check_params(params)
    request: dict[str, Any] = {
        "taskId": check_id(params, "taskId", "taskId"),
        "id": check_id(params, "id", "id"),
    }
    return _add_tenant(request, params)


def validate_push_list(params: Any) -> dict[str, Any]:
    params = _check_params(params)
    request: dict[str, Any] = {"taskId": check_id(params, "taskId", "taskId")}
    size = check_count(params, "pageSize", "pageSize", most=MAX_PAGE)
    # `pageSize` is not `optional` in the proto: 0 means missing.
    put(request, pageSize=size or None, pageToken=check_text(params, "pageToken", "pageToken"))
    return _add_tenant(request, params)


RequestValidator = Callable[[Any], dict[str, Any]]


def _check_params(params: Any) -> dict[str, Any]:
    if type(params) is not dict:
        raise A2aError("INVALID_PARAMS", "the parameters must be an object")
    return params


def _add_tenant(request: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    tenant = check_text(params, "tenant", "tenant", MAX_ID)
    if tenant is not None:
        request["tenant"] = tenant
    return request


def _is_plain(text: str) -> bool:
    """Whether the text can be a header value or part of a URL: printable ASCII."""
    return text.isprintable() and text.isascii()
