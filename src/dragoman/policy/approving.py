"""What people see of the pins and say about them: what is held, how it differs, yes or no."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dragoman.core.errors import AmbiguousName, InvalidInput, NotFound
from dragoman.core.ports import Pin, PinChange, PinDecision
from dragoman.policy.differences import difference
from dragoman.policy.pinning import APPROVE, FORGET, OFF, REJECT, Pins, approved, date
from dragoman.policy.pins import CARD, digest
from dragoman.wire.json import Malformed, decode_reply

HELD, REJECTED, APPROVED = "held", "rejected", "approved"
STATES = ("held", "all")
MAX_SHOWN = 20
"""Decisions about one pin."""
MAX_HINTS = 1_000


class Approvals:
    def __init__(
        self,
        pins: Pins,
        changed: Callable[[str], None],
        decided: Callable[[PinDecision], None],
        forgotten: Callable[[str], None] = lambda target: None,
    ) -> None:
        """After a decision `changed` is told the target, which is to be reviewed again, and
        `decided` what was decided, for the record. `forgotten` is told of a target of which all is
        to be forgotten."""
        self._pins = pins
        self._store = pins.store
        self._changed = changed
        self._decided = decided
        self._forgotten = forgotten

    # --- to look at -------------------------------------------------------------------------------

    def listed(self, state: str) -> list[dict[str, Any]]:
        """`held`: what waits for a decision, or was rejected; `all`: whatever was ever seen."""
        if state not in STATES:
            raise InvalidInput(f'"{state[:50]}" is no state of pins; ask for "held" or "all"')
        pins = self._store.load(None)
        return [
            self._row(pin) for pin in pins if state == "all" or self._state(pin) in (HELD, REJECTED)
        ]

    def diff(self, name: str) -> str:
        shown = self.show(name)
        return f"{shown['summary']}\n\n{shown['diff']}".rstrip()

    def show(self, name: str) -> dict[str, Any]:
        """One of them: what was approved, what is held, and how they differ."""
        pin = self._named(name)
        was, now = (self._read(pin, body) for body in self._store.bodies(pin))
        return {
            **self._row(pin),
            "summary": _summary(pin),
            "approved_digest": digest(was) if was else None,
            "digest": digest(now) if now else None,
            "diff": difference(was, now) if now else "",
            "was": was or None,
            "now": now or None,
            "decisions": [
                {
                    "at": _time(one.at),
                    "by": one.by,
                    "action": one.action,
                    "digest": one.digest,
                }
                for one in self._store.decisions(pin, MAX_SHOWN)
            ],
        }

    # --- to decide --------------------------------------------------------------------------------

    def approve(self, name: str, by: str, code: str | None = None) -> list[str]:
        """What is held under that name. With `code`, only if that is how its digest begins: a
        server may have changed it again since it was looked at."""
        pin = self._named(name)
        found = self._held_digest(pin)
        if code is not None and not (len(code) >= 8 and found.startswith(code)):
            raise InvalidInput(
                f'"{pin.name}" is not what you have seen: its digest is {found[:16]} now, and not '
                f"{code[:64]}; look at it again with `dragoman pins diff`"
            )
        return self._approve([pin], by)

    def approve_all(self, by: str, target: str | None) -> list[str]:
        """Whatever waits for a decision, of one target or (None) of all; what was rejected is
        approved by its name alone."""
        found = sorted(self._store.load(target), key=lambda pin: pin.name)
        pins = [pin for pin in found if self._state(pin) == HELD]
        if target is not None and not pins:
            raise NotFound(f'nothing of "{target[:200]}" is held; see: dragoman pins list')
        return self._approve(pins, by)

    def reject(self, name: str, by: str) -> list[str]:
        """It stays held, and so does the same when it comes again."""
        pin = self._named(name)
        code, now = self._held_digest(pin), self._pins.clock()
        change = PinChange(replace(pin, rejected_at=now, rejected_by=by))
        self._decide([change], [_decision(pin, now, by, REJECT, code)])
        return [pin.name]

    def forget(self, target: str, by: str) -> list[str]:
        """All that is known of a target: what it offers then is seen for the first time."""
        pins = self._store.load(target)
        if not pins:
            raise NotFound(f'nothing is pinned of "{target[:200]}"; see: dragoman pins list --all')
        decision = PinDecision(self._pins.clock(), by, FORGET, target, "", "", "", "")
        self._pins.forget(target, decision)
        self._forgotten(target)
        self._decided(decision)
        self._changed(target)
        return sorted(pin.name for pin in pins)

    def _approve(self, pins: Sequence[Pin], by: str) -> list[str]:
        now = self._pins.clock()
        changes, decisions = [], []
        for pin in pins:
            body = self._store.bodies(pin)[1]
            said = self._read(pin, body)
            decisions.append(_decision(pin, now, by, APPROVE, digest(said)))
            changes.append(PinChange(approved(pin, said, now, by), approved=body))
        self._decide(changes, decisions)
        return [pin.name for pin in pins]

    def _decide(self, changes: Sequence[PinChange], decisions: Sequence[PinDecision]) -> None:
        self._pins.keep(changes, decisions)
        for decision in decisions:
            self._decided(decision)
        for target in dict.fromkeys(change.pin.target for change in changes):
            self._changed(target)

    # --- small things -----------------------------------------------------------------------------

    def _named(self, name: str) -> Pin:
        """By its name, or by its kind and name where several have it: `prompt:files.read`."""
        pins = self._store.load(None)
        found = [pin for pin in pins if name in (pin.name, f"{pin.kind}:{pin.name}")]
        if len(found) > 1:
            found = [pin for pin in found if pin.held_mark] or found
        if len(found) == 1:
            return found[0]
        if found:
            several = " or ".join(f'"{pin.kind}:{pin.name}"' for pin in found)
            raise AmbiguousName(f'"{name}" are several; ask for {several}')
        held = [pin.name for pin in pins if pin.held_mark][:MAX_HINTS]
        near = difflib.get_close_matches(name, held, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "see: dragoman pins list --all"
        raise NotFound(f'nothing is pinned under "{name[:200]}"; {hint}')

    def _held_digest(self, pin: Pin) -> str:
        body = self._store.bodies(pin)[1]
        if not body:
            raise InvalidInput(f'nothing is held of "{pin.name}": it is what was approved')
        return digest(self._read(pin, body))

    def _read(self, pin: Pin, body: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = decode_reply(body) if body else {}
        except Malformed as error:
            raise InvalidInput(f'what is stored of "{pin.name}" is damaged: {error}') from None
        return found

    def _state(self, pin: Pin) -> str:
        if not pin.held_mark or self._pins.mode_of(pin.target) == OFF:
            return APPROVED if pin.mark and not pin.held_mark else OFF
        return REJECTED if pin.rejected_by else HELD

    def _row(self, pin: Pin) -> dict[str, Any]:
        return {
            "name": pin.name,
            "kind": pin.kind,
            "target": pin.target,
            "state": self._state(pin),
            "approved_at": _time(pin.approved_at),
            "approved_by": pin.approved_by or None,
            "held_since": _time(pin.held_at),
            "rejected_at": _time(pin.rejected_at),
            "rejected_by": pin.rejected_by or None,
        }


def _decision(pin: Pin, at: float, by: str, action: str, code: str) -> PinDecision:
    return PinDecision(at, by, action, pin.target, pin.kind, pin.id, pin.name, code)


def _summary(pin: Pin) -> str:
    what = f'the card of agent "{pin.target}"' if pin.kind == CARD else f'{pin.kind} "{pin.name}"'
    if not pin.held_mark:
        return f"{what} is what was approved on {date(pin.approved_at)} by {pin.approved_by}"
    if not pin.mark:
        return f"{what} is held since {date(pin.held_at)}: nobody has approved it yet"
    return (
        f"{what} is held since {date(pin.held_at)}; "
        f"- was approved on {date(pin.approved_at)} by {pin.approved_by}, + is offered now"
    )


def _time(when: float) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)) if when else None
