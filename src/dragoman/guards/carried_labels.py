"""The taint labels of data that outlives a chain of calls.

Three things carry them on: the run of a client (its session or context), the conversation with an
agent, and what tools store, such as files. The first is kept in memory, and in the store where the
rules apply to clients; the others are in the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dragoman.core.call import Call
from dragoman.core.conversations import CONTEXT, find_context_in_meta
from dragoman.core.label_keys import (
    RUN,
    STORED,
    build_context_key,
    build_stored_key,
    shorten_key,
)
from dragoman.core.taint import NO_ORIGINS, LabelOrigin, LabelStore, Origins
from dragoman.core.tool import RESOURCE
from dragoman.guards.runs import find_client_run

MAX_RUNS = 1_000
"""Runs of one principal that are remembered; beyond that its least recent one is forgotten."""
MAX_PRINCIPALS = 10_000
MAX_NAMED = 64
"""Values of one argument that name stored data."""
EVERYTHING = "*"


class CarriedLabels:
    def __init__(self, store: LabelStore) -> None:
        self.store = store
        self._suspended: OrderedDict[str, Origins] = OrderedDict()
        """The labels of chains that wait for the answer to a question, by trace: the call that
        brings the answer begins another chain."""
        self._runs: OrderedDict[str, OrderedDict[str, dict[str, LabelOrigin]]] = OrderedDict()
        """By principal and run, the least recent first."""

    # --- the runs of clients ----------------------------------------------------------------------

    def find_run(self, call: Call, is_stored: bool) -> Origins:
        """Finds the labels that earlier calls of the client have collected."""
        runs = self._runs.get(call.principal.key)
        if (runs is None and not is_stored) or not (run := find_client_run(call)):
            return NO_ORIGINS
        found: Origins = runs.get(run, NO_ORIGINS) if runs is not None else NO_ORIGINS
        if is_stored and not self.store.is_empty:
            found = {**self.store.find_labels([_build_run_key(call, run)]), **found}
        return found

    def add_to_run(self, call: Call, origins: Origins, is_stored: bool) -> None:
        run = find_client_run(call)
        if not run or not origins:
            return
        runs = self._runs.get(call.principal.key)
        if runs is None:
            runs = self._runs[call.principal.key] = OrderedDict()
            if len(self._runs) > MAX_PRINCIPALS:
                self._runs.popitem(last=False)
        known = runs.get(run)
        if known is None:
            known = runs[run] = {}
            if len(runs) > MAX_RUNS:
                runs.popitem(last=False)
        new = {label: one for label, one in origins.items() if label not in known}
        if new:
            known.update(new)
            if is_stored:
                self.store.add_labels(_build_run_key(call, run), new)

    # --- chains that wait for an answer -----------------------------------------------------------

    def suspend(self, trace: str, origins: Origins) -> None:
        self._suspended[trace] = origins
        if len(self._suspended) > MAX_PRINCIPALS:
            self._suspended.popitem(last=False)

    def resume(self, trace: str) -> Origins:
        return self._suspended.pop(trace, NO_ORIGINS) if self._suspended else NO_ORIGINS

    # --- keys of the store ------------------------------------------------------------------------

    def find_stored(self, keys: list[str]) -> Origins:
        return NO_ORIGINS if not keys or self.store.is_empty else self.store.find_labels(keys)


def list_conversation_keys(call: Call) -> list[str]:
    """Lists the keys of the conversation that a call to an agent had: the client may continue it by
    its session, or by the id that the agent gave it."""
    who, context = call.principal, call.notes.conversation
    keys = {build_conversation_key(call)}
    if context:
        keys.add(build_context_key(who.org, who.label, call.tool.target.name, context))
    return [key for key in keys if key]


def build_conversation_key(call: Call) -> str:
    """Builds the key of the conversation that a call to an agent continues; empty for none."""
    if call.message is not None:
        context = call.message.context
    else:
        named = find_context_in_meta(call) or call.arguments.get(CONTEXT)
        context = named if isinstance(named, str) and named else call.session or call.client
    if not context:
        return ""
    who = call.principal
    return build_context_key(who.org, who.label, call.tool.target.name, context)


def list_written_keys(call: Call, stored_by: Sequence[str]) -> list[str]:
    """Lists the keys of the data that a call may store."""
    if call.tool.list_written is not None:
        return list(call.tool.list_written(call))
    return list_stored_keys(call, stored_by)


def list_read_keys(call: Call, stored_by: Sequence[str]) -> list[str]:
    """Lists the keys of the stored data that the result of a call may have."""
    if call.tool.list_written is not None or call.notes.read_keys:
        return list(call.notes.read_keys)
    return list_stored_keys(call, stored_by)


def list_stored_keys(call: Call, stored_by: Sequence[str]) -> list[str]:
    """Lists the keys of the stored data that the arguments of a call name. A path of this machine
    is the same for all targets; other names belong to the target."""
    target = call.tool.target.name
    if call.tool.kind == RESOURCE:
        return [build_stored_key(target, call.tool.remote_name)]
    if EVERYTHING in stored_by:
        return [f"{STORED} {target} {EVERYTHING}"]
    keys: list[str] = []
    for name in stored_by:
        value = call.arguments.get(name)
        if value is None:
            continue
        values = value[:MAX_NAMED] if isinstance(value, list) else [value]
        keys += [build_stored_key(target, one) for one in values if isinstance(one, str) and one]
    return keys


def _build_run_key(call: Call, run: str) -> str:
    return shorten_key(f"{RUN} {call.principal.org}/{call.principal.label} {run}")
