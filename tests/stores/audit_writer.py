"""Writes audited calls until killed; prints each intent's number once stored."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dragoman.stores.audit.log import SqliteAuditLog


async def main(home: Path) -> None:
    audit = SqliteAuditLog(home)

    async def call_again_and_again(name: str) -> None:
        while True:
            seq = audit.intend({"verb": name, "caller": "key:ci"})
            os.write(1, f"{seq}\n".encode())
            await asyncio.sleep(0)
            audit.conclude(seq, {"outcome": "completed"})

    pruning = asyncio.create_task(audit.prune(3600, 200))
    await asyncio.gather(*(call_again_and_again(f"files.{n}") for n in range(8)))
    await pruning


asyncio.run(main(Path(sys.argv[1])))
