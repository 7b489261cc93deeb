"""Carries events to those who look on (observers) and those who may refuse (gates).

An observer that fails hurts nobody. A gate that fails, or takes too long, refuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dragoman.core.errors import Denied
from dragoman.core.events import Event, PreVerb

log = logging.getLogger(__name__)

E = TypeVar("E", bound=Event)
Observer = Callable[[Any], None]
Gate = Callable[[PreVerb], Awaitable[None]]

GATE_SECONDS = 0.25


class Bus:
    def __init__(self) -> None:
        self._observers: dict[type[Event], list[Observer]] = {}
        self._gates: list[tuple[str, Gate]] = []
        self.attended = False
        """Whether anybody hears of calls before they are made, so that nothing is made for nobody.
        """

    def observe(self, kind: type[E], observer: Callable[[E], None]) -> None:
        self._observers.setdefault(kind, []).append(observer)
        self.attended |= kind is PreVerb

    def gate(self, name: str, gate: Gate) -> None:
        """`gate` hears of every call before it is made and refuses it by raising `Denied`."""
        self._gates.append((name, gate))
        self.attended = True

    def heard(self, kind: type[Event]) -> bool:
        """Whether anybody listens, so that nothing is made for nobody."""
        return kind in self._observers

    def emit(self, event: Event) -> None:
        for observer in self._observers.get(type(event), ()):
            try:
                observer(event)
            except Exception:
                log.exception("an observer of %s failed", type(event).__name__)

    async def ask(self, event: PreVerb) -> None:
        """Puts `event` to every gate; returns if all let it pass."""
        for name, gate in self._gates:
            try:
                async with asyncio.timeout(GATE_SECONDS):
                    await gate(event)
            except Denied:
                raise
            except Exception as error:
                log.exception("gate %s failed, the call is refused", name)
                verb = event.call.tool.name
                raise Denied(f'"{verb}" was refused: the gate "{name}" failed') from error
