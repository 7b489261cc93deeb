"""Counts the statements SQLite executes, into a file that others can read at any time."""

import json
import os


class Count:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self.statements = self.bytes = 0

    def __call__(self, statement: str) -> None:
        """As a connection's trace callback: the text comes with the values in it."""
        self.statements += 1
        self.bytes += len(statement)
        counted = json.dumps({"statements": self.statements, "bytes": self.bytes})
        os.pwrite(self._file, counted.ljust(80).encode(), 0)
