"""Round trips through older dialects keep everything the dialect can express."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a import types
from dragoman.a2a.protocol.dialects import SPOKEN, Dialect, v01, v03, v10
from dragoman.a2a.protocol.dialects.common_shapes import STATES_OUT
from dragoman.a2a.protocol.dialects.operations import CANCEL, GET, SEND, STREAM

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
IDS = st.text("abc-123", min_size=1, max_size=12)
METADATA = st.dictionaries(st.text("abc_", min_size=1, max_size=4), JSON, min_size=1, max_size=2)
NAMED = {
    "filename": st.text("ab.", min_size=1, max_size=8),
    "mediaType": st.sampled_from(["text/plain", "image/png"]),
}


def some(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


PARTS = st.lists(
    st.one_of(
        some({"text": st.text(max_size=10)}, metadata=METADATA),
        some({"data": JSON}, metadata=METADATA),
        some(
            {"raw": st.binary(max_size=9).map(lambda raw: b64encode(raw).decode())},
            metadata=METADATA,
            **NAMED,
        ),
        some({"url": IDS.map("https://a.example/".__add__)}, metadata=METADATA, **NAMED),
    ),
    min_size=1,
    max_size=3,
)


def messages(role: str) -> st.SearchStrategy[dict[str, Any]]:
    return some(
        {"messageId": IDS, "role": st.just(role), "parts": PARTS},
        contextId=IDS,
        taskId=IDS,
        metadata=METADATA,
        extensions=st.lists(st.just("urn:x"), min_size=1, max_size=2),
        referenceTaskIds=st.lists(IDS, min_size=1, max_size=2),
    )


STATES = st.sampled_from(sorted(STATES_OUT))
STATUS = some(
    {"state": STATES},
    message=messages("ROLE_AGENT"),
    timestamp=st.just("2026-01-02T03:04:05.678Z"),
)
ARTIFACTS = some(
    {"artifactId": IDS, "parts": PARTS},
    name=IDS,
    description=IDS,
    metadata=METADATA,
    extensions=st.just(["urn:x"]),
)
TASKS = some(
    {"id": IDS, "contextId": IDS, "status": STATUS},
    artifacts=st.lists(ARTIFACTS, min_size=1, max_size=2),
    history=st.lists(messages("ROLE_USER") | messages("ROLE_AGENT"), min_size=1, max_size=2),
    metadata=METADATA,
)
EVENTS = st.one_of(
    TASKS.map(lambda task: {"task": task}),
    messages("ROLE_AGENT").map(lambda message: {"message": message}),
    some({"taskId": IDS, "contextId": IDS, "status": STATUS}, metadata=METADATA).map(
        lambda update: {"statusUpdate": update}
    ),
    some(
        {"taskId": IDS, "contextId": IDS, "artifact": ARTIFACTS},
        metadata=METADATA,
        append=st.just(True),
        lastChunk=st.just(True),
    ).map(lambda update: {"artifactUpdate": update}),
)
FEW = settings(max_examples=60, deadline=None)
LOSSLESS = {one.VERSION: one for one in SPOKEN.values() if one is not v01}
"""All but 0.1, whose tests are below: a new dialect is expected to hold everything."""
each_lossless = pytest.mark.parametrize("dialect", LOSSLESS.values(), ids=LOSSLESS)


@pytest.mark.promise("J3")
@each_lossless
@FEW
@given(task=TASKS)
def test_task_round_trips(dialect: Dialect, task: dict[str, Any]) -> None:
    assert dialect.parse_result(GET, dialect.render_result(GET, task)) == task
    sent = dialect.render_result(SEND, {"task": task})
    assert dialect.parse_result(SEND, sent) == {"task": task}


@pytest.mark.promise("J3")
@each_lossless
@FEW
@given(event=EVENTS, final=st.booleans())
def test_event_round_trips_in_each_dialect(
    dialect: Dialect, event: dict[str, Any], final: bool
) -> None:
    assert dialect.parse_event(dialect.render_event(event, final=final)) == event


@FEW
@given(EVENTS)
def test_event_round_trips_through_0_3_over_http(event: dict[str, Any]) -> None:
    back = v03.parse_rest_event(v03.render_rest_event(event, final=False))
    assert back == without(event, "referenceTaskIds")


@pytest.mark.promise("J3")
@FEW
@given(EVENTS)
def test_well_formed_message_round_trips_through_1_0(event: dict[str, Any]) -> None:
    ParseDict(event, types.StreamResponse())
    assert v10.parse_event(v10.render_event(event, final=True)) == event


@each_lossless
@FEW
@given(message=messages("ROLE_USER"), metadata=METADATA)
def test_request_round_trips(
    dialect: Dialect, message: dict[str, Any], metadata: dict[str, Any]
) -> None:
    request = {"message": message, "metadata": metadata, "configuration": {"historyLength": 3}}
    for op in (SEND, STREAM):
        assert dialect.parse_params(op, dialect.build_request(op, request)[1]) == request


@FEW
@given(messages("ROLE_USER"))
def test_request_round_trips_through_0_1(message: dict[str, Any]) -> None:
    found = v01.parse_params(SEND, v01.build_request(SEND, {"message": message})[1])
    assert found["message"]["parts"] == message["parts"]
    assert found["message"].get("contextId") == message.get("contextId")
    assert found["message"].get("metadata") == message.get("metadata")
    assert found["_taskId"] == message.get("taskId", found["_taskId"])


DOWN = {
    "TASK_STATE_REJECTED": "TASK_STATE_FAILED",
    "TASK_STATE_AUTH_REQUIRED": "TASK_STATE_INPUT_REQUIRED",
}


@pytest.mark.promise("J3")
@FEW
@given(TASKS)
def test_task_members_of_0_1_round_trip(task: dict[str, Any]) -> None:
    back = v01.parse_result(CANCEL, v01.render_result(CANCEL, task))
    lost = ("messageId", "taskId", "contextId", "extensions", "referenceTaskIds", "artifactId")
    state = task["status"]["state"]
    wanted = {**task, "status": {**task["status"], "state": DOWN.get(state, state)}}
    assert without(back, *lost) == without(wanted, *lost)
    assert back["contextId"] == task["contextId"]


def without(value: Any, *names: str) -> Any:
    """The same without those members, wherever the protocol has them."""
    if isinstance(value, list):
        return [without(each, *names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: held if name in ("metadata", "data") else without(held, *names)
        for name, held in value.items()
        if name not in names
    }
