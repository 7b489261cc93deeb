"""Writes audited calls until killed; prints each intent's number once stored. With the address of a
database, copies the entries there."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dragoman.stores.audit.log import SqliteAuditLog


def start_shipper(audit: SqliteAuditLog, home: Path, url: str) -> asyncio.Task[None]:
    from dragoman.stores.audit.shared_keys import ChainKeys
    from dragoman.stores.audit.shipper import AuditShipper, ShipperLimits

    limits = ShipperLimits(look_seconds=0.01)
    return asyncio.create_task(AuditShipper(audit, home, url, ChainKeys(None), "w", limits).run())


async def main(home: Path, url: str = "") -> None:
    audit = SqliteAuditLog(home)
    shipping = start_shipper(audit, home, url) if url else None

    async def call_again_and_again(name: str) -> None:
        while True:
            seq = audit.intend({"verb": name, "caller": "key:ci"})
            os.write(1, f"{seq}\n".encode())
            await asyncio.sleep(0)
            audit.conclude(seq, {"outcome": "completed"})

    pruning = asyncio.create_task(audit.prune(3600, 200))
    await asyncio.gather(*(call_again_and_again(f"files.{n}") for n in range(8)))
    await pruning
    del shipping


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
