"""Refuses calls that repeat what their run has done, without progress; before that, warns in the
result, where a model reads it.

A run is what one caller does for one purpose: the calls made on behalf of another call, else those
of a client's session, of an A2A context, or of a trace that the client has sent. A call with none
of these is its own run. Calls that something else refuses are not counted: nothing has left, and
when the cause is removed they must work at once.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace as replace_dataclass
from fnmatch import fnmatchcase
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from dragoman.core.call import ABSENT, Artifact, Call, Result, StatusMessage
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    Repeating,
    TargetFailed,
    Unreachable,
    WorkFailed,
)
from dragoman.core.pipeline import Next
from dragoman.core.structs import replace
from dragoman.core.tool import TOOL, TRUSTED, Nowhere, Tool
from dragoman.guards.call_history import (
    CYCLE,
    IDENTICAL,
    NO_PROGRESS,
    CallHistory,
    PastCall,
    Repetition,
    Thresholds,
)
from dragoman.guards.config import LoopSettings
from dragoman.guards.runs import find_client_run

MAX_RUNS = 1_000
"""Runs of one principal that are remembered; beyond that its least recent one is forgotten."""
FORGIVEN = 12
"""Successes in a row after which the failures of a client are forgotten."""
MAX_CLASSIFIED = 10_000
LOOKED_AT = 2_000
"""Characters of a failure that are compared."""
_NEVER = 1_000_000_000

Runs = OrderedDict[str, CallHistory]

_sorted = msgspec.json.Encoder(order="sorted").encode
_ID = re.compile(r"[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,}){0,4}|\d{6,}")
"""Ids and times in a message, which differ although the failure is the same."""


class ToolTraits(NamedTuple):
    reads_only: bool
    is_polled: bool


class LoopGuard:
    def __init__(self, settings: LoopSettings, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, Runs] = {}
        """By principal, so that none can displace another's; the least recent first."""
        self._swept = clock()
        self._set(settings)

    def apply(self, settings: LoopSettings) -> None:
        """Applies to calls from now on, and begins to count anew if something has changed."""
        if settings != self.settings:
            self._runs.clear()
            self._set(settings)

    def _set(self, settings: LoopSettings) -> None:
        self.settings = settings
        self._is_off = settings.mode == "off"
        self._counts_all = settings.clients == "all"
        self._pause = settings.window_secs / 3
        """Seconds after which a refused call may be tried once more: its cause may have ended."""
        self._traits: dict[str, tuple[Tool, ToolTraits]] = {}
        warned, cycles, stale = settings.warn, settings.cycles, settings.no_progress
        self._warned = Thresholds(warned, cycles, stale * 2 // 3)
        self._refused = Thresholds(settings.refuse - 1, cycles, stale)
        polled = settings.polling_refuse
        self._polls_warned = Thresholds(max(2, polled * 3 // 5), _NEVER, _NEVER)
        self._polls_refused = Thresholds(polled - 1, _NEVER, _NEVER)

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        tool = call.tool
        if self._is_off or tool.kind != TOOL or isinstance(tool.target, Nowhere):
            return next(call)
        if call.task is not None and call.sends_nothing:
            return next(call)
        if (above := call.trace.parent) is not None:
            return self._run(next, call, above.trace.span, True)
        if run := find_client_run(call):
            return self._run(next, call, run, self._counts_all)
        return next(call)

    async def _run(self, next: Next, call: Call, run: str, every: bool) -> Result:
        runs = self._runs.get(call.principal.key)
        history = runs.get(run) if runs is not None else None
        hashed: int | None = None
        if history is not None and call.handle is None:  # an answer to a question is no repetition
            hashed = hash_call(call)
            self._check(call, hashed, history, every)
        try:
            result = await next(call)
        except (InvalidInput, TargetFailed) as error:
            if every or not isinstance(error, Unreachable):  # a client may wait for a restart
                self._record_error(call, hashed, run, every, error)
            raise
        if history is None and not every and not result.failed:  # the common case
            return result
        if result.questions is not None or result.unfinished:
            return result
        return self._record_result(call, hashed, run, every, result)

    def _check(self, call: Call, hashed: int, history: CallHistory, every: bool) -> None:
        paused = self._clock() - history.at
        if paused > self.settings.window_secs:
            history.clear()
            return
        is_polled = self._find_traits(call.tool).is_polled
        limits = self._polls_refused if is_polled else self._refused
        found = history.find_repetition(limits, hashed, call.tool.name, every)
        if found is None:
            return
        call.notes.repeats = f"{found.rule}: {found.times}"
        if self.settings.mode == "enforce" and not (history.refused and paused >= self._pause):
            history.refused = True
            raise Repeating(self._render_refusal(call, found))

    # --- recording -------------------------------------------------------------------------------

    def _record_error(
        self, call: Call, hashed: int | None, run: str, every: bool, error: HubError
    ) -> None:
        text = _ID.sub("#", str(error)[:LOOKED_AT])
        warning = self._record(call, hashed, run, every, hash((error.kind, text)), True)
        if warning:
            _add_to_error(error, warning)

    def _record_result(
        self, call: Call, hashed: int | None, run: str, every: bool, result: Result
    ) -> Result:
        warning = self._record(call, hashed, run, every, hash_result(result), result.failed)
        return _add_to_result(result, warning) if warning else result

    def _record(
        self, call: Call, hashed: int | None, run: str, every: bool, outcome: int, failed: bool
    ) -> str:
        """Adds the call to its run, and returns the warning for its result, if there is one.
        `hashed` is the hash of the call, if it is known."""
        traits = self._find_traits(call.tool)
        runs = self._runs.get(call.principal.key)
        history = runs.get(run) if runs is not None else None
        now = self._clock()
        if runs is None or history is None:
            history = self._add_history(call, run, now)
        else:
            runs.move_to_end(run)
        history.at = now
        entry = PastCall(
            hash_call(call) if hashed is None else hashed, outcome, failed, traits.is_polled
        )
        history.record(call.tool.name, entry, traits.reads_only, every)
        if not every and history.successes >= FORGIVEN:
            self._drop_history(call, run)
            return ""
        limits = self._polls_warned if traits.is_polled else self._warned
        found = history.find_repetition(limits, None, "", every)
        if found is None:
            return ""
        call.notes.repeats = f"{found.rule}: {found.times}"
        return self._render_warning(call, found, traits)

    # --- the table of runs -----------------------------------------------------------------------

    def _add_history(self, call: Call, name: str, now: float) -> CallHistory:
        if now - self._swept > self.settings.window_secs:
            self._sweep(now)
        runs = self._runs.setdefault(call.principal.key, OrderedDict())
        history = runs[name] = CallHistory(now, self.settings.cycles)
        if len(runs) > MAX_RUNS:
            runs.popitem(last=False)
        return history

    def _drop_history(self, call: Call, name: str) -> None:
        runs = self._runs[call.principal.key]
        del runs[name]
        if not runs:
            del self._runs[call.principal.key]

    def _sweep(self, now: float) -> None:
        """Forgets all runs that have ended or paused."""
        self._swept = now
        oldest = now - self.settings.window_secs
        for key, runs in list(self._runs.items()):
            for name in [name for name, history in runs.items() if history.at < oldest]:
                del runs[name]
            if not runs:
                del self._runs[key]

    # --- tools -----------------------------------------------------------------------------------

    def _find_traits(self, tool: Tool) -> ToolTraits:
        known = self._traits.get(tool.name)
        if known is not None and known[0] is tool:
            return known[1]
        hints = tool.definition.get("annotations")
        hints = hints if isinstance(hints, dict) else {}
        is_trusted = tool.target.traits.facts.trust >= TRUSTED
        reads_only = hints.get("readOnlyHint") is True
        is_polled = (reads_only and hints.get("idempotentHint") is True and is_trusted) or any(
            fnmatchcase(tool.name, pattern) for pattern in self.settings.polling
        )
        if len(self._traits) >= MAX_CLASSIFIED:
            self._traits.clear()
        traits = ToolTraits(reads_only, is_polled)
        self._traits[tool.name] = tool, traits
        return traits

    # --- texts for models ------------------------------------------------------------------------

    def _render_warning(self, call: Call, found: Repetition, traits: ToolTraits) -> str:
        name, settings = call.tool.name, self.settings
        end = "and is refused if it continues"
        if found.rule == IDENTICAL:
            most = settings.polling_refuse if traits.is_polled else settings.refuse
            end = f"and is refused as number {most}"
        if settings.mode == "warn":
            end = ""
        what = f'"{name}" {_describe(found)}'
        return f"[loop guard: {what}{', ' * bool(end)}{end}. {_ADVICE}.]"

    def _render_refusal(self, call: Call, found: Repetition) -> str:
        pause = f"a pause of {self._pause:g} s"
        other = "another tool has returned something new" if found.rule == NO_PROGRESS else ""
        return (
            f'"{call.tool.name}" was refused: it {_describe(found)}. {_ADVICE}. It is accepted '
            f"again after {other or 'a different call'} or {pause}; if it is meant to be called "
            "repeatedly, add it to [limits.loop] polling"
        )


_ADVICE = "Change the arguments, use another tool, or report what prevents progress"


def _describe(found: Repetition) -> str:
    if found.rule == IDENTICAL:
        how = "failed in the same way" if found.failed else "returned the same result"
        return f"was called {found.times} times in a row with the same arguments and {how}"
    if found.rule == CYCLE:
        return (
            f"is part of a cycle of {found.period} calls that was repeated {found.times} times "
            "with the same arguments and the same results"
        )
    return f"is one of {found.times} calls in a row that brought no new result"


def hash_call(call: Call) -> int:
    """Python's hash of text has a key of its own in every process."""
    arguments = call.arguments
    if not arguments:
        return hash(call.tool.name)
    try:
        encoded = _sorted(arguments)
    except Exception:  # numbers over 64 bits, lone surrogates: still JSON
        encoded = json.dumps(arguments, sort_keys=True, default=repr).encode()
    return hash((call.tool.name, encoded))


def hash_result(result: Result) -> int:
    """Of a failure, without the ids in it."""
    hashes: list[int] = []
    for block in result.content:
        text = block.get("text") if type(block) is dict else None
        if type(text) is str:
            hashes.append(hash(_ID.sub("#", text[:LOOKED_AT]) if result.failed else text))
        else:
            hashes.append(_hash_value(block))
    if result.structured is not ABSENT and not hashes:
        hashes.append(_hash_value(result.structured))
    return hash((result.failed, *hashes))


def _hash_value(value: Any) -> int:
    try:
        return hash(_sorted(value))
    except Exception:  # what cannot be compared is new
        return id(value)


# --- warnings in results and errors ---------------------------------------------------------------


def _add_to_result(result: Result, warning: str) -> Result:
    block = {"type": "text", "text": warning}
    content = [*result.content]
    if not content and result.structured is not ABSENT:
        # The server renders structured content as text only if there is none.
        content = [{"type": "text", "text": msgspec.json.encode(result.structured).decode()}]
    artifacts = result.artifacts
    if artifacts:
        artifacts = [*artifacts, Artifact(id="loop-guard", content=[block])]
    return replace(
        result,
        content=[*content, block],
        artifacts=artifacts,
        status_message=_add_to_status(result.status_message, block),
        size=-1,
    )


def _add_to_error(error: HubError, warning: str) -> None:
    error.args = (f"{error} {warning}", *error.args[1:])
    block = {"type": "text", "text": warning}
    error.status_message = _add_to_status(error.status_message, block)
    if isinstance(error, WorkFailed) and error.native is not None:
        error.native = {**error.native, "message": f"{error.native.get('message', '')} {warning}"}


def _add_to_status(said: StatusMessage | None, block: Mapping[str, Any]) -> StatusMessage | None:
    if said is None or not said.content:
        return said
    return replace_dataclass(said, content=[*said.content, block])
