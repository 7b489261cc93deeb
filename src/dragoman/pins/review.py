"""Reviews every definition before clients see it: one that has changed since it was approved is
quarantined until it is approved.

Catalogs call `PinReviewer.review`, the registry calls `review_card` for an agent's card. A known
definition is recognised by a cheap hash of its whole text; only others are compared. What cannot be
read or recorded is quarantined. Knows neither the origin of definitions nor their clients.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dragoman.core import structs
from dragoman.core.catalog import ReviewResult, UncheckedReason, choose_spellings
from dragoman.core.errors import HubError, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.ports import Pin, PinChange, PinDecision, PinStore
from dragoman.core.shortened_texts import list_shortened, note_shortened
from dragoman.core.tool import PROMPT, TEMPLATE, TOOL, Tool
from dragoman.core.tool_identity import fold_name
from dragoman.pins.digest import (
    ADDRESSED,
    CARD,
    EXTENDED,
    LASTING,
    SCHEME,
    SKILL,
    add_measures,
    compute_digest,
    remove_measures,
    select_pinned,
    select_pinned_of_card,
)
from dragoman.pins.lookalikes import build_skeletons
from dragoman.pins.minor_changes import KINDS as MINOR_KINDS
from dragoman.pins.minor_changes import ORDER, MinorChanges, find_minor_changes
from dragoman.pins.sanitize import (
    EXACT,
    MAX_DESCRIPTION,
    SHOWN,
    clean_text,
    clean_value,
    escape_hidden,
    has_hidden,
    is_short,
    shorten,
    shorten_text,
)
from dragoman.wire.json import Malformed, decode_reply, encode

log = logging.getLogger(__name__)

OFF, FIRST, STRICT = "off", "first", "strict"
"""Modes: off quarantines nothing, first approves what was never seen, others nothing by itself."""
NAMED = (TOOL, PROMPT, SKILL)
"""The kinds that are called by a name."""
HOLD = "hold"
"""How additions are treated; the other way is "show"."""
APPROVE, REJECT, FORGET = "approve", "reject", "forget"
FIRST_SIGHT, ADDITION = "first sight", "first sight, added later"
"""Recorded as the approver of what no person approved: the first list of a target, and later
additions."""
MAX_PINS, MAX_BYTES = 50_000, 128 * 1024 * 1024
"""The limits of one target; resources and templates have separate limits of the same size."""
MAX_REMEMBERED = 1_000
PART = 200
"""Pins that are saved in one turn of the event loop."""
MAX_SAID = 10
"""Log lines about one review."""

FindMode = Callable[[str], str]
OnPinEvent = Callable[[str, str, str], None]
"""Called with the target, the name and the reason."""
Key = tuple[str, str]
"""A kind, and an identity of that kind within its target."""


class OfferedDefinition(NamedTuple):
    """A definition that is offered now."""

    target: str
    kind: str
    id: str
    name: str
    mark: bytes
    spelling: str
    pinned: Callable[[int], dict[str, Any]]
    """Returns its pinned members in a scheme."""
    added: bool = False
    """Whether it was not in the first list of its target."""

    @property
    def key(self) -> Key:
        return self.kind, self.id

    def build_pin(self) -> Pin:
        """Builds the pin of a definition that was never seen."""
        return Pin(
            self.target, self.kind, self.id, self.name, spelling=self.spelling, scheme=SCHEME
        )


class TargetPins:
    def __init__(self, pins: Sequence[Pin], listed: Collection[str] = ()) -> None:
        self.pins: dict[Key, Pin] = {}
        self.listed = set(listed)
        self.version = 0
        """Changes with each change of a pin."""
        self._count, self._bytes = Counter[bool](), Counter[bool]()
        """Of kinds with a URI, and of the others."""
        self._skeletons: dict[tuple[str, str], set[str]] = {}
        """The ids with each skeleton, by kind; once the first addition was looked for."""
        for pin in pins:
            self.put(pin)

    def copy(self) -> TargetPins:
        made = TargetPins((), self.listed)
        made.pins, made._count, made._bytes = (
            self.pins.copy(),
            Counter(self._count),
            Counter(self._bytes),
        )
        made._skeletons = self._skeletons  # shared: building it takes long, and both may add to it
        return made

    def put(self, pin: Pin) -> None:
        self.version += 1
        old = self.pins.get((pin.kind, pin.id))
        addressed = pin.kind in ADDRESSED
        self._bytes[addressed] += pin.size + pin.held_size
        if old is not None:
            self._bytes[addressed] -= old.size + old.held_size
        self._count[addressed] += old is None
        self.pins[pin.kind, pin.id] = pin
        if self._skeletons:
            self._index(pin)

    def _index(self, pin: Pin) -> None:
        if pin.kind in NAMED:
            for skeleton in build_skeletons(pin.spelling):
                self._skeletons.setdefault((pin.kind, skeleton), set()).add(pin.id)

    def find_lookalike(self, kind: str, id: str, spelling: str) -> str:
        """Returns another name that was approved or rejected and looks like this one, or ""."""
        if kind not in NAMED:
            return ""
        if not self._skeletons:
            for pin in self.pins.values():
                self._index(pin)
        for skeleton in build_skeletons(spelling):
            for other in self._skeletons.get((kind, skeleton), ()):
                known = self.pins.get((kind, other))  # a copy may have indexed what it alone has
                if known is not None and other != id and (known.mark or known.rejected_by):
                    return known.spelling
        return ""

    def has_spelling(self, tool: Tool) -> bool:
        """Whether the tool is spelled as when it was approved."""
        pin = self.pins.get(key_from_tool(tool))
        return pin is not None and bool(pin.mark) and pin.spelling == tool.remote_name

    def has_room(self, key: Key, size: int) -> bool:
        addressed = key[0] in ADDRESSED
        return self._count[addressed] + (key not in self.pins) <= MAX_PINS and (
            self._bytes[addressed] + size <= MAX_BYTES
        )


class PinVerdict(NamedTuple):
    why: str | None
    """Why it is quarantined; None if it is not."""
    change: PinChange | None = None
    new: bool = False
    """Whether it is seen for the first time; it is offered only once that is stored."""
    minor: MinorChanges | None = None
    """What is offered of a definition that has only minor changes."""
    is_news: bool = True
    """Whether minor changes are other ones than the last time."""


class PinReviewer:
    def __init__(
        self,
        store: PinStore,
        mode_of: FindMode,
        clock: Callable[[], float] = time.time,
        told: OnPinEvent = lambda target, name, why: None,
        holds_additions: Callable[[str], bool] = lambda target: False,
        told_added: OnPinEvent = lambda target, name, why: None,
    ) -> None:
        """`mode_of` returns the mode of a target at every review, `holds_additions` whether its
        additions are quarantined; `told` is called for each newly quarantined definition, and
        `told_added` for each addition that is offered."""
        self._told = told
        self._holds_additions = holds_additions
        self._told_added = told_added
        self.store = store
        self.clock = clock
        self.mode_of = mode_of
        self._known: dict[str, TargetPins] = {}
        """By target, from its first review on."""
        self.unreviewed: dict[str, str] = {}
        """The targets with definitions that are not offered because the store failed, and why. A
        caller that reviews them again removes them."""
        self._waiting: dict[tuple[str, str], dict[Key, bytes]] = {}
        """What the last review of a target's list of a kind has quarantined, with its marks."""

    # --- reviews ----------------------------------------------------------------------------------

    def review(self, target: str, tools: Sequence[Tool], kind: str = TOOL) -> ReviewResult:
        """Returns what a catalog of `kind` may offer, and why the rest is quarantined. A resource
        or template whose text has changed is offered with the approved text."""
        review = self._begin(target, tools, kind)
        for tool in review.tools:
            self._review_tool(tool, review)
        self._report(review)
        problem = self._save(target, review.changes, kind) if review.is_pinned else None
        return self._conclude(review, problem)

    async def review_in_turns(
        self, target: str, tools: Sequence[Tool], kind: str, turns: LoopTurns
    ) -> ReviewResult:
        """Like `review`, in several turns of the event loop. Nothing else has a turn between the
        last look at the pins and the return."""
        while True:
            await turns.give_way()
            review = self._begin(target, tools, kind)
            basis = _Basis(review.known, review.known.version, self._holds_additions(target))
            review.known = review.known.copy()  # others see a change once it is stored
            for tool in review.tools:
                await turns.give_way()
                self._review_tool(tool, review)
            result = await self._save_in_turns(review, basis, turns)
            if result is not None:
                return result

    async def _save_in_turns(
        self, review: _Review, basis: _Basis, turns: LoopTurns
    ) -> ReviewResult | None:
        """Returns None if the pins or the settings were changed meanwhile: nothing is overwritten
        that was decided."""
        starts = range(0, len(review.changes), PART)
        parts = [review.changes[start : start + PART] for start in starts]
        problem = None
        for number, part in enumerate([*parts, []]):
            await turns.give_way()
            if not self._is_current(review, basis):
                return None
            if number == 0:
                self._report(review)
            if review.is_pinned:
                # The kind counts as listed with the last part: if the hub stops before, what is
                # not stored is no addition.
                problem = self._save(review.target, part, "" if part else review.kind)
            if problem is not None:
                break
            for change in part:
                basis.pins.put(change.pin)
            basis.version = basis.pins.version
        return self._conclude(review, problem)

    def _is_current(self, review: _Review, basis: _Basis) -> bool:
        if review.is_pinned:
            now = self._known.get(review.target)
            if now is not basis.pins or now.version != basis.version:
                return False
        holds = self._holds_additions(review.target)
        return self.mode_of(review.target) == review.mode and holds == basis.holds_additions

    def _begin(self, target: str, tools: Sequence[Tool], kind: str) -> _Review:
        mode = self.mode_of(target)
        if mode == OFF:
            chosen, remarks = choose_spellings(tools, lambda tool: False)
            return _Review(target, mode, kind, chosen, remarks=remarks)
        try:
            known = self._find_pins(target)
        except HubError as error:
            self.unreviewed[target] = str(error)
            why = {tool.name: _explain_uncertainty(tool.name, error) for tool in tools}
            return _Review(target, mode, kind, held=why)
        chosen, remarks = choose_spellings(tools, known.has_spelling)
        return _Review(
            target, mode, kind, chosen, known, True, kind in known.listed, _list_skills(chosen),
            remarks,
        )  # fmt: skip

    def _conclude(self, review: _Review, problem: StorageFailed | None) -> ReviewResult:
        """`problem` is why what is new could not be stored."""
        admitted = review.admitted
        self._waiting.pop((review.target, review.kind), None)
        if review.is_pinned:
            self._waiting[review.target, review.kind] = review.waiting
            if problem is not None:
                review.held |= {name: _explain_uncertainty(name, problem) for name in review.new}
                admitted = [tool for tool in admitted if tool.name not in review.new]
            admitted = _limit_skills(admitted)
        return ReviewResult(admitted, review.held, review.remarks)

    def _review_tool(self, tool: Tool, review: _Review) -> None:
        if review.mode == OFF:
            shown = _sanitize_tool(tool, encode(tool.definition), review.remarks)
            review.admitted.append(shown)
            return
        known = review.known
        skill = review.skills.get(tool.bridged.skill_id) if tool.bridged is not None else None
        kind = find_pinned_kind(tool)
        said: Any = tool.definition if skill is None else [tool.definition, skill]
        if kind in ADDRESSED:
            said = remove_measures(tool.definition)
        data = encode(said)
        if tool.agent is None or kind == SKILL:  # an agent itself is pinned by its card
            mark = hashlib.sha256(data).digest()
            key = key_from_tool(tool)
            pin = known.pins.get(key)
            if pin is None or pin.mark != mark or pin.held_mark or pin.scheme != SCHEME:
                seen = _build_offered(review, kind, tool, mark, skill)
                judged = self._judge(known, pin, seen, review.mode)
                if judged.change is not None:
                    review.changes.append(judged.change)
                if judged.why is not None:
                    review.why[tool.name] = judged.why
                    review.waiting[key] = mark
                    now = known.pins.get(key)
                    shows = kind in LASTING and (now is None or bool(now.mark))
                    if not shows or review.mode == STRICT:
                        review.held[tool.name] = judged.why
                        return
                    tool = self._restore_approved(tool, now)
                    data = encode(tool.definition)
                elif judged.minor is not None:
                    review.waiting[key] = mark
                    review.minor[tool.name] = judged.minor if judged.is_news else None
                    tool = _offer_approved(tool, judged.minor.definition)
                    data = encode(tool.definition)
                elif judged.new:
                    review.new.add(tool.name)
        if kind in ADDRESSED:
            measured = add_measures(remove_measures(tool.definition), tool.definition)
            if measured != tool.definition:
                tool = replace(tool, definition=measured)
        review.admitted.append(_sanitize_tool(tool, data, review.remarks))

    def _restore_approved(self, tool: Tool, pin: Pin | None) -> Tool:
        """Returns the tool with the approved text. Without one, or if it cannot be read, a resource
        has only its URI, and instructions are empty."""
        member = "uriTemplate" if tool.kind == TEMPLATE else "uri"
        said: dict[str, Any] = {}
        if tool.kind in ADDRESSED:
            said = {member: tool.remote_name, "name": tool.remote_name}
        try:
            body = self.store.load_bodies(pin)[0] if pin is not None and pin.mark else b""
            said = decode_reply(body) if body else said
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f'the approved definition of "{tool.name}" cannot be read: {error}')
        except (HubError, Malformed) as error:
            log.error('the approved definition of "%s" cannot be read: %s', tool.name, error)
        definition = add_measures(said, tool.definition)
        return replace(
            tool, definition=definition, description=str(definition.get("description") or "")
        )

    def is_offered(self, pin: Pin) -> bool:
        """Whether its quarantined definition was in the last list of its target."""
        kind = CARD if pin.kind == CARD else TOOL if pin.kind == SKILL else pin.kind
        waiting = self._waiting.get((pin.target, kind), {})
        return bool(pin.held_mark) and waiting.get((pin.kind, pin.id)) == pin.held_mark

    def review_card(
        self, agent: str, card: Mapping[str, Any], mode: str, is_extended: bool = False
    ) -> str | None:
        """Returns why an agent's card is quarantined; None if it is not. The extended card, which
        the agent shows to whom it knows, has a pin of its own."""
        id, name = (EXTENDED, f"{agent} (extended card)") if is_extended else ("", agent)
        waiting = self._waiting.setdefault((agent, CARD), {})
        waiting.pop((CARD, id), None)
        if mode == OFF:
            return None
        mark = hashlib.sha256(encode(card)).digest()
        seen = OfferedDefinition(
            agent, CARD, id, name, mark, "", lambda scheme: select_pinned_of_card(card, scheme)
        )
        try:
            known = self._find_pins(agent)
            pin = known.pins.get(seen.key)
        except HubError as error:
            self.unreviewed[agent] = str(error)
            return _explain_uncertainty(name, error)
        if pin is not None and pin.mark == mark and not pin.held_mark and pin.scheme == SCHEME:
            return None
        judged = self._judge(known, pin, seen, mode)
        review = _Review(agent, mode)
        if judged.change is not None:
            review.changes.append(judged.change)
        if judged.why is not None:
            review.why[name] = judged.why
            waiting[seen.key] = mark
            if not is_extended:
                self._waiting.pop((agent, TOOL), None)  # its skills are of another card
        self._report(review)
        problem = self._save(agent, review.changes)
        if problem is not None and judged.new:
            return _explain_uncertainty(name, problem)
        return judged.why

    def _report(self, review: _Review) -> None:
        stored = [one.pin.name for one in review.changes if one.held is not None]
        held = [name for name in stored if name not in review.minor]
        _log_minor_changes(review)
        added = [one.pin.name for one in review.changes if one.pin.approved_by == ADDITION]
        for name in held[:MAX_SAID]:
            log.warning('"%s": %s', review.target, review.why[name])
            self._told(review.target, name, review.why[name])
        for name in [one for one in added if one in review.new][:MAX_SAID]:
            why = f'"{name}" was added since "{review.target}" was first listed; it is offered'
            log.warning("%s", why)
            self._told_added(review.target, name, why)
        for names, done in ((held, "quarantined"), (added, "new")):
            if len(names) > MAX_SAID:
                log.warning('"%s": %d more are %s', review.target, len(names) - MAX_SAID, done)

    # --- one definition ---------------------------------------------------------------------------

    def _judge(
        self, known: TargetPins, pin: Pin | None, seen: OfferedDefinition, mode: str
    ) -> PinVerdict:
        try:
            judged = self._compare(known, pin, seen, mode)
        except (HubError, Malformed) as error:
            if isinstance(error, HubError):
                self.unreviewed[seen.target] = str(error)
            judged = PinVerdict(_explain_uncertainty(seen.name, error))
        if judged.change is not None:
            known.put(judged.change.pin)
        return judged

    def _compare(
        self, known: TargetPins, pin: Pin | None, seen: OfferedDefinition, mode: str
    ) -> PinVerdict:
        pinned = seen.pinned(SCHEME)
        body = encode(pinned)
        secretive = _has_secrets(seen.kind, body)
        lookalike = ""
        if seen.added and not (pin and pin.mark):
            lookalike = known.find_lookalike(*seen.key, seen.spelling)
        if pin is not None and pin.mark:
            if pin.held_mark == seen.mark and pin.scheme == SCHEME:
                minor = None if secretive else self._find_minor(pin, mode, pinned)
                if minor is not None:
                    return PinVerdict(None, minor=minor, is_news=False)
                return PinVerdict(explain_hold(pin, secretive))
            if pin.mark == seen.mark or self._is_same(pin, 0, seen):
                if (known_minor := self.find_minor(pin)) and known_minor.is_order_only:
                    # It alternates: what is remembered of that is not reported again.
                    same = structs.replace(pin, name=seen.name, mark=seen.mark)
                    return PinVerdict(None, PinChange(same) if same != pin else None)
                same = _release(pin, name=seen.name, mark=seen.mark)
                if pin.scheme == SCHEME:
                    return PinVerdict(None, PinChange(same))
                same = structs.replace(same, scheme=SCHEME, size=len(body))
                return PinVerdict(None, PinChange(same, approved=body))
        elif (
            mode == FIRST
            and not secretive
            and not lookalike
            and not (pin and pin.rejected_by)
            and not (seen.added and self._holds_additions(seen.target))
        ):
            if not known.has_room(seen.key, len(body)):
                return PinVerdict(_explain_no_room(seen))
            made = structs.replace(
                seen.build_pin(), mark=seen.mark, approved_at=self.clock(), size=len(body),
                approved_by=ADDITION if seen.added else FIRST_SIGHT,
            )  # fmt: skip
            return PinVerdict(None, PinChange(made, approved=body), new=True)
        held, stored = self._hold(known, pin or seen.build_pin(), seen, pinned, body)
        if held is None:
            return PinVerdict(_explain_no_room(seen))
        change = PinChange(held, held=stored) if held is not pin else None
        minor = None if secretive else self._find_minor(held, mode, pinned)
        if minor is not None:
            before = self.find_minor(pin) if pin is not None else None
            return PinVerdict(None, change, minor=minor, is_news=not _is_like(before, minor))
        return PinVerdict(explain_hold(held, secretive, lookalike), change)

    def find_minor(self, pin: Pin) -> MinorChanges | None:
        """Returns the changes of a quarantined definition if all are minor, so that it is offered
        as it was approved."""
        if not pin.held_mark or pin.kind not in MINOR_KINDS:
            return None
        body = self.store.load_bodies(pin)[1]
        if not body or _has_secrets(pin.kind, body):
            return None
        return self._find_minor(pin, self.mode_of(pin.target), decode_reply(body))

    def _find_minor(self, pin: Pin, mode: str, offered: Mapping[str, Any]) -> MinorChanges | None:
        if mode != FIRST or not pin.mark or pin.rejected_by or pin.scheme != SCHEME:
            return None
        if pin.kind not in MINOR_KINDS:
            return None
        body = self.store.load_bodies(pin)[0]
        return find_minor_changes(pin.kind, decode_reply(body), offered) if body else None

    def _hold(
        self,
        known: TargetPins,
        pin: Pin,
        seen: OfferedDefinition,
        pinned: dict[str, Any],
        body: bytes,
    ) -> tuple[Pin | None, bytes | None]:
        """Returns the pin with the offered definition quarantined, and the body to store; no pin
        if there is no room."""
        if pin.held_mark and (pin.held_mark == seen.mark or self._is_same(pin, 1, seen)):
            if pin.scheme == SCHEME or self.store.load_bodies(pin)[1] == body:
                same = pin.held_mark == seen.mark
                return (pin if same else structs.replace(pin, held_mark=seen.mark)), None
            return structs.replace(pin, held_mark=seen.mark, held_size=len(body)), body
        if not known.has_room(seen.key, len(body)):
            return None, None
        by, at = self._find_rejection(pin, {compute_digest(pinned), compute_digest(seen.pinned(1))})
        pin = structs.replace(
            pin, name=seen.name, held_mark=seen.mark, held_at=self.clock(),
            rejected_at=at, rejected_by=by, held_size=len(body),
        )  # fmt: skip
        return pin, body

    def _is_same(self, pin: Pin, which: int, seen: OfferedDefinition) -> bool:
        """Whether the stored definition, approved (0) or quarantined (1), is equivalent. A pin of
        an older scheme is compared by the members of that scheme."""
        body = self.store.load_bodies(pin)[which]
        if not body:
            return False
        code = compute_digest(decode_reply(body))
        return any(code == compute_digest(seen.pinned(one)) for one in {pin.scheme, SCHEME})

    def _find_rejection(self, pin: Pin, codes: Collection[str]) -> tuple[str, float]:
        """Returns who rejected exactly this definition, and when, unless it was approved since."""
        for decision in self.store.load_decisions(pin, MAX_REMEMBERED):
            if decision.digest in codes:
                return (decision.by, decision.at) if decision.action == REJECT else ("", 0.0)
        return "", 0.0

    # --- storage ----------------------------------------------------------------------------------

    def save_decisions(
        self, changes: Sequence[PinChange], decisions: Sequence[PinDecision]
    ) -> None:
        """Saves decisions of people."""
        self.store.save(changes, decisions)
        for change in changes:
            self._find_pins(change.pin.target).put(change.pin)

    def forget(self, target: str, decision: PinDecision) -> None:
        self.store.forget(target, decision)
        self._known.pop(target, None)

    def reload(self) -> list[str]:
        """Reads the pins again that other hubs have stored. Returns the targets about whose pins
        they have decided, which are to be reviewed again."""
        stored: dict[str, list[Pin]] = {}
        for pin in self.store.load(None):
            stored.setdefault(pin.target, []).append(pin)
        found = []
        for target, known in list(self._known.items()):
            pins = stored.get(target, [])
            if _list_decided(pins) != _list_decided(known.pins.values()):
                del self._known[target]
                found.append(target)
                continue
            # Hubs may see a target differently: what they have quarantined is no decision.
            for pin in pins:
                if known.pins.get((pin.kind, pin.id)) != pin:  # or a review begins again
                    known.put(pin)
        return found

    def _find_pins(self, target: str) -> TargetPins:
        known = self._known.get(target)
        if known is None:
            pins = self.store.load(target)
            known = self._known[target] = TargetPins(pins, self.store.load_listed_kinds(target))
        return known

    def _save(
        self, target: str, changes: Sequence[PinChange], kind: str = ""
    ) -> StorageFailed | None:
        """Saves all changes together, and that `kind` was listed; returns the error, if any."""
        first = bool(kind) and kind not in self._known[target].listed
        if not changes and not first:
            return None
        try:
            self.store.save(changes, (), (target, kind) if first else None)
            self._known[target].listed |= {kind} - {""}
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f'the definitions of "{target}" could not be recorded: {error}')
            del self._known[target]  # it has changes that are not stored
            self.unreviewed[target] = str(error)
            return error
        return None


def _has_secrets(kind: str, body: bytes) -> bool:
    """Whether a definition has hidden characters in values that cannot be sanitised."""
    named = EXACT if kind in (TOOL, PROMPT) else SHOWN
    return has_hidden(body) and has_hidden(encode(clean_value(decode_reply(body), named)))


def _is_like(before: MinorChanges | None, now: MinorChanges) -> bool:
    """Whether the same was reported before: in which places an order differs is chance."""
    if before is None:
        return False
    return before.changes == now.changes or (before.is_order_only and now.is_order_only)


def _release(pin: Pin, **more: Any) -> Pin:
    return structs.replace(
        pin, held_mark=b"", held_at=0.0, held_size=0, rejected_at=0.0, rejected_by="", **more
    )


def _list_decided(pins: Iterable[Pin]) -> set[tuple[Any, ...]]:
    return {
        (one.kind, one.id, one.approved_at, one.approved_by, one.rejected_at, one.rejected_by)
        for one in pins
        if one.approved_by or one.rejected_by
    }


def approve_pin(pin: Pin, said: Mapping[str, Any], at: float, by: str) -> Pin:
    """Returns the pin with its quarantined definition, `said`, approved."""
    spelling = said.get("id" if pin.kind == SKILL else "name", "") if pin.kind != CARD else ""
    if pin.kind in LASTING:
        spelling = pin.spelling
    return _release(
        pin, mark=pin.held_mark, size=pin.held_size, approved_at=at, approved_by=by,
        spelling=spelling, scheme=SCHEME,
    )  # fmt: skip


# --- messages -------------------------------------------------------------------------------------


def render_date(when: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(when))


def explain_hold(pin: Pin, secretive: bool = False, lookalike: str = "") -> str:
    its = "its card" if pin.kind == CARD else "it"
    if pin.rejected_by:
        why = f"what {its} says was rejected on {render_date(pin.rejected_at)} by {pin.rejected_by}"
    elif pin.mark and pin.kind in LASTING:
        why = f"its text has changed since that was approved on {render_date(pin.approved_at)}"
    elif pin.mark:
        why = f"{its} has changed since it was approved on {render_date(pin.approved_at)}"
    elif secretive:
        why = f"{its} has invisible characters in values that cannot be cleaned"
    elif lookalike:
        why = f'{its} was added, and its name looks like "{escape_hidden(lookalike)}"'
    else:
        why = f"{its} was not approved yet"
    name = shlex.quote(pin.name)
    return (
        f'"{pin.name}" is quarantined: {why}; see `dragoman pins diff {name}`, approve it with '
        f"`dragoman pins approve {name}`"
    )


def _log_minor_changes(review: _Review) -> None:
    """Logs one line for equal changes of many definitions."""
    groups: dict[str, list[str]] = {}
    for name, minor in review.minor.items():
        if minor is not None:
            what = ORDER if minor.is_order_only else minor.describe()
            groups.setdefault(what, []).append(name)
    for what, names in list(groups.items())[:MAX_SAID]:
        if what == ORDER:
            done = "differ between starts of the server, in the order of a list or series"
        else:
            done = f"have minor changes since they were approved ({what})"
        log.warning(
            '"%s": %d definitions, such as "%s", %s; they are offered as approved, see '
            "`dragoman pins list`",
            review.target, len(names), names[0], done,
        )  # fmt: skip


def _explain_uncertainty(name: str, problem: Exception) -> str:
    if isinstance(problem, StorageFailed):
        return UncheckedReason(f'"{name}" cannot be used: its pin cannot be checked: {problem}')
    return f'"{name}" is quarantined: its pin cannot be checked: {problem}'


def _explain_no_room(seen: OfferedDefinition) -> str:
    # A definition that cannot be stored is not approved, so that a flood cannot displace pins.
    return (
        f'"{seen.name}" is quarantined: "{seen.target}" has offered more different things than are '
        f"kept of one target; if that is right, begin anew with "
        f"`dragoman pins forget {shlex.quote(seen.target)}`"
    )


# --- offered definitions --------------------------------------------------------------------------


@dataclass(slots=True)
class _Review:
    target: str
    mode: str
    kind: str = ""
    """Of the catalog."""
    tools: Sequence[Tool] = ()
    known: TargetPins = field(default_factory=lambda: TargetPins(()))
    is_pinned: bool = False
    """Whether the tools are compared with pins: not if that is off, or if none can be read."""
    again: bool = False
    """Whether the target has listed this kind before."""
    skills: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    admitted: list[Tool] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    """Reasons of all that waits for a decision, even if it is offered with another text."""
    waiting: dict[Key, bytes] = field(default_factory=dict)
    changes: list[PinChange] = field(default_factory=list)
    new: set[str] = field(default_factory=set)
    minor: dict[str, MinorChanges | None] = field(default_factory=dict)
    """Minor changes of what is offered; None if they were reported before."""


@dataclass(slots=True)
class _Basis:
    """What a review in several turns began with."""

    pins: TargetPins
    version: int
    holds_additions: bool


def find_pinned_kind(tool: Tool) -> str:
    return SKILL if tool.bridged is not None else tool.kind


def key_from_tool(tool: Tool) -> Key:
    return find_pinned_kind(tool), _id_from_tool(tool)


def _id_from_tool(tool: Tool) -> str:
    return tool.remote_name if tool.kind in ADDRESSED else fold_name(tool.remote_name)


def _build_offered(
    review: _Review, kind: str, tool: Tool, mark: bytes, skill: Any
) -> OfferedDefinition:
    return OfferedDefinition(
        review.target,
        kind,
        _id_from_tool(tool),
        tool.name,
        mark,
        tool.remote_name,
        lambda scheme: select_pinned(kind, tool.definition, skill, scheme),
        review.again,
    )


def _list_skills(tools: Sequence[Tool]) -> dict[str, Any]:
    """Returns the skills on the card of the agent among `tools`, by their ids."""
    return {
        skill["id"]: skill
        for tool in tools
        if tool.agent is not None and tool.bridged is None
        for skill in tool.agent.skills
        if isinstance(skill.get("id"), str)
    }


def _offer_approved(tool: Tool, definition: dict[str, Any]) -> Tool:
    """Returns the tool with that definition, and what the hub adds to it."""
    own, approved = (str(one.get("description") or "") for one in (tool.definition, definition))
    description = tool.description
    if own != approved:
        prefix = description.removesuffix(own) if own and description.endswith(own) else ""
        description = prefix + approved
    if (execution := tool.definition.get("execution")) is not None:
        definition = {**definition, "execution": execution}
    return replace(tool, definition=definition, description=description)


def _sanitize_tool(tool: Tool, data: bytes, remarks: list[str]) -> Tool:
    """Returns the tool as models may read it; the same object if there is nothing to clean or to
    shorten. `data` is the whole definition of its server or agent."""
    if tool.agent is None and tool.bridged is None and not has_hidden(data) and is_short(data):
        return tool
    named = SHOWN if tool.kind in ADDRESSED else EXACT
    facts, description = tool.agent, clean_text(tool.description)
    cleaned = clean_value(tool.definition, named)
    definition = shorten(cleaned)
    own = tool.definition.get("description")
    # The prefix that the hub adds to a description does not count.
    prefix = len(tool.description) - (len(own) if isinstance(own, str) else 0)
    short = shorten_text(description, MAX_DESCRIPTION + max(0, prefix))
    texts = list_shortened(cleaned, definition)
    definition = note_shortened(definition, texts)
    if cut := [text for text in texts if text.shown == MAX_DESCRIPTION]:
        remarks.append(
            f'{tool.kind} "{tool.name}" has texts that are truncated to {MAX_DESCRIPTION} '
            f"characters: {', '.join(f'{one.place[1:]} ({one.sent})' for one in cut[:3])}"
        )
    if facts is not None:
        about = shorten_text(clean_text(facts.description))
        skills = facts.skills
        if not facts.has_live_skills:
            skills = [shorten(skill) for skill in clean_value(list(skills), SHOWN)]
            if skills == list(facts.skills):
                skills = facts.skills
        if about != facts.description or skills is not facts.skills:
            facts = replace(facts, description=about, skills=skills)
        if (more := facts.extended_facts) is not None:
            about = shorten_text(clean_text(more.description), MAX_DESCRIPTION)
            facts = replace(facts, extended_facts=replace(more, description=about))
    if (short, definition, facts) == (tool.description, tool.definition, tool.agent):
        return tool
    return replace(tool, description=short, definition=definition, agent=facts)


def _limit_skills(admitted: list[Tool]) -> list[Tool]:
    """Limits an agent's list of skills to the admitted ones: not quarantined, and reviewed, which
    needs a tool."""
    ids = {tool.bridged.skill_id for tool in admitted if tool.bridged is not None}
    found = []
    for tool in admitted:
        if tool.agent is not None:
            left = [skill for skill in tool.agent.skills if skill.get("id") in ids]
            if len(left) < len(tool.agent.skills):
                tool = replace(tool, agent=replace(tool.agent, skills=left))
        found.append(tool)
    return found
