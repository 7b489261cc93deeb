"""Keeps labelled data from where it must not go: secrets from the network, foreign text from
commands.

`CollectLabels` finds the labels that a call carries, before the policies read them. `Taint` checks
them against the rules of the tool, and labels the result. Labels belong to the chain: whatever a
model makes of the data, it keeps them. Rules apply to the calls of agents and servers; between the
calls of a client, where a person or another system decides, flows are recorded unless `[taint]
clients` says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Hashable, Iterable, Mapping
from hashlib import sha256
from secrets import token_hex
from typing import Any

from dragoman.core.approvals import ApprovalRule, join_rules
from dragoman.core.backoff import Backoff
from dragoman.core.call import ABSENT, FORM, Call, Question, Result
from dragoman.core.call_chains import CallChains, RunningCall
from dragoman.core.errors import (
    InvalidInput,
    NotFound,
    Refused,
    StorageFailed,
    Tainted,
    WorkFailed,
)
from dragoman.core.local_agents import AGENT as LOCAL_AGENT
from dragoman.core.pipeline import Next
from dragoman.core.question_handles import can_answer
from dragoman.core.structs import replace
from dragoman.core.taint import (
    PII,
    SECRET,
    USER_INPUT,
    FlowRule,
    LabelOrigin,
    Origins,
    ToolFlows,
    list_strings,
)
from dragoman.core.tool import Nowhere
from dragoman.guards.carried_labels import (
    CarriedLabels,
    build_conversation_key,
    list_conversation_keys,
    list_read_keys,
    list_written_keys,
)
from dragoman.guards.detectors import find_credential, find_personal_data
from dragoman.guards.runs import find_client_run
from dragoman.guards.tool_flows import ASK, ENFORCE, OBSERVE, ToolFlowTable
from dragoman.wire.json import decode_reply

MAX_OPEN = 10_000
"""Questions that wait for an answer, and approvals that are remembered."""
MAX_VALUES = 10_000
"""Values of a result that are searched."""
QUESTION = "taint"
"""The name of the question in `ask` mode."""
ALLOW = "allow"
_SCHEMA = {
    "type": "object",
    "properties": {ALLOW: {"type": "boolean", "title": "Allow this call"}},
    "required": [ALLOW],
}


LABEL_PAUSES = Backoff(first=0.1, longest=5.0)
LABEL_RETRIES = 10
"""Half a minute of pauses in all."""


class CollectLabels:
    """Finds the labels that a call carries: those of its chain, of its client's run, and of the
    conversation that it continues."""

    def __init__(self, chains: CallChains, table: ToolFlowTable, carried: CarriedLabels) -> None:
        self._chains = chains
        self._table = table
        self._carried = carried

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        running = self._chains.find_running(call.trace)
        if running is None:  # an unknown name
            return next(call)
        chain, above = running.chain, running.parent
        if above is None:
            enforces = self._table.settings.clients == ENFORCE
            origins = self._carried.find_run(call, enforces)
            if origins and enforces:
                chain.add_labels(origins)
            elif origins:
                chain.observed = frozenset(origins)
                chain.origins = dict(origins)
        if call.handle is not None:
            chain.add_labels(self._carried.resume(call.trace.id))
        if call.tool.agent is not None:
            if above is None or _is_routed_for_client(call, above):
                origin = LabelOrigin(call.tool.name, call.trace.id, f"message of {call.principal}")
                chain.add_labels({USER_INPUT: origin})
            if key := build_conversation_key(call):
                chain.add_labels(self._carried.find_stored([key]))
        labels = above.labels if above is not None else chain.labels | chain.observed
        if labels:
            call.notes.labels = labels
        return next(call)


class Taint:
    def __init__(
        self,
        chains: CallChains,
        table: ToolFlowTable,
        carried: CarriedLabels,
        parks: bool = False,
        pauses: Backoff = LABEL_PAUSES,
    ) -> None:
        """`parks`: a later stage parks calls that need an approval; otherwise those whose client
        cannot be asked are refused. `pauses` are those between attempts to store labels."""
        self._pauses = pauses
        self._parks = parks
        self._chains = chains
        self._table = table
        self._carried = carried
        self._open: OrderedDict[str, None] = OrderedDict()
        """The questions that wait for an answer, by a random id that only their handles have."""
        self._approved: OrderedDict[Hashable, None] = OrderedDict()
        """Calls that were approved and whose target has asked questions of its own since."""

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        tool = call.tool
        running = self._chains.find_running(call.trace)
        if running is None or isinstance(tool.target, Nowhere):
            return next(call)
        flows = self._table.find(tool)
        is_alone = running.parent is None and tool.agent is None and not find_client_run(call)
        if is_alone and call.handle is None and not call.notes.labels:
            running.sources = flows.labels
            return next(call)  # it carries no labels, and nothing carries its labels on
        return self._run(next, call, flows, running, is_alone)

    async def _run(
        self, next: Next, call: Call, flows: ToolFlows, running: RunningCall, is_alone: bool
    ) -> Result:
        above = running.parent
        approved = None
        sends = call.task is None or not call.sends_nothing
        if call.handle is not None and call.handle in self._open:
            approved = _build_approval_key(call)
            call = self._take_answer(call)
        if flows.rules and call.notes.labels and sends:
            approved = approved or self._find_approval(call)
            question = self._check(call, flows, running, approved is not None)
            if question is not None:
                return question
        # What the target says while it serves the call has its labels.
        said = above.sources if above is not None else frozenset()
        running.sources = flows.labels | said if flows.labels else said
        if is_alone:
            return await next(call)  # nothing carries its labels on
        self._carried.store.check()  # nothing is called whose result could not be labelled
        if call.arguments and not flows.reads_only and sends:
            self._label_stored(call, flows, running)
        result: Result | None = None
        try:
            result = await next(call)
        except (Refused, InvalidInput, NotFound, StorageFailed):
            raise  # nothing was reached
        except Exception:
            try:
                self._label_outcome(call, flows, running, None)  # errors are texts of the target
            except StorageFailed:
                await self._label_later(call, flows, running, None)
            raise
        finally:
            if approved is not None and result is not None and result.questions is not None:
                _remember(self._approved, approved)
        try:
            self._label_outcome(call, flows, running, result)
        except StorageFailed:
            await self._label_later(call, flows, running, result)
        if result.questions is not None and running.chain.labels and above is None:
            kept = {label: _find_origin(running, label) for label in running.chain.labels}
            self._carried.suspend(call.trace.id, kept)
        return result

    # --- rules ------------------------------------------------------------------------------------

    def _check(
        self, call: Call, flows: ToolFlows, running: RunningCall, is_approved: bool
    ) -> Result | None:
        """Raises `Tainted`, or returns the question that must be answered first; None if the call
        may be made."""
        rule = self._find_rule(call, flows, running)
        if rule is None or rule[1].mode == OBSERVE:
            return None
        if rule[1].mode == ENFORCE:
            raise Tainted(self._render_refusal(call, flows, running, *rule))
        if not is_approved:
            return self._ask(call, flows, running, *rule)
        for one in call.notes.flows:
            one["approved_by"] = call.principal.label
        return None

    def _find_rule(
        self, call: Call, flows: ToolFlows, running: RunningCall
    ) -> tuple[str, FlowRule] | None:
        """Finds the strictest rule that the call's labels meet, with its label."""
        above = running.parent
        enforced = above.enforced_labels if above is not None else running.chain.labels
        found: tuple[str, FlowRule] | None = None
        noted: list[dict[str, str]] = []
        for label in sorted(call.notes.labels):
            rule = flows.rules.get(label)
            if rule is None:
                continue
            if label not in enforced and rule.mode != OBSERVE:
                rule = FlowRule(OBSERVE, rule.sink)
            origin = _find_origin(running, label)
            noted.append(
                {
                    "rule": f"{label} -> {rule.sink}",
                    "mode": rule.mode,
                    "from": origin.tool,
                    "trace": origin.trace,
                    "why": origin.why,
                }
            )
            if found is None or _MODES.index(rule.mode) < _MODES.index(found[1].mode):
                found = label, rule
        call.notes.flows = noted
        return found

    def _render_refusal(
        self, call: Call, flows: ToolFlows, running: RunningCall, label: str, rule: FlowRule
    ) -> str:
        name = call.tool.name
        origin = _render_origin(_find_origin(running, label))
        sink = f"a sink of kind {rule.sink} ({flows.sinks[rule.sink]})"
        return (
            f'"{name}" was refused by the taint rule {label} -> {rule.sink}: this chain of calls '
            f"has seen data labelled {label}, {origin}, and the tool is {sink}. Continue "
            f"without that data, or ask the operator to allow it: [[taint.tools]] match = "
            f'"{name}", allow = ["{label}"]'
        )

    # --- approvals --------------------------------------------------------------------------------

    def _take_answer(self, call: Call) -> Call:
        """Judges the answer to a question of this guard, whatever labels the call has now."""
        assert call.handle is not None
        del self._open[call.handle]
        if not _is_approval(call.answers):
            raise Tainted(f'"{call.tool.name}" was refused: its labelled data was not approved')
        return replace(call, answers=None, handle=None)

    def _find_approval(self, call: Call) -> Hashable | None:
        """Finds the approval of a call that continues after a question of its target, and uses it
        up: each other call needs one of its own."""
        if call.handle is None or not self._approved:
            return None
        key = _build_approval_key(call)
        if key not in self._approved:
            return None
        del self._approved[key]
        return key

    def _ask(
        self, call: Call, flows: ToolFlows, running: RunningCall, label: str, rule: FlowRule
    ) -> Result | None:
        """Returns the question; None if the call waits for another person in a later stage."""
        name = call.tool.name
        origin = _render_origin(_find_origin(running, label))
        # A target that calls back must not approve its own flow; the calls of local agents carry
        # the features of the client that they work for.
        is_foreign = bool(call.principal.serves) and call.principal.kind != LOCAL_AGENT
        if is_foreign or not can_answer(FORM, call.features):
            if self._parks:
                reason = f"the taint rule {label} -> {rule.sink}: it may receive data {origin}"
                call.notes.approval = join_rules(call.notes.approval, ApprovalRule(reason))
                return None
            raise Tainted(
                f'"{name}" was refused: the taint rule {label} -> {rule.sink} needs the approval '
                f"of a person, and this client cannot be asked. The data came {origin}"
            )
        message = (
            f'Allow "{name}"? It may receive data labelled {label}, {origin}, and it is a sink of '
            f"kind {rule.sink} ({flows.sinks[rule.sink]})."
        )
        id = f"taint-{token_hex(16)}"
        _remember(self._open, id)
        body = {"message": message, "requestedSchema": _SCHEMA}
        return Result(questions={QUESTION: Question(FORM, body)}, handle=id)

    # --- labels -----------------------------------------------------------------------------------

    def _label_stored(self, call: Call, flows: ToolFlows, running: RunningCall) -> None:
        """Labels the data that the call may store, before it is stored."""
        above = running.parent
        labels = above.enforced_labels if above is not None else running.chain.labels
        labels -= {USER_INPUT}  # every message of a client has it
        if not labels:
            return
        origins = {label: _find_origin(running, label) for label in labels}
        for key in list_written_keys(call, flows.stored_by):
            self._carried.store.add_labels(key, origins)

    def _find_stored(self, call: Call, flows: ToolFlows) -> Origins:
        """Finds the labels of what a call has read; it may be in what the call wrote."""
        stored = self._carried.find_stored(list_read_keys(call, flows.stored_by))
        if stored and call.tool.list_written is not None and not flows.reads_only:
            for key in call.tool.list_written(call):
                self._carried.store.add_labels(key, stored)
        return stored

    async def _label_later(
        self, call: Call, flows: ToolFlows, running: RunningCall, result: Result | None
    ) -> None:
        """Labels an outcome whose labels could not be stored. The call has taken effect, and its
        result must not leave the hub without its labels: while their store fails, this tries
        again, and in the end raises `WorkFailed`."""
        for attempt in range(1, LABEL_RETRIES + 1):
            await asyncio.sleep(self._pauses.delay(attempt))
            try:
                return self._label_outcome(call, flows, running, result)
            except StorageFailed as error:
                if attempt == LABEL_RETRIES:
                    raise WorkFailed(
                        f'"{call.tool.name}" was called and may have taken effect; its result is '
                        f"withheld, because its taint labels cannot be stored: {error}"
                    ) from error

    def _label_outcome(
        self, call: Call, flows: ToolFlows, running: RunningCall, result: Result | None
    ) -> None:
        tool, trace, chain = call.tool, call.trace, running.chain
        why = flows.sources
        if result is not None and flows.detects and (found := self._detect(result)):
            why = {**why, **found}
        if result is not None and (flows.secret_fields or flows.pii_fields):
            why = {**why, **_find_fields(result, flows)}
        store_is_empty = self._carried.store.is_empty
        if not why and store_is_empty and tool.agent is None and not chain.labels:
            return  # the common case
        origins = {label: LabelOrigin(tool.name, trace.id, text) for label, text in why.items()}
        if not store_is_empty:
            stored = self._find_stored(call, flows)
            origins = {**stored, **origins}
            why = {**{label: f"stored by {one.tool}" for label, one in stored.items()}, **why}
        if why:
            call.notes.sources = why
        if running.parent is not None or tool.agent is not None:
            chain.add_labels(origins)
        if tool.agent is not None:
            kept = {label: _find_origin(running, label) for label in chain.labels}
            kept.pop(USER_INPUT, None)
            for key in list_conversation_keys(call) if kept else ():
                self._carried.store.add_labels(key, kept)
        if running.parent is None:
            if chain.labels:  # those of the calls that it has led to
                origins = {**(chain.origins or {}), **origins}
                origins.pop(USER_INPUT, None)
            is_stored = self._table.settings.clients == ENFORCE
            self._carried.add_to_run(call, origins, is_stored)

    def _detect(self, result: Result) -> dict[str, str]:
        wanted = self._table.settings.detect
        found: dict[str, str] = {}
        for text in _list_texts(result):
            if SECRET in wanted and (kind := find_credential(text)):
                found.setdefault(SECRET, kind)
            if PII in wanted and (kind := find_personal_data(text)):
                found.setdefault(PII, kind)
        return found


_MODES = (ENFORCE, ASK, OBSERVE)


def _is_routed_for_client(call: Call, above: RunningCall) -> bool:
    """Whether a client's message reaches the agent through the router, which wrote none of it."""
    return call.routed is not None and above.parent is None and not call.principal.serves


def _find_origin(running: RunningCall, label: str) -> LabelOrigin:
    """Finds the call that brought a label to the chain."""
    origins = running.chain.origins
    if origins is not None and label in origins:
        return origins[label]
    above = running.parent
    while above is not None:  # a target that waits for this call, and speaks by making it
        if label in above.sources and (above.parent is None or label not in above.parent.sources):
            return LabelOrigin(above.trace.verb, above.trace.id, "it makes this call")
        above = above.parent
    return LabelOrigin("", running.trace.id)


def _render_origin(origin: LabelOrigin) -> str:
    if not origin.tool:
        return f"from an earlier call of trace {origin.trace[:8]}"
    why = f" ({origin.why})" if origin.why else ""
    return f'from "{origin.tool}"{why} in trace {origin.trace[:8]}'


def _build_approval_key(call: Call) -> Hashable:
    """A digest stands for the arguments, which may be large."""
    arguments = json.dumps(call.arguments, sort_keys=True, default=repr)
    digest = sha256(arguments.encode("utf-8", "replace")).digest()
    return call.trace.id, call.principal.key, call.tool.name, digest


def _is_approval(answers: Mapping[str, Any] | None) -> bool:
    answer = (answers or {}).get(QUESTION)
    if not isinstance(answer, Mapping) or answer.get("action", "accept") != "accept":
        return False
    content = answer.get("content")
    return isinstance(content, Mapping) and content.get(ALLOW) is True


def _remember(kept: OrderedDict[Any, None], key: Any) -> None:
    kept[key] = None
    if len(kept) > MAX_OPEN:
        kept.popitem(last=False)


def _list_texts(result: Result) -> Iterable[str]:
    """Lists the texts of a result. Structured content is repeated as text by most servers."""
    has_text = False
    for block in result.content:
        if not isinstance(block, dict):
            continue
        text = block.get("text")
        if text is None and isinstance(resource := block.get("resource"), dict):
            text = resource.get("text")
        if isinstance(text, str):
            has_text = True
            yield text
    if not has_text and result.structured is not ABSENT:
        for _, text in list_strings(result.structured, MAX_VALUES):
            yield text


def _find_fields(result: Result, flows: ToolFlows) -> dict[str, str]:
    """Finds the declared members in structured content, or in texts that are JSON."""
    values = [result.structured]
    if result.structured is ABSENT:
        values = []
        for text in _list_texts(result):
            if text.lstrip()[:1] in ("{", "["):
                try:
                    values.append(decode_reply(text.encode()))
                except ValueError:
                    continue
    found: dict[str, str] = {}
    for value in values:
        for name, text in list_strings(value, MAX_VALUES):
            if not text:
                continue
            if name.lower() in flows.secret_fields:
                found[SECRET] = f'the field "{name}"'
            if name.lower() in flows.pii_fields:
                found[PII] = f'the field "{name}"'
    return found
