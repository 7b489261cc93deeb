"""What people see of the pins and say about them: what is held, how it differs, yes or no."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.core.errors import AmbiguousName, InvalidInput, NotFound
from dragoman.core.ports import Pin, PinChange, PinDecision
from dragoman.core.tool import RESOURCE, TEMPLATE
from dragoman.core.tool_identity import fold_id
from dragoman.pins.diff import render_diff
from dragoman.pins.digest import CARD, compute_digest
from dragoman.pins.review import (
    ADDITION,
    APPROVE,
    FORGET,
    OFF,
    REJECT,
    PinReviewer,
    approve_pin,
    render_date,
)
from dragoman.wire.json import Malformed, decode_reply

HELD, REJECTED, APPROVED, NEW = "held", "rejected", "approved", "new"
STATES: Mapping[str, tuple[str, ...]] = {
    "held": (HELD, REJECTED),
    "new": (NEW,),
    "all": (HELD, REJECTED, APPROVED, NEW, OFF),
}
MAX_WHOLE = 200
"""Of which it is said how they differ."""
MAX_SHOWN = 20
"""Decisions about one pin."""
MAX_HINTS = 1_000


class PinApprovals:
    def __init__(
        self,
        pins: PinReviewer,
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

    def list_pins(
        self, state: str, target: str | None = None, whole: bool = False
    ) -> list[dict[str, Any]]:
        """`held`: what waits for a decision, or was rejected; `new`: what was added and is offered;
        `all`: whatever was ever seen. With `whole`, each with its digest and how it differs."""
        if state not in STATES:
            raise InvalidInput(f'"{state[:50]}" is no state of pins; ask for "held" or "all"')
        found = [pin for pin in self._store.load(target) if self._find_state(pin) in STATES[state]]
        found.sort(key=lambda pin: (pin.name, pin.kind))
        if not whole:
            return [self._render_row(pin) for pin in found]
        return [self._render_pin(pin, n < MAX_WHOLE) for n, pin in enumerate(found)]

    def render_diff(self, name: str) -> str:
        shown = self.show(name)
        return f"{shown['summary']}\n\n{shown['diff']}".rstrip()

    def show(self, name: str) -> dict[str, Any]:
        """One of them: what was approved, what is held, and how they differ."""
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
            "summary": _describe_pin(pin, self._pins.is_offered(pin)),
            "digest": compute_digest(now) if now else None,
            "diff": render_diff(was, now) if now and whole else "",
        }

    def _load_bodies(self, pin: Pin) -> tuple[dict[str, Any], dict[str, Any]]:
        was, now = self._store.load_bodies(pin)
        return self._decode_body(pin, was), self._decode_body(pin, now)

    # --- to decide --------------------------------------------------------------------------------

    def approve(self, name: str, by: str, code: str | None = None) -> list[str]:
        """What is held under that name, if it is offered now, or what was added under it. With
        `code`, only if that is how its digest begins: a server may have changed it again since it
        was looked at."""
        pin = self._find_pin(name)
        found = self._compute_digest(pin)
        if not self._can_approve(pin):
            raise InvalidInput(_describe_gone(pin))
        if code is not None and not (len(code) >= 8 and found.startswith(code)):
            raise InvalidInput(
                f'"{pin.name}" is not what you have seen: its digest is {found[:16]} now, and not '
                f"{code[:64]}; look at it again with `dragoman pins diff`"
            )
        return self._approve([pin], by)

    def approve_all(
        self, by: str, target: str | None, digests: Mapping[str, str] | None = None
    ) -> tuple[list[str], list[str]]:
        """Whatever waits for a decision and is offered now, of one target or (None) of all; and
        what was skipped, because it is not offered any more or is not what `digests` say. Those are
        by kind and name. What was rejected is approved by its name alone."""
        found = sorted(self._store.load(target), key=lambda pin: pin.name)
        pins = [pin for pin in found if self._find_state(pin) in (HELD, NEW)]
        if target is not None and not pins:
            raise NotFound(f'nothing of "{target[:200]}" is held; see: dragoman pins list')
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
        """It stays held, and so does the same when it comes again."""
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
        self._decide([change], [_build_decision(pin, now, by, REJECT, code)])
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
            if not pin.held_mark:  # it was added, and somebody has looked at it
                decisions.append(_build_decision(pin, now, by, APPROVE, self._compute_digest(pin)))
                changes.append(PinChange(replace(pin, approved_at=now, approved_by=by)))
                continue
            body = self._store.load_bodies(pin)[1]
            said = self._decode_body(pin, body)
            decisions.append(_build_decision(pin, now, by, APPROVE, compute_digest(said)))
            changes.append(PinChange(approve_pin(pin, said, now, by), approved=body))
        self._decide(changes, decisions)
        return [pin.name for pin in pins]

    def _decide(self, changes: Sequence[PinChange], decisions: Sequence[PinDecision]) -> None:
        self._pins.save_decisions(changes, decisions)
        for decision in decisions:
            self._decided(decision)
        for target in dict.fromkeys(change.pin.target for change in changes):
            self._changed(target)

    # --- small things -----------------------------------------------------------------------------

    def _find_pin(self, name: str) -> Pin:
        """By its name, or by its kind and name where several have it: `prompt:files.read`. In any
        spelling, unless it is an address."""
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
            raise AmbiguousName(f'"{name}" are several; ask for {several}')
        held = [pin.name for pin in pins if pin.held_mark][:MAX_HINTS]
        near = difflib.get_close_matches(name, held, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "see: dragoman pins list --all"
        raise NotFound(f'nothing is pinned under "{name[:200]}"; {hint}')

    def _compute_digest(self, pin: Pin) -> str:
        """Of what there is to decide on."""
        body = self._store.load_bodies(pin)[0 if self._find_state(pin) == NEW else 1]
        if not body:
            raise InvalidInput(f'nothing is held of "{pin.name}": it is what was approved')
        return compute_digest(self._decode_body(pin, body))

    def _decode_body(self, pin: Pin, body: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = decode_reply(body) if body else {}
        except Malformed as error:
            raise InvalidInput(f'what is stored of "{pin.name}" is damaged: {error}') from None
        return found

    def _find_state(self, pin: Pin) -> str:
        if not pin.held_mark or self._pins.mode_of(pin.target) == OFF:
            if not pin.mark or pin.held_mark:
                return OFF
            return NEW if pin.approved_by == ADDITION else APPROVED
        return REJECTED if pin.rejected_by else HELD

    def _render_row(self, pin: Pin) -> dict[str, Any]:
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
        }


def _build_decision(pin: Pin, at: float, by: str, action: str, code: str) -> PinDecision:
    return PinDecision(at, by, action, pin.target, pin.kind, pin.id, pin.name, code)


def _describe_gone(pin: Pin) -> str:
    return (
        f'what is held of "{pin.name}" is not offered any more, or the card of its agent is held: '
        "there is nothing to approve now"
    )


def _describe_pin(pin: Pin, offered: bool) -> str:
    what = f'the card of agent "{pin.target}"' if pin.kind == CARD else f'{pin.kind} "{pin.name}"'
    if not pin.held_mark and pin.approved_by == ADDITION:
        added = render_date(pin.approved_at)
        return f"{what} was added on {added} and is offered; it was not approved by a person yet"
    if not pin.held_mark:
        return f"{what} is what was approved on {render_date(pin.approved_at)} by {pin.approved_by}"
    now = "is offered now" if offered else "was offered then and is not offered now"
    if not pin.mark:
        return (
            f"{what} is held since {render_date(pin.held_at)}: nobody has approved it yet; it {now}"
        )
    return (
        f"{what} is held since {render_date(pin.held_at)}; "
        f"- was approved on {render_date(pin.approved_at)} by {pin.approved_by}, + {now}"
    )


def _render_time(when: float) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)) if when else None
