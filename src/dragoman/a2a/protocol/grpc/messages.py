"""The message types of A2A over gRPC, and the conversion between their bytes and proto-JSON.

`a2a.binpb` holds the compiled descriptors of a2a.proto 1.0.1 (package lf.a2a.v1) and 0.3 (package
a2a.v1, with the fields that its SDKs added), and of `rpc_status.proto`; `make descriptors` writes
it. The types live in a private pool: the process may hold others of the same name, an SDK's.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, empty_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import Error as JsonFormatError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS = "a2a.binpb"
V10, V03, RPC = "lf.a2a.v1", "a2a.v1", "google.rpc"
MAX_BYTES = 10 * 1024 * 1024
MAX_VALUES = 200_000
"""Fields in a message, nested ones included: two bytes on the wire can be a hundred in memory."""
SMALL = 16 * 1024
"""A larger message takes noticeable time to decode and does not belong on the event loop."""
FEW_VALUES = 1_000
"""The same of a message that is encoded: each of its values takes several microseconds."""
EXACT = 2.0**53


class InvalidMessage(ValueError):
    """The bytes are no message of that type, or its content has no equivalent in the other form."""


class MessageTypes:
    def __init__(self, package: str) -> None:
        self._package = package
        file = _FILES[package]
        self.methods = [
            (method.name, method.input_type.name, method.output_type.name)
            for service in file.services_by_name.values()
            for method in service.methods
        ]
        """The name, request and response type of each method of its service."""
        found = dict(file.message_types_by_name)
        found["Empty"] = file.pool.FindMessageTypeByName("google.protobuf.Empty")
        self._classes = {name: GetMessageClass(descriptor) for name, descriptor in found.items()}
        self._within: dict[str, dict[int, str]] = {}
        """Per type, nested ones included: the fields that hold messages, and of which type."""
        for descriptor in found.values():
            self._index_fields(descriptor)

    def decode(self, name: str, data: bytes) -> dict[str, Any]:
        """Returns a message as proto-JSON, without fields that have their default."""
        if len(data) > 2 * MAX_VALUES:  # a field takes at least two bytes
            self._check_count(self.descriptor(name).full_name, data)
        try:
            plain = MessageToDict(self._classes[name].FromString(data))
        except DecodeError as error:
            raise InvalidMessage(f"invalid {self._package}.{name}: {error}") from None
        except (JsonFormatError, ValueError, RecursionError) as error:
            # such as an infinite number or a date outside the calendar
            raise InvalidMessage(f"{self._package}.{name} has no JSON form: {error}") from None
        found: dict[str, Any] = _restore_integers(plain)
        return found

    def encode(self, name: str, plain: Mapping[str, Any]) -> bytes:
        """Returns the bytes of a message; drops members that the type does not have."""
        try:
            message = ParseDict(plain, self._classes[name](), ignore_unknown_fields=True)
            data: bytes = message.SerializeToString()
        except (JsonFormatError, EncodeError, ValueError, TypeError, RecursionError) as error:
            raise InvalidMessage(f"not a valid {self._package}.{name}: {error}") from None
        return data

    def descriptor(self, name: str) -> Any:
        return self._classes[name].DESCRIPTOR

    def _index_fields(self, descriptor: Any) -> None:
        if descriptor.full_name in self._within:
            return
        inner = {field.number: field.message_type for field in descriptor.fields}
        known = self._within[descriptor.full_name] = {}
        for number, kind in inner.items():
            if kind is not None:
                known[number] = kind.full_name
                self._index_fields(kind)

    def _check_count(self, name: str, data: bytes) -> None:
        """Rejects a message with too many fields before it is decoded."""
        left = MAX_VALUES
        todo = [(name, 0, len(data))]
        while todo:
            name, at, end = todo.pop()
            known = self._within[name]
            while at < end:
                left -= 1
                if left < 0:
                    raise InvalidMessage(f"the message has more than {MAX_VALUES} values")
                tag, at = _read_varint(data, at)
                kind = tag & 7
                if kind == 2:
                    size, at = _read_varint(data, at)
                    inner = known.get(tag >> 3)
                    if inner is not None:
                        todo.append((inner, at, min(at + size, end)))
                    at += size
                elif kind == 0:
                    _, at = _read_varint(data, at)
                elif kind in _FIXED:
                    at += _FIXED[kind]
                else:
                    raise InvalidMessage("the message has a wire type that proto3 does not have")


_FIXED = {1: 8, 5: 4}


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise InvalidMessage("the message ends within a varint")


def is_quickly_encoded(plain: Mapping[str, Any]) -> bool:
    """Whether a message has so few values that it can be encoded on the event loop."""
    count, left = 0, [plain]
    while left:
        value: Any = left.pop()
        if isinstance(value, dict | list):
            count += len(value)
            if count > FEW_VALUES:
                return False
            left += value.values() if isinstance(value, dict) else value
    return True


def _restore_integers(value: Any) -> Any:
    """google.protobuf.Value has no integers, JSON does: 3.0 was 3 before it was sent."""
    if isinstance(value, dict):
        return {key: _restore_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_integers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        return int(value)
    return value


def _load_files() -> dict[str, Any]:
    """Loads the descriptors into a pool of their own; returns the file of each package."""
    pool = DescriptorPool()
    for known in (empty_pb2, struct_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    compiled = Path(__file__).with_name(DESCRIPTORS).read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return {file.package: pool.FindFileByName(file.name) for file in files}


_FILES = _load_files()
TYPES_10 = MessageTypes(V10)
TYPES_03 = MessageTypes(V03)
TYPES_RPC = MessageTypes(RPC)


def encode_status(code: int, message: str, details: list[tuple[str, dict[str, Any]]]) -> bytes:
    """Encodes a google.rpc.Status; a detail is the name of its type and its proto-JSON."""
    packed = [
        {
            "typeUrl": f"type.googleapis.com/{RPC}.{name}",
            "value": b64encode(TYPES_RPC.encode(name, plain)).decode(),
        }
        for name, plain in details
    ]
    return TYPES_RPC.encode("Status", {"code": code, "message": message, "details": packed})
