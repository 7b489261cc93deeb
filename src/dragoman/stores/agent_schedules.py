"""The `ScheduleStore` in `agents.db`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.core.errors import Overloaded
from dragoman.core.ports import Schedule, ScheduleCaller
from dragoman.stores.agents_db import TABLES
from dragoman.stores.database import LoopStore, StorePlace

_FIELDS = Schedule.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_COMPARED = ("next_at", "runs", "missed", "outcome")
"""What a run of a schedule changes: two hubs cannot begin the same run."""


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    of_agent: int = 50
    total: int = 500


class DatabaseSchedules(LoopStore):
    def __init__(self, place: StorePlace, limits: ScheduleLimits | None = None) -> None:
        super().__init__(place, TABLES)
        self._limits = limits or ScheduleLimits()

    def add(self, schedule: Schedule) -> None:
        # One that runs once is kept only to be shown after its run, which may wait for others.
        is_shown = "once <> 0 AND runs > 0 AND outcome <> 'running'"
        count = f"SELECT count(*) FROM schedules WHERE NOT ({is_shown})"
        own = self._read(f"{count} AND org = ? AND owner = ?", (schedule.org, schedule.owner))
        if own[0][0] >= self._limits.of_agent:
            raise Overloaded(f"you have {own[0][0]} schedules, which are all that you may have")
        if self._read(count)[0][0] >= self._limits.total:
            raise Overloaded(f"the hub has {self._limits.total} schedules and takes no more")
        with self._transact() as db:
            places = ", ".join("?" * len(_FIELDS))
            # Several hubs may add the schedule of the same manifest.
            db.execute(
                f"INSERT INTO schedules ({_COLUMNS}) VALUES ({places}) ON CONFLICT (id) DO NOTHING",
                _values(schedule),
            )

    def list_schedules(self, org: str, owner: str) -> list[Schedule]:
        query = f"SELECT {_COLUMNS} FROM schedules WHERE org = ? AND owner = ? ORDER BY created, id"
        return [_schedule_from_row(row) for row in self._read(query, (org, owner))]

    def load_all(self) -> list[Schedule]:
        return [_schedule_from_row(row) for row in self._read(f"SELECT {_COLUMNS} FROM schedules")]

    def save(self, schedule: Schedule, before: Schedule) -> bool:
        assigned = ", ".join(f"{name} = ?" for name in _FIELDS[1:])
        same = " AND ".join(f"{name} = ?" for name in _COMPARED)
        with self._transact() as db:
            done = db.execute(
                f"UPDATE schedules SET {assigned} WHERE id = ? AND {same}",
                (*_values(schedule)[1:], schedule.id, *(getattr(before, one) for one in _COMPARED)),
            )
            return done.rowcount > 0

    def delete(self, org: str, owner: str, id: str) -> bool:
        with self._transact() as db:
            done = db.execute(
                "DELETE FROM schedules WHERE org = ? AND owner = ? AND id = ?", (org, owner, id)
            )
            return done.rowcount > 0


def _values(schedule: Schedule) -> tuple[Any, ...]:
    values = {name: getattr(schedule, name) for name in _FIELDS}
    return tuple({**values, "callers": msgspec.json.encode(schedule.callers).decode()}.values())


def _schedule_from_row(row: tuple[Any, ...]) -> Schedule:
    values = dict(zip(_FIELDS, row, strict=True))
    callers = msgspec.json.decode(values["callers"], type=tuple[ScheduleCaller, ...])
    return Schedule(**{**values, "once": bool(values["once"]), "callers": callers})
