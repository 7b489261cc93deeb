"""Lists pins and quarantined changes, renders their diffs, and records approvals and rejections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman.core.errors import AmbiguousName, InvalidInput, NotFound
from dragoman.core.nearest_names import find_nearest
from dragoman.core.ports import Pin, PinChange, PinDecision
from dragoman.core.structs import replace
from dragoman.core.tool import RESOURCE, TEMPLATE
from dragoman.core.tool_identity import fold_id
from dragoman.pins import review
from dragoman.pins.diff import render_diff
from dragoman.pins.digest import CARD, compute_digest
from dragoman.pins.minor_changes import MinorChanges
from dragoman.pins.review import OFF, PinReviewer
from dragoman.wire.json import Malformed, decode_reply

HELD, REJECTED, APPROVED, NEW, MINOR = "held", "rejected", "approved", "new", "minor"
STATES: Mapping[str, tuple[str, ...]] = {
    "held": (HELD, REJECTED),
    "new": (NEW,),
    "minor": (MINOR,),
    "all": (HELD, REJECTED, APPROVED, NEW, MINOR, OFF),
}
MAX_WHOLE = 200
"""Pins that are listed with a diff."""
MAX_SHOWN = 20
"""Decisions shown of one pin."""
MAX_HINTS = 1_000


class PinApprovals:
    def __init__(
        self,
        pins: PinReviewer,
        changed: Callable[[str], None],
        decided: Callable[[PinDecision], None],
        forgotten: Callable[[str], None] = lambda target: None,
    ) -> None:
        """After a decision, `changed` is called with the target, which must be reviewed again, and
        `decided` with the decision, for the audit log. `forgotten` is called with a target whose
        pins were deleted."""
        self._pins = pins
        self._store = pins.store
        self._changed = changed
        self._decided = decided
        self._forgotten = forgotten

    # --- reading ----------------------------------------------------------------------------------

    def list_pins(
        self, state: str, target: str | None = None, whole: bool = False
    ) -> list[dict[str, Any]]:
        """`held`: quarantined or rejected pins; `new`: offered additions; `minor`: offered as
        approved, with minor changes; `all`: every pin. With `whole`, also digests and diffs."""
        if state not in STATES:
            raise InvalidInput(
                f'unknown state of pins "{state[:50]}"; use "held", "new", "minor" or "all"'
            )
        found = [pin for pin in self._store.load(target) if self._find_state(pin) in STATES[state]]
        found.sort(key=lambda pin: (pin.name, pin.kind))
        if not whole:
            return [self._render_row(pin) for pin in found]
        return [self._render_pin(pin, n < MAX_WHOLE) for n, pin in enumerate(found)]

    def render_diff(self, name: str) -> str:
        shown = self.show(name)
        return f"{shown['summary']}\n\n{shown['diff']}".rstrip()

    def show(self, name: str) -> dict[str, Any]:
        """Returns one pin: the approved and the quarantined definition, and their diff."""
        pin = self._find_pin(name)
        was, now = self._load_bodies(pin)
        return {
            **self._render_pin(pin, True),
            "approved_digest": compute_digest(was) if was else None,
            "was": was or None,
            "now": now or None,
            "decisions": [
                {
                    "at": _render_time(one.at),
                    "by": one.by,
                    "action": one.action,
                    "digest": one.digest,
                }
                for one in self._store.load_decisions(pin, MAX_SHOWN)
            ],
        }

    def _render_pin(self, pin: Pin, whole: bool) -> dict[str, Any]:
        was, now = self._load_bodies(pin)
        if self._find_state(pin) == NEW:
            was, now = {}, was
        return {
            **self._render_row(pin),
            "summary": _describe_pin(pin, self._pins.is_offered(pin), self._find_minor(pin)),
            "digest": compute_digest(now) if now else None,
            "diff": render_diff(was, now) if now and whole else "",
        }

    def _load_bodies(self, pin: Pin) -> tuple[dict[str, Any], dict[str, Any]]:
        was, now = self._store.load_bodies(pin)
        return self._decode_body(pin, was), self._decode_body(pin, now)

    # --- decisions --------------------------------------------------------------------------------

    def approve(self, name: str, by: str, code: str | None = None) -> list[str]:
        """Approves the quarantined definition of that name if it is offered now, or an addition.
        With `code`, only if its digest begins so: a server may have changed it again since it was
        shown."""
        pin = self._find_pin(name)
        found = self._compute_digest(pin)
        if not self._can_approve(pin):
            raise InvalidInput(
                f'the quarantined definition of "{pin.name}" is no longer offered, or the card of '
                "its agent is quarantined: there is nothing to approve now"
            )
        if code is not None and not (len(code) >= 8 and found.startswith(code)):
            raise InvalidInput(
                f'"{pin.name}" has changed again: its digest is {found[:16]} now, not {code[:64]}; '
                "look at it again with `dragoman pins diff`"
            )
        return self._approve([pin], by)

    def approve_all(
        self, by: str, target: str | None, digests: Mapping[str, str] | None = None
    ) -> tuple[list[str], list[str]]:
        """Approves all quarantined definitions that are offered now, of one target or (None) all.
        Returns their names, and the skipped ones, which are no longer offered or differ from
        `digests` (by kind and name). A rejected definition is only approved by its name."""
        found = sorted(self._store.load(target), key=lambda pin: pin.name)
        # What alternates, and is now as approved, waits for nothing.
        pins = [
            pin
            for pin in found
            if (state := self._find_state(pin)) in (HELD, NEW)
            or (state == MINOR and self._pins.is_offered(pin))
        ]
        if target is not None and not pins:
            raise NotFound(f'nothing of "{target[:200]}" is quarantined; see: dragoman pins list')
        taken = [
            pin
            for pin in pins
            if self._can_approve(pin)
            and (
                digests is None
                or digests.get(f"{pin.kind}:{pin.name}") == self._compute_digest(pin)
            )
        ]
        skipped = [pin.name for pin in pins if pin not in taken]
        return self._approve(taken, by), skipped

    def _can_approve(self, pin: Pin) -> bool:
        return self._find_state(pin) == NEW or self._pins.is_offered(pin)

    def reject(self, name: str, by: str) -> list[str]:
        """Rejects a definition: it stays quarantined, also when it is offered again."""
        pin = self._find_pin(name)
        code, now = self._compute_digest(pin), self._pins.clock()
        if self._find_state(pin) == NEW:
            body = self._store.load_bodies(pin)[0]
            pin = replace(
                pin, mark=b"", size=0, approved_at=0.0, approved_by="",
                held_mark=pin.mark, held_at=now, held_size=len(body),
            )  # fmt: skip
            change = PinChange(replace(pin, rejected_at=now, rejected_by=by), b"", body)
        else:
            change = PinChange(replace(pin, rejected_at=now, rejected_by=by))
        self._decide([change], [_build_decision(pin, now, by, review.REJECT, code)])
        return [pin.name]

    def forget(self, target: str, by: str) -> list[str]:
        """Deletes all pins of a target: its next definitions count as seen for the first time."""
        pins = self._store.load(target)
        if not pins:
            raise NotFound(f'nothing is pinned of "{target[:200]}"; see: dragoman pins list --all')
        decision = PinDecision(self._pins.clock(), by, review.FORGET, target, "", "", "", "")
        self._pins.forget(target, decision)
        self._forgotten(target)
        self._decided(decision)
        self._changed(target)
        return sorted(pin.name for pin in pins)

    def _approve(self, pins: Sequence[Pin], by: str) -> list[str]:
        now = self._pins.clock()
        changes, decisions = [], []
        for pin in pins:
            if not pin.held_mark:  # an addition that a person approves
                decisions.append(
                    _build_decision(pin, now, by, review.APPROVE, self._compute_digest(pin))
                )
                changes.append(PinChange(replace(pin, approved_at=now, approved_by=by)))
                continue
            body = self._store.load_bodies(pin)[1]
            said = self._decode_body(pin, body)
            decisions.append(_build_decision(pin, now, by, review.APPROVE, compute_digest(said)))
            changes.append(PinChange(review.approve_pin(pin, said, now, by), approved=body))
        self._decide(changes, decisions)
        return [pin.name for pin in pins]

    def _decide(self, changes: Sequence[PinChange], decisions: Sequence[PinDecision]) -> None:
        self._pins.save_decisions(changes, decisions)
        for decision in decisions:
            self._decided(decision)
        for target in dict.fromkeys(change.pin.target for change in changes):
            self._changed(target)

    # --- helpers ----------------------------------------------------------------------------------

    def _find_pin(self, name: str) -> Pin:
        """Finds a pin by its name, or by kind and name if several have it: `prompt:files.read`. In
        any spelling, unless it is a URI."""
        pins = self._store.load(None)
        found = [pin for pin in pins if name in (pin.name, f"{pin.kind}:{pin.name}")]
        if not found:
            folded = fold_id(name)
            named = [pin for pin in pins if pin.kind not in (RESOURCE, TEMPLATE)]
            found = [pin for pin in named if folded in (pin.name, f"{pin.kind}:{pin.name}")]
        if len(found) > 1:
            found = [pin for pin in found if pin.held_mark or self._find_state(pin) == NEW] or found
        if len(found) == 1:
            return found[0]
        if found:
            several = " or ".join(f'"{pin.kind}:{pin.name}"' for pin in found)
            raise AmbiguousName(f'"{name}" is ambiguous; use {several}')
        held = [pin.name for pin in pins if pin.held_mark][:MAX_HINTS]
        near = find_nearest(name, held)
        hint = f'did you mean "{near}"?' if near else "see: dragoman pins list --all"
        raise NotFound(f'nothing is pinned under "{name[:200]}"; {hint}')

    def _compute_digest(self, pin: Pin) -> str:
        body = self._store.load_bodies(pin)[0 if self._find_state(pin) == NEW else 1]
        if not body:
            raise InvalidInput(f'"{pin.name}" is not quarantined: it is as approved')
        return compute_digest(self._decode_body(pin, body))

    def _decode_body(self, pin: Pin, body: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = decode_reply(body) if body else {}
        except Malformed as error:
            raise InvalidInput(
                f'the stored definition of "{pin.name}" is damaged: {error}'
            ) from None
        return found

    def _find_state(self, pin: Pin) -> str:
        if not pin.held_mark or self._pins.mode_of(pin.target) == OFF:
            if not pin.mark or pin.held_mark:
                return OFF
            return NEW if pin.approved_by == review.ADDITION else APPROVED
        if pin.rejected_by:
            return REJECTED
        return MINOR if self._find_minor(pin) is not None else HELD

    def _find_minor(self, pin: Pin) -> MinorChanges | None:
        try:
            return self._pins.find_minor(pin)
        except Malformed:
            return None

    def _render_row(self, pin: Pin) -> dict[str, Any]:
        minor = None if pin.rejected_by else self._find_minor(pin)
        return {
            "name": pin.name,
            "kind": pin.kind,
            "target": pin.target,
            "state": self._find_state(pin),
            "offered": self._pins.is_offered(pin),
            "approved_at": _render_time(pin.approved_at),
            "approved_by": pin.approved_by or None,
            "held_since": _render_time(pin.held_at),
            "rejected_at": _render_time(pin.rejected_at),
            "rejected_by": pin.rejected_by or None,
            "minor": [".".join((one.what, *one.path)) for one in minor.changes] if minor else None,
        }


def _build_decision(pin: Pin, at: float, by: str, action: str, code: str) -> PinDecision:
    return PinDecision(at, by, action, pin.target, pin.kind, pin.id, pin.name, code)


def _describe_pin(pin: Pin, offered: bool, minor: MinorChanges | None) -> str:
    what = f'{pin.kind} "{pin.name}"'
    if pin.kind == CARD:
        what = f'the {"extended card" if pin.id else "card"} of agent "{pin.target}"'
    added = review.render_date(pin.approved_at)
    approved = f"{added} by {pin.approved_by}"
    if not pin.held_mark and pin.approved_by == review.ADDITION:
        return f"{what} was added on {added} and is offered; it was not approved by a person yet"
    if not pin.held_mark:
        return f"{what} is as approved on {approved}"
    held = review.render_date(pin.held_at)
    now = "is offered now" if offered else "was offered then and is not offered now"
    if minor is not None:
        return (
            f"{what} has minor changes since {held} ({minor.describe()}) and is offered as "
            f"approved; - was approved on {approved}, + {now}"
        )
    if not pin.mark:
        return f"{what} has been quarantined since {held} and was never approved; it {now}"
    return f"{what} has been quarantined since {held}; - was approved on {approved}, + {now}"


def _render_time(when: float) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)) if when else None
