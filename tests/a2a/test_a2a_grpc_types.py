"""The compiled gRPC messages, compared with the official SDK's generated types."""

from __future__ import annotations

import math
from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2, status_pb2

from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.grpc.messages import MAX_VALUES, TYPES_10, InvalidMessage, encode_status
from dragoman.a2a.protocol.grpc.services import SERVICES_BY_VERSION

TASK = {
    "id": "t1",
    "contextId": "c1",
    "status": {
        "state": "TASK_STATE_INPUT_REQUIRED",
        "timestamp": "2026-11-16T04:05:06.789Z",
        "message": {"messageId": "m2", "role": "ROLE_AGENT", "parts": [{"text": "which?"}]},
    },
    "artifacts": [
        {
            "artifactId": "a1",
            "name": "response",
            "parts": [
                {"raw": "AAH/", "filename": "x.bin", "mediaType": "application/octet-stream"},
                {"url": "https://example.com/x", "metadata": {"k": [True, None, "v"]}},
            ],
            "extensions": ["urn:x"],
        }
    ],
    "history": [
        {
            "messageId": "m1",
            "role": "ROLE_USER",
            "parts": [
                {"text": ""},
                {"data": None},
                {"data": {"n": 3, "f": 2.5, "l": [], "o": {}}},
                {"data": [1, "two", False]},
                {"data": "only text"},
            ],
            "referenceTaskIds": ["t0"],
        }
    ],
    "metadata": {"big": 9007199254740992, "none": None},
}
CARD = {
    "name": "echo",
    "description": "says it again",
    "version": "1",
    "documentationUrl": "",
    "supportedInterfaces": [
        {"url": "127.0.0.1:1", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {"streaming": False, "extensions": [{"uri": "urn:x", "required": True}]},
    "securitySchemes": {"k": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
    "securityRequirements": [{"schemes": {"k": {"list": ["a"]}}}],
    "defaultInputModes": ["text/plain"],
    "signatures": [{"protected": "p", "signature": "s", "header": {"kid": "1"}}],
}


def fields_of(descriptor: Any) -> dict[str, Any]:
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.json_name,
            field.message_type and field.message_type.full_name,
            field.enum_type and [(v.name, v.number) for v in field.enum_type.values],
            field.containing_oneof is not None,
        )
        for field in descriptor.fields
    }


@pytest.mark.promise("J3")
def test_every_grpc_message_has_the_fields_of_the_official_sdk() -> None:
    theirs = a2a_pb2.DESCRIPTOR.message_types_by_name
    assert len(theirs) > 40
    for name, descriptor in theirs.items():
        assert fields_of(TYPES_10.descriptor(name)) == fields_of(descriptor), name


@pytest.mark.promise("J3")
def test_every_grpc_method_matches_the_official_service() -> None:
    service = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
    theirs = {m.name: (m.input_type.name, m.output_type.name) for m in service.methods}
    methods = SERVICES_BY_VERSION["1.0"].methods
    assert {m.name: (m.request_type, m.response_type) for m in methods.values()} == theirs
    assert set(methods) == set(operations.OPS)


@pytest.mark.parametrize(("name", "plain"), [("Task", TASK), ("AgentCard", CARD)])
def test_encoded_messages_decode_equally_in_both_implementations(
    name: str, plain: dict[str, Any]
) -> None:
    ours = TYPES_10.encode(name, plain)
    assert TYPES_10.decode(name, ours) == plain
    theirs = getattr(a2a_pb2, name)
    assert MessageToDict(theirs.FromString(ours)) == plain
    assert TYPES_10.decode(name, ParseDict(plain, theirs()).SerializeToString()) == plain


def test_whole_numbers_decode_as_integers_within_safe_range() -> None:
    values = [3.0, -2.0, 2.5, 2.0**53, 2.0**54]
    read = TYPES_10.decode("Part", TYPES_10.encode("Part", {"data": values}))["data"]
    assert [type(value) for value in read] == [int, int, float, int, float]


def test_optional_zero_is_kept_and_other_defaults_are_omitted() -> None:
    asked = a2a_pb2.ListTasksRequest(page_size=0, page_token="", include_artifacts=False)
    read = TYPES_10.decode("ListTasksRequest", asked.SerializeToString())
    assert read == {"pageSize": 0, "includeArtifacts": False}


def test_unknown_members_are_omitted() -> None:
    data = TYPES_10.encode("Task", {"id": "t", "kind": "task", "_own": {"x": 1}})
    assert TYPES_10.decode("Task", data) == {"id": "t"}


def _number(value: float) -> bytes:
    part = a2a_pb2.Part()
    part.data.number_value = value
    return bytes(part.SerializeToString())


def _late() -> bytes:
    asked = a2a_pb2.ListTasksRequest()
    asked.status_timestamp_after.seconds = 10**15
    return bytes(asked.SerializeToString())


def _deep() -> bytes:
    part = b"\x1a\x00"
    for _ in range(200):  # values in lists in values
        for tag in (b"\x0a", b"\x32"):
            size = len(part)
            head = bytes((size & 127 | 128, size >> 7)) if size > 127 else bytes((size,))
            part = tag + head + part
    size = len(part)
    return b"\x22" + bytes((size & 127 | 128, size >> 7)) + part


UNREADABLE = {
    "no protobuf": ("Task", b"\xff\xff\xff"),
    "half a field": ("Task", b"\x0a\x05ab"),
    "text that is no UTF-8": ("Task", b"\x0a\x02\xff\xfe"),
    "no number": ("Part", _number(math.nan)),
    "no finite number": ("Part", _number(-math.inf)),
    "no date": ("ListTasksRequest", _late()),
    "a value nested without end": ("Part", _deep()),
}


@pytest.mark.parametrize("why", UNREADABLE)
def test_undecodable_bytes_are_refused(why: str) -> None:
    with pytest.raises(InvalidMessage):
        TYPES_10.decode(*UNREADABLE[why])


@pytest.mark.parametrize(
    "plain",
    [
        {"id": 5},
        {"id": "\ud800"},
        {"status": {"timestamp": "2026-01-01"}},
        {"history": [{"parts": [{"text": "a", "url": "b"}]}]},
        {"metadata": {"x": object()}},
    ],
)
def test_unencodable_value_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        TYPES_10.encode("Task", plain)


def _many_parts() -> bytes:
    return b"\x12" + _sized(b"\x2a\x00" * (MAX_VALUES + 1))


def _many_nulls() -> bytes:
    values = b"\x0a\x02\x08\x00" * (MAX_VALUES // 2)
    part = b"\x22" + _sized(b"\x32" + _sized(values))
    return b"\x12" + _sized(b"\x2a" + _sized(part))


def _sized(data: bytes) -> bytes:
    size, head = len(data), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + data


@pytest.mark.parametrize("data", [_many_parts(), _many_nulls(), b"\x08\x01" * (MAX_VALUES + 1)])
def test_value_count_of_a_message_is_bounded(data: bytes) -> None:
    assert a2a_pb2.SendMessageRequest.FromString(data)
    with pytest.raises(InvalidMessage, match="more than 200000 values"):
        TYPES_10.decode("SendMessageRequest", data)


def test_deprecated_group_in_a_large_message_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="does not have"):
        TYPES_10.decode("SendMessageRequest", b"\x2b\x2c" * (MAX_VALUES + 1))


def test_large_file_counts_as_few_values() -> None:
    asked = {"message": {"messageId": "m", "parts": [{"raw": "QUFB" * 500_000}]}}
    assert (
        TYPES_10.decode("SendMessageRequest", TYPES_10.encode("SendMessageRequest", asked)) == asked
    )


def test_grpc_status_details_match_googles_types() -> None:
    data = encode_status(
        5,
        "no such täsk",
        [
            ("ErrorInfo", {"reason": "TASK_NOT_FOUND", "domain": "d", "metadata": {"id": "t"}}),
            ("BadRequest", {"fieldViolations": [{"field": "id", "description": "unknown"}]}),
        ],
    )
    status = status_pb2.Status.FromString(data)
    assert (status.code, status.message) == (5, "no such täsk")
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info) and status.details[1].Unpack(bad)
    assert (info.reason, info.domain, dict(info.metadata)) == ("TASK_NOT_FOUND", "d", {"id": "t"})
    assert [(v.field, v.description) for v in bad.field_violations] == [("id", "unknown")]
