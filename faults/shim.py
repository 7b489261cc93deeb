"""A library for LD_PRELOAD in the hub: file operations fail or are slow, the wall clock jumps."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from faults.harness import NotHere

SOURCE = Path(__file__).with_name("shim.c")


class Shim:
    """Controls shim.c in a hub over a page of shared memory."""

    def __init__(self, folder: Path, home: Path) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            raise NotHere("no C compiler (cc, gcc, clang) for the library that makes it happen")
        library, control = folder / "shim.so", folder / "control"
        compile_it = [compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"]
        made = subprocess.run([str(part) for part in compile_it], capture_output=True, text=True)
        if made.returncode:
            raise NotHere(f"{SOURCE.name} does not compile here: {made.stderr.strip()[-300:]}")
        control.write_bytes(bytes(4096))
        with control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)
        self.env = {
            "LD_PRELOAD": str(library),
            "FAILING_FILES": str(control),
            "FAILING_BELOW": str(home),
        }

    def _set(self, index: int, value: int) -> None:
        struct.pack_into("i", self._page, 4 * index, value)

    def _get(self, index: int) -> int:
        return int(struct.unpack_from("i", self._page, 4 * index)[0])

    def arm(self, number: int, error: int, in_a_row: int) -> None:
        """The `number`th operation from now on fails with `error`, and so many after it."""
        self._set(1, error)
        self._set(2, in_a_row)
        self._set(4, 0)
        self._set(0, number)

    def disarm(self) -> int:
        """Gives how many operations have failed."""
        self._set(0, 0)
        self._set(2, 0)
        return self.failed()

    def failed(self) -> int:
        return self._get(4)

    def set_clock(self, ahead: int) -> None:
        """The wall clock of the hub is so many seconds ahead from now on."""
        self._set(5, ahead)

    def set_disk(self, milliseconds: int) -> None:
        """Every fsync of the hub takes so long from now on."""
        self._set(6, milliseconds)

    def count_operations(self, work: Callable[[], object]) -> int:
        self._set(3, 0)
        work()
        time.sleep(0.2)  # the audit is written in groups a moment later
        return self._get(3)
