"""The `ApprovalStore` in `approvals.db`, which exists once something has needed an approval.

Each change is one durable transaction: whether a request is decided, and whether its call has
begun, is true on the disk before anything follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.approvals import (
    APPROVED,
    CALL,
    EXPIRED,
    INTERRUPTED,
    PENDING,
    RUNNING,
    Approval,
    ApprovalRequest,
    ParkedCall,
    StoredApproval,
)
from dragoman.core.call import MessageOrigin
from dragoman.core.errors import Overloaded, StorageFailed
from dragoman.core.principal import Principal
from dragoman.core.structs import asdict
from dragoman.core.taint import LabelOrigin
from dragoman.stores.database import LoopStore, StorePlace, StoreTables
from dragoman.stores.row_seals import SealedTable, find_seals

DATABASE = "approvals.db"
MIGRATIONS = (
    """
CREATE TABLE approvals (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, org TEXT NOT NULL, holder TEXT NOT NULL,
    request TEXT NOT NULL, parked TEXT NOT NULL, match TEXT NOT NULL,
    requested_at REAL NOT NULL, expires_at REAL NOT NULL,
    state TEXT NOT NULL, decided_at REAL NOT NULL DEFAULT 0, decided_by TEXT NOT NULL DEFAULT '',
    comment TEXT NOT NULL DEFAULT '',
    outcome TEXT NOT NULL DEFAULT '', problem TEXT NOT NULL DEFAULT '',
    ended_at REAL NOT NULL DEFAULT 0, reply BLOB NOT NULL DEFAULT x'',
    delivered INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL
) STRICT;
CREATE INDEX approvals_by_match ON approvals (match);
CREATE INDEX approvals_by_state ON approvals (state, expires_at);
""",
    # The hub that makes the approved call, where several share the database.
    "ALTER TABLE approvals ADD COLUMN hub TEXT NOT NULL DEFAULT '';",
)
TABLES = StoreTables("approvals", DATABASE, MIGRATIONS, counted="approvals")
MAX_BYTES = 256 * 1024 * 1024
"""Of closed requests and replies together; the oldest go first."""
SEALED = SealedTable(
    "approvals",
    "approval",
    (
        "id", "kind", "org", "holder", "request", "parked", "match", "requested_at", "expires_at",
        "state", "decided_at", "decided_by", "comment", "outcome", "hub",
    ),
)  # fmt: skip
_MORE = "number, problem, ended_at, delivered"
_HELD = "(outcome = ? OR (outcome = ? AND delivered = 0))"
"""A call that its hub has begun. If another hub has taken it for dead, it has marked the call as
interrupted. The first hub knows better, unless the requester has got that answer."""
_PRINCIPAL = ("kind", "id", "org", "roles", "scopes", "behalf", "serves", "credential", "view")


class DatabaseApprovals(LoopStore):
    def __init__(self, place: StorePlace, hub: str = "") -> None:
        """`hub` makes the approved calls, where several hubs share the database."""
        self._hub = hub
        self._begun: dict[str, str] = {}
        """The calls that this process makes, with the ids of the hub under which they began."""
        self._unsure: dict[str, frozenset[str]] = {}
        """Likewise those of which it is unknown whether it is stored that they began, and under
        which id: the hub may have got another one between two attempts."""
        super().__init__(place, TABLES, durable=True)
        self._seals = find_seals(place)

    def _find_rows(self, condition: str, values: Sequence[Any]) -> list[StoredApproval]:
        selection = f"{self._seals.build_selection(SEALED)}, {_MORE}"
        rows = self._read(f"SELECT {selection} FROM approvals WHERE {condition}", values)
        return [_approval_from_row(row) for row in rows if self._seals.admits(SEALED, row)]

    def _list_ids(self, condition: str, values: Sequence[Any]) -> list[str]:
        """Lists the ids of admitted rows."""
        selection = self._seals.build_selection(SEALED)
        rows = self._read(f"SELECT {selection} FROM approvals WHERE {condition}", values)
        return [row[0] for row in rows if self._seals.admits(SEALED, row)]

    def rename_hub(self, hub: str) -> None:
        """This hub has another id from now on."""
        self._hub = hub

    def add(self, stored: StoredApproval, most: int, most_each: int) -> None:
        approval, request = stored.approval, stored.request
        encoded = _encode(_json_from_request(request))
        parked = _encode(_json_from_parked(stored.parked)) if stored.parked else ""
        requester = request.requester
        sealed = (
            request.id, request.kind, requester.org, requester.key, encoded, parked, stored.match,
            float(approval.requested_at), float(request.expires_at), PENDING, 0.0, "", "", "", "",
        )  # fmt: skip
        with self._transact() as db:
            pending = "SELECT count(*) FROM approvals WHERE state = ?"
            total = db.execute(pending, (PENDING,)).fetchone()[0]
            each = db.execute(f"{pending} AND holder = ?", (PENDING, requester.key)).fetchone()[0]
            if total >= most or each >= most_each:
                raise Overloaded(
                    f'"{request.title}" was refused: it needs an approval, and '
                    + (f"{each} calls of {requester}" if each >= most_each else f"{total} calls")
                    + " wait for one already; try again later or raise [approvals] "
                    + ("pending_each" if each >= most_each else "pending")
                )
            db.execute(
                f"INSERT INTO approvals ({SEALED.listed}, size) "
                f"VALUES ({', '.join('?' * len(sealed))}, ?)",
                (*sealed, len(encoded) + len(parked)),
            )
            self._seals.put(db, SEALED, sealed)

    def find(self, id: str) -> StoredApproval | None:
        return next(iter(self._find_rows("id = ?", (id,))), None)

    def find_latest(self, match: str) -> StoredApproval | None:
        return next(iter(self._find_rows("match = ? ORDER BY number DESC LIMIT 1", (match,))), None)

    def list_approvals(
        self, org: str, state: str, before: int | None, most: int, now: float
    ) -> list[StoredApproval]:
        query = "org = ?"
        values: list[Any] = [org]
        if state in (PENDING, EXPIRED):  # the sweep may not have seen it yet
            late = "<=" if state == EXPIRED else ">"
            joined = "OR" if state == EXPIRED else "AND"
            query += f" AND (state = ? {joined} (state = 'pending' AND expires_at {late} ?))"
            values += [state, now]
        elif state:
            query += " AND state = ?"
            values.append(state)
        if before is not None:
            query += " AND number < ?"
            values.append(before)
        return self._find_rows(f"{query} ORDER BY number DESC LIMIT ?", [*values, most])

    def decide(self, id: str, state: str, by: str, comment: str, now: float) -> bool:
        columns = ("state", "decided_by", "comment", "decided_at")
        with self._transact() as db, self._seals.change(db, SEALED, id, sets=columns):
            done = db.execute(
                "UPDATE approvals SET state = ?, decided_by = ?, comment = ?, decided_at = ? "
                "WHERE id = ? AND state = ? AND expires_at > ?",
                (state, by, comment, now, id, PENDING, now),
            )
            return done.rowcount == 1

    def expire(self, now: float) -> list[StoredApproval]:
        late = "state = ? AND expires_at <= ?"
        ids = self._list_ids(late, (PENDING, now))
        if not ids:
            return []
        columns = ("state", "decided_at")
        with self._transact() as db, self._seals.change(db, SEALED, *ids, sets=columns):
            rows = db.execute(
                f"UPDATE approvals SET state = ?, decided_at = expires_at WHERE {late} "
                f"RETURNING {SEALED.listed}, NULL, {_MORE}",
                (EXPIRED, PENDING, now),
            ).fetchall()
        return [_approval_from_row(row) for row in rows if row[0] in ids]

    def begin(self, id: str) -> bool:
        if id in self._begun:
            return False  # it runs here; the next attempt must not take it for its own
        hub, unsure = self._hub, self._unsure.pop(id, frozenset())
        open_states, values = "outcome = ''", [RUNNING, hub, id, CALL, APPROVED]
        if unsure:  # it may have begun here, and the answer of the database was lost
            places = ", ".join("?" * len(unsure))
            open_states = f"(outcome = '' OR (hub IN ({places}) AND {_HELD}))"
            values += [*unsure, RUNNING, INTERRUPTED]
        try:
            columns = ("outcome", "hub")
            with self._transact() as db, self._seals.change(db, SEALED, id, sets=columns):
                if not self._list_ids("id = ?", (id,)):
                    return False  # it is unknown, or was approved outside of this cluster
                done = db.execute(
                    "UPDATE approvals SET outcome = ?, hub = ?, ended_at = 0 "
                    f"WHERE id = ? AND kind = ? AND state = ? AND {open_states}",
                    values,
                )
                has_begun = done.rowcount == 1
        except StorageFailed:
            self._unsure[id] = unsure | {hub}
            raise
        if has_begun:
            self._begun[id] = hub
        return has_begun

    def finish(
        self,
        id: str,
        outcome: str,
        problem: str,
        reply: bytes,
        now: float,
        delivered_at: float = 0.0,
    ) -> None:
        hub = self._begun.get(id)
        if hub is None:
            return  # it has ended already
        with self._transact() as db, self._seals.change(db, SEALED, id, sets=("outcome",)):
            # What another hub has marked as interrupted, this one knows better.
            db.execute(
                "UPDATE approvals SET outcome = ?, problem = ?, reply = ?, ended_at = ?, "
                "size = size + ?, delivered = ? WHERE id = ? AND hub = ? AND outcome IN (?, ?)",
                (
                    outcome,
                    problem,
                    reply,
                    now,
                    len(reply),
                    _encode_delivery(delivered_at),
                    id,
                    hub,
                    RUNNING,
                    INTERRUPTED,
                ),
            )
        self._begun.pop(id, None)

    def put_back(self, id: str) -> None:
        hub = self._begun.get(id)
        if hub is None:
            return
        columns = ("outcome", "hub")
        with self._transact() as db, self._seals.change(db, SEALED, id, sets=columns):
            db.execute(
                "UPDATE approvals SET outcome = '', hub = '', ended_at = 0 "
                f"WHERE id = ? AND hub = ? AND {_HELD}",
                (id, hub, RUNNING, INTERRUPTED),
            )
        self._begun.pop(id, None)

    def deliver(self, id: str, now: float) -> bytes | None:
        with self._transact() as db:
            rows = db.execute(
                "UPDATE approvals SET delivered = ? WHERE id = ? AND delivered = 0 "
                "AND outcome NOT IN ('', ?) RETURNING reply",
                (_encode_delivery(now), id, RUNNING),
            ).fetchall()
        return rows[0][0] if rows else None

    def load_reply(self, id: str) -> bytes:
        rows = self._read("SELECT reply FROM approvals WHERE id = ?", (id,))
        return rows[0][0] if rows else b""

    def list_ready(self) -> list[StoredApproval]:
        ready = "state = ? AND outcome = '' AND parked != '' ORDER BY number"
        return self._find_rows(ready, (APPROVED,))

    def interrupt(self, now: float, hub: str | None = None) -> int:
        """Ends the calls that were running when their hub ended: this one, or another `hub`."""
        running = (RUNNING, self._hub if hub is None else hub)
        with self._transact() as db:
            ids = self._list_ids("outcome = ? AND hub = ?", running)
            with self._seals.change(db, SEALED, *ids, sets=("outcome",)):
                done = db.execute(
                    "UPDATE approvals SET outcome = ?, ended_at = ? WHERE outcome = ? AND hub = ?",
                    (INTERRUPTED, now, *running),
                )
            return done.rowcount

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs that have calls which are not ended."""
        query = "SELECT DISTINCT hub FROM approvals WHERE outcome = ? AND hub = ANY(?)"
        return {str(hub) for (hub,) in self._read(query, (RUNNING, list(hubs)))}

    def prune(self, keep: int, replies_before: float) -> None:
        with self._transact() as db:
            db.execute(
                "UPDATE approvals SET reply = x'', size = size - length(reply) "
                "WHERE ended_at < ? AND length(reply) > 0",
                (replies_before,),
            )
            closed = (
                "state != 'pending' AND NOT (state = 'approved' AND outcome IN ('', 'running'))"
            )
            db.execute(
                "DELETE FROM approvals WHERE number IN (SELECT number FROM (SELECT number, "
                "sum(size) OVER (ORDER BY number DESC) AS total FROM approvals "
                f"WHERE {closed}) AS sizes WHERE total > ?)",
                (MAX_BYTES,),
            )
            db.execute(
                f"DELETE FROM approvals WHERE {closed} AND number <= (SELECT number FROM approvals "
                f"WHERE {closed} ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (keep,),
            )
            self._seals.prune(db, SEALED)


def _approval_from_row(row: tuple[Any, ...]) -> StoredApproval:
    _, _, _, _, request, parked, match, at, _, state, decided_at, by, comment, *rest = row
    outcome, _, _, number, problem, ended_at, delivered = rest
    return StoredApproval(
        approval=Approval(
            request=_request_from_json(msgspec.json.decode(request.encode())),
            state=state,
            requested_at=at,
            decided_at=decided_at,
            decided_by=by,
            comment=comment,
            outcome=outcome,
            problem=problem,
        ),
        match=match,
        parked=_parked_from_json(msgspec.json.decode(parked.encode())) if parked else None,
        ended_at=ended_at,
        delivered_at=float(delivered),
        number=number,
    )


def _encode_delivery(at: float) -> int:
    """When a result was delivered, in seconds; 0: not yet. Earlier versions store 1 for any time,
    and read any time as delivered."""
    return max(int(at), 1) if at else 0


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _json_from_principal(principal: Principal) -> dict[str, Any]:
    return {name: getattr(principal, name) for name in _PRINCIPAL}


def _principal_from_json(said: Mapping[str, Any]) -> Principal:
    more = {name: tuple(said[name]) for name in ("roles", "scopes")}
    return Principal(**{**said, **more})


def _json_from_request(request: ApprovalRequest) -> dict[str, Any]:
    return {
        **asdict(request),
        "requester": _json_from_principal(request.requester),
        "arguments": dict(request.arguments),
    }


def _request_from_json(said: Mapping[str, Any]) -> ApprovalRequest:
    requester, approvers = _principal_from_json(said["requester"]), tuple(said["approvers"])
    return ApprovalRequest(**{**said, "requester": requester, "approvers": approvers})


def _json_from_parked(parked: ParkedCall) -> dict[str, Any]:
    message = parked.message
    return {
        **asdict(parked),
        "callers": [[_json_from_principal(one), door] for one, door in parked.callers],
        "origins": {label: asdict(origin) for label, origin in parked.origins.items()},
        "message": {name: _to_plain(value) for name, value in asdict(message).items()}
        if message is not None
        else None,
        "meta": dict(parked.meta) if parked.meta is not None else None,
    }


def _to_plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _parked_from_json(said: Mapping[str, Any]) -> ParkedCall:
    message = said["message"]
    return ParkedCall(
        **{
            **said,
            "callers": tuple((_principal_from_json(one), door) for one, door in said["callers"]),
            "chain": tuple(said["chain"]),
            "origins": {label: LabelOrigin(**one) for label, one in said["origins"].items()},
            "message": MessageOrigin(**message) if message is not None else None,
        }
    )
