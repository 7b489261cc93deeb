"""Looks at every definition before anybody else does: what has changed since it was approved is
held until somebody approves it.

`Pins.review` is what a catalog asks, `Pins.card` what the registry asks of an agent's card. What
was seen is recognised by a hash of the whole definition as it came, which costs next to nothing;
only what differs from that is compared in earnest. What cannot be read or recorded is held.
Knows nothing of where definitions come from and where they go.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dragoman.core.catalog import Reviewed, choose_spellings
from dragoman.core.errors import Full, HubError
from dragoman.core.identity import fold_name
from dragoman.core.ports import Pin, PinChange, PinDecision, PinStore
from dragoman.core.tool import PROMPT, TOOL, Tool
from dragoman.policy.cleaning import EXACT, SHOWN, clean, clean_text, hidden
from dragoman.policy.pins import CARD, SKILL, card_members, digest, members
from dragoman.wire.json import Malformed, decode_reply, encode

log = logging.getLogger(__name__)

OFF, FIRST, STRICT = "off", "first", "strict"
"""Modes: nothing is held; what was never seen is approved. In any other nothing is by itself."""
APPROVE, REJECT, FORGET = "approve", "reject", "forget"
FIRST_SIGHT = "first sight"
"""Who approves what is approved without anybody looking at it."""
MAX_PINS, MAX_BYTES = 50_000, 128 * 1024 * 1024
"""Of one target."""
MAX_REMEMBERED = 1_000
MAX_SAID = 10
"""Lines in the log about one review."""

ModeOf = Callable[[str], str]
Key = tuple[str, str]
"""A kind, and the identity of one of that kind within its target."""


class Seen(NamedTuple):
    """A definition that is offered now."""

    target: str
    kind: str
    id: str
    name: str
    mark: bytes
    spelling: str
    pinned: Callable[[], dict[str, Any]]

    @property
    def key(self) -> Key:
        return self.kind, self.id

    def unseen(self) -> Pin:
        """The pin of one that was never seen."""
        return Pin(self.target, self.kind, self.id, self.name, spelling=self.spelling)


class Known:
    """The pins of one target."""

    def __init__(self, pins: Sequence[Pin]) -> None:
        self.pins = {(pin.kind, pin.id): pin for pin in pins}
        self._bytes = sum(pin.size + pin.held_size for pin in pins)

    def put(self, pin: Pin) -> None:
        old = self.pins.get((pin.kind, pin.id))
        self._bytes += pin.size + pin.held_size
        if old is not None:
            self._bytes -= old.size + old.held_size
        self.pins[pin.kind, pin.id] = pin

    def has_spelling(self, tool: Tool) -> bool:
        """Whether the tool is spelled as it was when it was approved."""
        pin = self.pins.get(key_of(tool))
        return pin is not None and bool(pin.mark) and pin.spelling == tool.remote_name

    def has_room(self, key: Key, size: int) -> bool:
        return len(self.pins) + (key not in self.pins) <= MAX_PINS and (
            self._bytes + size <= MAX_BYTES
        )


class Judged(NamedTuple):
    why: str | None
    """It is held; None where it is not."""
    change: PinChange | None = None
    new: bool = False
    """Whether it is seen for the first time; then it is offered only if that is stored."""


class Pins:
    def __init__(
        self,
        store: PinStore,
        mode_of: ModeOf,
        clock: Callable[[], float] = time.time,
        told: Callable[[str, str, str], None] = lambda target, name, why: None,
    ) -> None:
        """`mode_of` is asked for the mode of a target at every review; `told` hears of what is
        held that was not before."""
        self._told = told
        self.store = store
        self.clock = clock
        self.mode_of = mode_of
        self._known: dict[str, Known] = {}
        """By target, from its first review on."""
        self.unreviewed: dict[str, str] = {}
        """The targets of which something is not offered because the store failed, and why. Who
        reviews them again takes them out."""

    # --- what is asked ----------------------------------------------------------------------------

    def review(self, target: str, tools: Sequence[Tool]) -> Reviewed:
        """For a catalog of tools or of prompts: what may be offered, and why the rest is held."""
        mode = self.mode_of(target)
        skills = _skills(tools)
        if mode == OFF:
            tools, remarks = choose_spellings(tools, lambda tool: False)
            return Reviewed([_shown(tool, encode(tool.definition)) for tool in tools], {}, remarks)
        try:
            known = self._of(target)
        except HubError as error:
            self.unreviewed[target] = str(error)
            return Reviewed([], {tool.name: _unsure(tool.name, error) for tool in tools})
        tools, remarks = choose_spellings(tools, known.has_spelling)
        admitted: list[Tool] = []
        held: dict[str, str] = {}
        changes: list[PinChange] = []
        new: set[str] = set()
        for tool in tools:
            skill = skills.get(tool.bridged.skill_id) if tool.bridged is not None else None
            data = encode(tool.definition if skill is None else [tool.definition, skill])
            kind = kind_of(tool)
            if tool.agent is None or kind == SKILL:  # an agent as such is its card
                mark = hashlib.sha256(data).digest()
                pin = known.pins.get(key_of(tool))
                if pin is None or pin.mark != mark or pin.held_mark:
                    judged = self._judged(pin, _seen(target, kind, tool, mark, skill), mode)
                    if judged.change is not None:
                        changes.append(judged.change)
                    if judged.why is not None:
                        held[tool.name] = judged.why
                        continue
                    if judged.new:
                        new.add(tool.name)
            admitted.append(_shown(tool, data))
        self._say(target, changes, held)
        if problem := self._saved(target, changes):
            held |= {name: _unsure(name, problem) for name in new}
            admitted = [tool for tool in admitted if tool.name not in new]
        return Reviewed(_as_admitted(admitted), held, remarks)

    def card(self, agent: str, card: Mapping[str, Any], mode: str) -> str | None:
        """Why an agent's card is held; None where it is not."""
        if mode == OFF:
            return None
        mark = hashlib.sha256(encode(card)).digest()
        seen = Seen(agent, CARD, "", agent, mark, "", lambda: card_members(card))
        try:
            pin = self._of(agent).pins.get(seen.key)
        except HubError as error:
            self.unreviewed[agent] = str(error)
            return _unsure(agent, error)
        if pin is not None and pin.mark == mark and not pin.held_mark:
            return None
        judged = self._judged(pin, seen, mode)
        changes = [judged.change] if judged.change is not None else []
        self._say(agent, changes, {agent: judged.why or ""})
        problem = self._saved(agent, changes)
        if problem is not None and judged.new:
            return _unsure(agent, problem)
        return judged.why

    def _say(self, target: str, changes: Sequence[PinChange], held: Mapping[str, str]) -> None:
        news = [change.pin.name for change in changes if change.held is not None]
        for name in news[:MAX_SAID]:
            log.warning('"%s": %s', target, held[name])
            self._told(target, name, held[name])
        if len(news) > MAX_SAID:
            log.warning('"%s": %d more are held', target, len(news) - MAX_SAID)

    # --- one definition ---------------------------------------------------------------------------

    def _judged(self, pin: Pin | None, seen: Seen, mode: str) -> Judged:
        """Of one that is not what was seen last."""
        try:
            judged = self._compared(pin, seen, mode)
        except (HubError, Malformed) as error:
            if isinstance(error, HubError):
                self.unreviewed[seen.target] = str(error)
            judged = Judged(_unsure(seen.name, error))
        if judged.change is not None:
            self._known[seen.target].put(judged.change.pin)
        return judged

    def _compared(self, pin: Pin | None, seen: Seen, mode: str) -> Judged:
        pinned = seen.pinned()
        body = encode(pinned)
        named = EXACT if seen.kind in (TOOL, PROMPT) else SHOWN
        secretive = hidden(body) and hidden(encode(clean(pinned, named)))  # where that must stay
        if pin is not None and pin.mark:
            if pin.held_mark == seen.mark:
                return Judged(why_held(pin, secretive))
            if pin.mark == seen.mark or self._is(pin, 0, pinned):
                return Judged(None, PinChange(_nothing_held(pin, name=seen.name, mark=seen.mark)))
        elif mode == FIRST and not secretive and not (pin and pin.rejected_by):
            if not self._known[seen.target].has_room(seen.key, len(body)):
                return Judged(_no_room(seen))
            made = replace(
                seen.unseen(), mark=seen.mark, approved_at=self.clock(), approved_by=FIRST_SIGHT,
                size=len(body),
            )  # fmt: skip
            return Judged(None, PinChange(made, approved=body), new=True)
        held, stored = self._held(pin or seen.unseen(), seen, pinned, body)
        if held is None:
            return Judged(_no_room(seen))
        why = why_held(held, secretive)
        return Judged(why, PinChange(held, held=stored) if held is not pin else None)

    def _held(
        self, pin: Pin, seen: Seen, pinned: dict[str, Any], body: bytes
    ) -> tuple[Pin | None, bytes | None]:
        """The pin with what is offered in its place, and what is new to be stored of that. No pin
        where there is no room."""
        if pin.held_mark == seen.mark:
            return pin, None
        if pin.held_mark and self._is(pin, 1, pinned):
            return replace(pin, held_mark=seen.mark), None
        if not self._known[seen.target].has_room(seen.key, len(body)):
            return None, None
        by, at = self._rejected(pin, digest(pinned))
        pin = replace(
            pin, name=seen.name, held_mark=seen.mark, held_at=self.clock(),
            rejected_at=at, rejected_by=by, held_size=len(body),
        )  # fmt: skip
        return pin, body

    def _is(self, pin: Pin, which: int, pinned: dict[str, Any]) -> bool:
        """Whether what is stored of it, approved (0) or held (1), says the same."""
        body = self.store.bodies(pin)[which]
        return bool(body) and digest(decode_reply(body)) == digest(pinned)

    def _rejected(self, pin: Pin, code: str) -> tuple[str, float]:
        """Whether somebody has said no to exactly this before, and nobody yes since."""
        for decision in self.store.decisions(pin, MAX_REMEMBERED):
            if decision.digest == code:
                return (decision.by, decision.at) if decision.action == REJECT else ("", 0.0)
        return "", 0.0

    # --- what is stored ---------------------------------------------------------------------------

    def keep(self, changes: Sequence[PinChange], decisions: Sequence[PinDecision]) -> None:
        """What people have decided."""
        self.store.save(changes, decisions)
        for change in changes:
            self._of(change.pin.target).put(change.pin)

    def forget(self, target: str, decision: PinDecision) -> None:
        self.store.forget(target, decision)
        self._known.pop(target, None)

    def _of(self, target: str) -> Known:
        known = self._known.get(target)
        if known is None:
            known = self._known[target] = Known(self.store.load(target))
        return known

    def _saved(self, target: str, changes: Sequence[PinChange]) -> Full | None:
        """Together; why not, where they are not."""
        if not changes:
            return None
        try:
            self.store.save(changes, ())
        except Full as error:
            log.error('what "%s" offers could not be recorded: %s', target, error)
            del self._known[target]  # it has what is not stored
            self.unreviewed[target] = str(error)
            return error
        return None


def _nothing_held(pin: Pin, **more: Any) -> Pin:
    return replace(
        pin, held_mark=b"", held_at=0.0, held_size=0, rejected_at=0.0, rejected_by="", **more
    )


def approved(pin: Pin, said: Mapping[str, Any], at: float, by: str) -> Pin:
    """With what is held, which says `said`, in the place of what was approved."""
    spelling = said.get("id" if pin.kind == SKILL else "name", "") if pin.kind != CARD else ""
    return _nothing_held(
        pin, mark=pin.held_mark, size=pin.held_size, approved_at=at, approved_by=by,
        spelling=spelling,
    )  # fmt: skip


# --- words ----------------------------------------------------------------------------------------


def date(when: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(when))


def why_held(pin: Pin, secretive: bool = False) -> str:
    its = "its card" if pin.kind == CARD else "it"
    if pin.rejected_by:
        why = f"what {its} says was rejected on {date(pin.rejected_at)} by {pin.rejected_by}"
    elif pin.mark:
        why = f"{its} has changed since it was approved on {date(pin.approved_at)}"
    elif secretive:
        why = f"{its} has characters that nobody sees, in places where they cannot be taken out"
    else:
        why = f"{its} was not approved yet"
    name = shlex.quote(pin.name)
    return (
        f'"{pin.name}" is held: {why}; see `dragoman pins diff {name}`, approve it with '
        f"`dragoman pins approve {name}`"
    )


def _unsure(name: str, problem: Exception) -> str:
    return f'"{name}" is held: whether it has changed cannot be told: {problem}'


def _no_room(seen: Seen) -> str:
    # What nobody can compare again is not approved: so no flood washes away what was.
    return (
        f'"{seen.name}" is held: "{seen.target}" has offered more different things than are kept '
        f"of one target; if that is right, begin anew with "
        f"`dragoman pins forget {shlex.quote(seen.target)}`"
    )


# --- what is offered ------------------------------------------------------------------------------


def kind_of(tool: Tool) -> str:
    """The kind under which it is pinned."""
    return PROMPT if tool.kind == PROMPT else TOOL if tool.bridged is None else SKILL


def key_of(tool: Tool) -> Key:
    return kind_of(tool), fold_name(tool.remote_name)


def cleaned(target: str, tools: Sequence[Tool]) -> Reviewed:
    """The review of what is not pinned, as resources: their texts are cleaned."""
    shown = []
    for tool in tools:
        if hidden(encode(tool.definition)):
            definition = clean(tool.definition, SHOWN)
            tool = replace(tool, definition=definition, description=clean_text(tool.description))
        shown.append(tool)
    return Reviewed(shown, {})


def _seen(target: str, kind: str, tool: Tool, mark: bytes, skill: Any) -> Seen:
    return Seen(
        target,
        kind,
        fold_name(tool.remote_name),
        tool.name,
        mark,
        tool.remote_name,
        lambda: members(kind, tool.definition, skill),
    )


def _skills(tools: Sequence[Tool]) -> dict[str, Any]:
    """What the agent among them says of its skills, by their ids."""
    return {
        skill["id"]: skill
        for tool in tools
        if tool.agent is not None and tool.bridged is None
        for skill in tool.agent.skills
        if isinstance(skill.get("id"), str)
    }


def _shown(tool: Tool, data: bytes) -> Tool:
    """As models may read it; the same object where there is nothing to clean. `data` is all that
    the far side says of it."""
    if tool.agent is None and tool.bridged is None and not hidden(data):
        return tool
    facts = tool.agent
    description, definition = clean_text(tool.description), clean(tool.definition)
    if facts is not None:
        about, skills = clean_text(facts.description), clean(list(facts.skills), SHOWN)
        if (about, skills) != (facts.description, list(facts.skills)):
            facts = replace(facts, description=about, skills=skills)
    if (description, definition, facts) == (tool.description, tool.definition, tool.agent):
        return tool
    return replace(tool, description=description, definition=definition, agent=facts)


def _as_admitted(admitted: list[Tool]) -> list[Tool]:
    """An agent's own list of its skills has those that are admitted: neither what is held, nor what
    nobody has looked at because it is no tool."""
    ids = {tool.bridged.skill_id for tool in admitted if tool.bridged is not None}
    found = []
    for tool in admitted:
        if tool.agent is not None:
            left = [skill for skill in tool.agent.skills if skill.get("id") in ids]
            if len(left) < len(tool.agent.skills):
                tool = replace(tool, agent=replace(tool.agent, skills=left))
        found.append(tool)
    return found
