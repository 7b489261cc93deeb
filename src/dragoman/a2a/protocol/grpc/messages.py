"""Message types made of the tables, and the way between a message's bytes and its plain form, which
is proto-JSON.

Knows no call, no face and no port. The types live in a pool of their own: the process may hold
others of the same name, those of an SDK.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    struct_pb2,
    timestamp_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.json_format import (  # type: ignore[import-untyped]
    Error as JsonFormatError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from dragoman.a2a.protocol.grpc.tables import (
    ENUMS_03,
    ENUMS_10,
    MESSAGES_03,
    MESSAGES_10,
    MESSAGES_RPC,
    RPC,
    V03,
    V10,
)

MAX_BYTES = 10 * 1024 * 1024
MAX_VALUES = 200_000
"""Fields in a message, those within others too: two bytes of it can be a hundred in memory."""
SMALL = 256 * 1024
"""Up to here a message is read between two others; a larger one can take a noticeable time."""
EXACT = 2.0**53

_WELL_KNOWN = {
    "Struct": ".google.protobuf.Struct",
    "Timestamp": ".google.protobuf.Timestamp",
    "Value": ".google.protobuf.Value",
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
}
_ITEM = re.compile(r"([*?|%]?)([a-z0-9_]+)(?::(\w+))?=(\d+)(?:@(\w+))?")


class InvalidMessage(ValueError):
    """The bytes are no message of that type, or what is in it cannot be said in the other form."""


class MessageTypes:
    """The message types of one package."""

    def __init__(
        self, package: str, messages: Mapping[str, str], enums: Mapping[str, tuple[str, str]]
    ) -> None:
        self._package = package
        self._enums = enums
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{package}.proto", package=package, syntax="proto3"
        )
        pool = DescriptorPool()
        for known in (struct_pb2, timestamp_pb2):
            pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
            file.dependency.append(known.DESCRIPTOR.name)
        for name, (prefix, values) in enums.items():
            enum = file.enum_type.add(name=name)
            for number, value in enumerate(values.split()):
                enum.value.add(name=prefix + value, number=number)
        for name, fields in messages.items():
            self._describe(file.message_type.add(name=name), fields)
        pool.AddSerializedFile(file.SerializeToString())
        self._classes = {
            name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in messages
        }
        self._within: dict[str, dict[int, str]] = {}
        """Of each type, also of those within others: which fields hold messages, and of what
        type."""
        for made in self._classes.values():
            self._learn(made.DESCRIPTOR)

    def decode(self, name: str, data: bytes) -> dict[str, Any]:
        """The plain form of a message; fields that have their default are left out."""
        if len(data) > 2 * MAX_VALUES:  # less than two bytes is no field
            self._count(f"{self._package}.{name}", data)
        try:
            plain = MessageToDict(self._classes[name].FromString(data))
        except DecodeError as error:
            raise InvalidMessage(f"this is no {self._package}.{name}: {error}") from None
        except (JsonFormatError, ValueError, RecursionError) as error:
            # an infinite number, a date that no calendar has
            raise InvalidMessage(
                f"{self._package}.{name} holds what JSON cannot: {error}"
            ) from None
        found: dict[str, Any] = _whole(plain)
        return found

    def encode(self, name: str, plain: Mapping[str, Any]) -> bytes:
        """The bytes of a message; members that it does not know are left out."""
        try:
            message = ParseDict(plain, self._classes[name](), ignore_unknown_fields=True)
            data: bytes = message.SerializeToString()
        except (JsonFormatError, EncodeError, ValueError, TypeError, RecursionError) as error:
            raise InvalidMessage(
                f"this cannot be said as {self._package}.{name}: {error}"
            ) from None
        return data

    def descriptor(self, name: str) -> Any:
        return self._classes[name].DESCRIPTOR

    # --- how they are made -----------------------------------------------------------------------

    def _describe(self, message: Any, fields: str) -> None:
        for item in fields.split():
            mark, name, kind, number, json_name = _parse(item)
            field = message.field.add(
                name=name, number=number, label=_FIELD.LABEL_OPTIONAL, json_name=json_name
            )
            if mark == "%":
                self._describe_map(message, field, kind)
                continue
            self._type(field, kind)
            if mark == "*":
                field.label = _FIELD.LABEL_REPEATED
            elif mark == "|":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="content")
                field.oneof_index = 0
            elif mark == "?":  # as protoc has it: the only one of its alternatives
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")

    def _describe_map(self, message: Any, field: Any, kind: str) -> None:
        entry = message.nested_type.add(name=_title(field.name) + "Entry")
        entry.options.map_entry = True
        for number, (name, kept) in enumerate((("key", "string"), ("value", kind)), 1):
            half = entry.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
            self._type(half, kept)
        field.label = _FIELD.LABEL_REPEATED
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{self._package}.{message.name}.{entry.name}"

    def _type(self, field: Any, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _FIELD.TYPE_ENUM if kind in self._enums else _FIELD.TYPE_MESSAGE
            field.type_name = _WELL_KNOWN.get(kind, f".{self._package}.{kind}")

    # --- how much is in one ----------------------------------------------------------------------

    def _learn(self, descriptor: Any) -> None:
        if descriptor.full_name in self._within:
            return
        inner = {field.number: field.message_type for field in descriptor.fields}
        known = self._within[descriptor.full_name] = {}
        for number, kind in inner.items():
            if kind is not None:
                known[number] = kind.full_name
                self._learn(kind)

    def _count(self, name: str, data: bytes) -> None:
        """Refuses what holds more than it may, before anything is made of it."""
        left = MAX_VALUES
        todo = [(name, 0, len(data))]
        while todo:
            name, at, end = todo.pop()
            known = self._within[name]
            while at < end:
                left -= 1
                if left < 0:
                    raise InvalidMessage(f"the message has more than {MAX_VALUES} values")
                tag, at = _varint(data, at)
                kind = tag & 7
                if kind == 2:
                    size, at = _varint(data, at)
                    inner = known.get(tag >> 3)
                    if inner is not None:
                        todo.append((inner, at, min(at + size, end)))
                    at += size
                elif kind == 0:
                    _, at = _varint(data, at)
                elif kind in _FIXED:
                    at += _FIXED[kind]
                else:
                    raise InvalidMessage(
                        "the message has a kind of field that proto3 does not have"
                    )


_FIXED = {1: 8, 5: 4}


def _varint(data: bytes, at: int) -> tuple[int, int]:
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
    raise InvalidMessage("the message ends within a number")


def _whole(value: Any) -> Any:
    """Protobuf's values know no integers, JSON's readers do: 3.0 was 3 before it was sent."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        return int(value)
    return value


def _parse(item: str) -> tuple[str, str, str, int, str]:
    found = _ITEM.fullmatch(item)
    assert found, item
    mark, name, kind, number, json_name = found.groups()
    camel = _title(name)
    return mark, name, kind or "string", int(number), json_name or camel[0].lower() + camel[1:]


def _title(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


TYPES_10 = MessageTypes(V10, MESSAGES_10, ENUMS_10)
TYPES_03 = MessageTypes(V03, MESSAGES_03, ENUMS_03)
TYPES_RPC = MessageTypes(RPC, MESSAGES_RPC, {})


def encode_status(code: int, message: str, details: list[tuple[str, dict[str, Any]]]) -> bytes:
    """A google.rpc.Status; each detail is the name of its type, and its plain form."""
    packed = [
        {
            "typeUrl": f"type.googleapis.com/{RPC}.{name}",
            "value": b64encode(TYPES_RPC.encode(name, plain)).decode(),
        }
        for name, plain in details
    ]
    return TYPES_RPC.encode("Status", {"code": code, "message": message, "details": packed})
