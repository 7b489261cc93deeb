"""Writes the compiled descriptors of A2A over gRPC: `make descriptors`.

Takes a2a.proto of 1.0 and 0.3 as the official SDK has compiled them, without the options that only
HTTP gateways read, and compiles `rpc_status.proto`.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).parent.parent / "src/dragoman/a2a/protocol/grpc"
STATUS = "rpc_status.proto"
WELL_KNOWN = (
    "google/protobuf/empty.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
)


def build_descriptors() -> FileDescriptorSet:
    found = FileDescriptorSet()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        assert protoc.main(["", f"-I{FOLDER}", f"--descriptor_set_out={out}", STATUS]) == 0
        found.ParseFromString(out.read_bytes())
    for name, module in (("a2a-1.0.proto", a2a_pb2), ("a2a-0.3.proto", a2a_v0_3_pb2)):
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        file.name = name
        file.dependency[:] = WELL_KNOWN
        file.ClearField("options")
        for message in file.message_type:
            for field in message.field:
                field.ClearField("options")
        for service in file.service:
            service.ClearField("options")
            for method in service.method:
                method.ClearField("options")
        found.file.append(file)
    return found


if __name__ == "__main__":
    file = FOLDER / "a2a.binpb"
    file.write_bytes(build_descriptors().SerializeToString(deterministic=True))
    print(f"{file.name}: {file.stat().st_size} bytes, from a2a-sdk {version('a2a-sdk')}")
