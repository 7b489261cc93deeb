"""How an agent of others is: looked at again and again, and offered only while it can be reached.

A look reads the card by its tag and asks for a task that there cannot be: that proves the address,
the dialect and the credential, and does nothing. A card that is not accepted is not gone by.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

from dragoman.a2a.client.card_discovery import FoundCard
from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import AgentHttpStatus
from dragoman.a2a.config import WIRE_SKILL_ONLY, ExternalAgent
from dragoman.a2a.protocol.errors import (
    PERMISSION_DENIED,
    TASK_NOT_FOUND,
    UNAUTHENTICATED,
    A2aError,
)
from dragoman.a2a.remote.circuit_breaker import CircuitBreaker
from dragoman.core.call import Call, Result
from dragoman.core.errors import ConfigError, HubError, TimedOut
from dragoman.core.tool import EXTERNAL, TRUSTED, TargetTraits
from dragoman.core.urls import render_origin

log = logging.getLogger(__name__)

HEALTHY, DEGRADED, UNREACHABLE, UNKNOWN = "healthy", "degraded", "unreachable", "unknown"
REACHED = frozenset({HEALTHY, DEGRADED})
FAILURES = 3
"""So many in a row, and it is unreachable."""
SLOW_SECONDS = 5.0
ASK_SECONDS = 10.0
AGAIN_SECONDS = 5.0
"""Until the next look at one that has just failed."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Between two looks at one that is unreachable."""
TRUST = {"external": EXTERNAL, "trusted": TRUSTED}


class AgentHealth:
    """What the looks at an agent have come to. Pure."""

    def __init__(self) -> None:
        self.state = UNKNOWN
        self.reason = "it is being looked for"
        self.latency: float | None = None
        """Seconds that its last answer took."""
        self.failures = 0
        """In a row."""
        self._gone = 0
        """Those of them that have found it unreachable."""

    def record_answer(self, seconds: float | None, wrong: str = "") -> None:
        """`wrong` says what is not right about its answers."""
        self.failures = self._gone = 0
        self.latency = seconds if seconds is not None else self.latency
        if not wrong and seconds is not None and seconds > SLOW_SECONDS:
            wrong = f"it took {seconds:.1f} s to answer"
        self.state, self.reason = (DEGRADED if wrong else HEALTHY), wrong

    def record_failure(self, why: str) -> None:
        """One that was never found is unreachable at once."""
        self.failures += 1
        gone = self.state in (UNKNOWN, UNREACHABLE) or self.failures >= FAILURES
        self._gone += gone
        self.state, self.reason = (UNREACHABLE if gone else DEGRADED), why

    def next_pause(self, every: float) -> float:
        """Seconds until the next look."""
        if self.state == UNREACHABLE:
            return min(LONGEST_PAUSE, FIRST_PAUSE * float(1 << min(self._gone - 1, 10)))
        return min(every, AGAIN_SECONDS) if self.failures else every


class Watched(Protocol):
    """The target that an agent of others is."""

    name: str
    entry: ExternalAgent
    traits: TargetTraits
    client: A2aClient
    breaker: CircuitBreaker
    reason: str
    """Why it is not there."""
    was_found: bool
    """Whether it was offered since the hub has started."""

    def offer(self, probed: ProbedAgent, card_id: str) -> None:
        """Its tools are what `peer` says, and its calls may be made; nothing is done where that is
        so already. Raises `ConfigError` where some of them are another's, and offers the rest."""

    def withdraw(self, why: str) -> None:
        """It has no tools now."""

    async def stop(self) -> None:
        """It is withdrawn, and what it was doing is ended."""

    async def run(self, call: Call) -> Result: ...


class CardPins(Protocol):
    def review_card(self, agent: str, raw: Mapping[str, Any], mode: str, /) -> str | None:
        """Why the card of that agent is not to be gone by; None where it is."""


class HealthWatch:
    """One agent's."""

    def __init__(
        self,
        agent: Watched,
        id: str,
        *,
        every: float,
        pins: CardPins,
        keep: Callable[[FoundCard], None],
        told: Callable[[str, str], None],
        changed: Callable[[], None],
    ) -> None:
        """`every` so many seconds it is looked at; `keep` is handed each card that is new, `told`
        its state and the reason whenever one of them has changed, and `changed` is called when its
        target's facts have."""
        self.agent = agent
        self.id = id
        self.health = AgentHealth()
        self.probed: ProbedAgent | None = None
        self.quarantine_reason = ""
        """Why its card is not gone by."""
        self.fetched_at: float | None = None
        self.seen_at: float | None = None
        self._every = every
        self._pins = pins
        self._save_card = keep
        self._publish = told
        self._facts_changed = changed
        self._found: FoundCard | None = None
        """The card as it was last, accepted or not."""
        self._offered: ProbedAgent | None = None
        self._checking: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._checked = asyncio.Event()
        """Since the loop has begun to wait."""
        self._first = asyncio.Event()
        self._stopped = False
        self._under_way = False
        self._again = False
        """Whether there is a reason to look again as soon as the look under way has ended."""

    # --- from start to end ---------------------------------------------------------------------

    def start(self) -> None:
        if not self._stopped:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self._stopped = True
        for task in (self._loop, self._checking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._first.set()
        await self.agent.stop()

    async def wait_for_first_check(self) -> None:
        """Until the first look has come to something."""
        await self._first.wait()

    async def refresh(self) -> None:
        """Looks now. What a look under way has seen may be out of date: another one follows it."""
        if not self._start_check() and self._under_way:
            self._again = True
        await self._wait_for_check()

    async def _wait_for_check(self) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])

    def check_soon(self) -> None:
        """Looks soon: what decides of its card has changed. For that nobody waits."""
        self._again = not self._start_check()

    def _start_check(self) -> bool:
        """Whether a look begins now: one may be under way."""
        if self._stopped or (self._checking is not None and not self._checking.done()):
            return False
        self._checking = asyncio.get_running_loop().create_task(self._run_checks())
        return True

    async def _run_checks(self) -> None:
        await self._check()
        while self._again:
            self._again = False
            await self._check()

    async def _run(self) -> None:
        while True:
            self._start_check()
            await self._wait_for_check()
            self._checked.clear()
            while await self._wait_for_other_check(self.health.next_pause(self._every)):
                self._checked.clear()  # the next look is so long after that one

    async def _wait_for_other_check(self, pause: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):
                await self._checked.wait()
            return True
        return False

    # --- one look --------------------------------------------------------------------------------

    async def _check(self) -> None:
        agent, url = self.agent, self.agent.entry.url
        before = self.health.state, self.health.reason
        self._under_way = True
        try:
            async with asyncio.timeout(agent.entry.timeout_secs):
                found = await agent.client.refetch_card(url)
                self.fetched_at = time.time()
                await self.accept_card(found)
        except TimeoutError:
            self._record_failure(f"it did not answer within {agent.entry.timeout_secs:g} s")
        except (HubError, A2aError) as error:
            self._record_failure(str(error))
        except Exception as error:  # or nobody would look at it any more
            log.exception('agent "%s" could not be looked at', agent.name)
            self._record_failure(repr(error))
        self._under_way = False
        self._publish_change(before)
        self._first.set()
        self._checked.set()

    async def accept_card(self, found: FoundCard) -> None:
        """Goes by the card that was found if it may, and finds out whether the agent answers."""
        if not self._is_accepted(found):
            return
        agent, url = self.agent, self.agent.entry.url
        probed = self.probed = agent.client.adopt_card(url, found)
        await agent.client.find_probed(probed)
        if agent.entry.wire == WIRE_SKILL_ONLY:
            # It need know nothing but how to be sent a message, which would not be without effect.
            self.health.record_answer(None)
        else:
            begun = time.monotonic()
            wrong = await check_agent(agent.client, probed)
            self.health.record_answer(time.monotonic() - begun, wrong)
        self.seen_at = time.time()
        agent.breaker.record_success()
        self._update_facts()  # first: what is offered is judged by it
        self._offer(probed)

    def _is_accepted(self, found: FoundCard) -> bool:
        """Before anything is sent where the card points."""
        if found is not self._found:
            self._found = found
            self._save_card(found)
        entry = self.agent.entry
        why = self._pins.review_card(entry.name, found.raw, entry.pin)
        self.quarantine_reason = why or ""
        if why is not None:
            self._withdraw(why)
            self.health.record_answer(None, why)
            return False
        return True

    def _offer(self, probed: ProbedAgent) -> None:
        agent = self.agent
        try:
            agent.offer(probed, self.id)
        except ConfigError as error:
            probed.add_finding(str(error))
        if self._offered is probed:
            return
        self._offered = probed
        log.info(
            'agent "%s" at %s is "%s": %d skills, %s',
            agent.name,
            render_origin(agent.entry.url),
            line(probed.card["name"]),
            len(probed.card["skills"]),
            probed.endpoint,
        )
        for finding in probed.findings:
            log.warning('agent "%s": %s', agent.name, line(finding))

    def _withdraw(self, why: str) -> None:
        self._offered = None
        self.agent.withdraw(why)

    def _record_failure(self, why: str) -> None:
        self.health.record_failure(why)
        if self.health.state == UNREACHABLE:
            self._withdraw(why)

    # --- what others know of it -------------------------------------------------------------------

    def apply_trust(self) -> None:
        """After its entry says something else of how far it is trusted."""
        if not self._update_facts():
            return
        if self._offered is not None:
            self._offer(self._offered)  # what comes out of its tools is labelled by it
        self._publish(self.health.state, f'its trust is now "{self.agent.entry.trust}"')

    def apply_pin_mode(self) -> None:
        """After its entry says that it is held in another way: nothing of it is offered until all
        has been looked at in that way."""
        self._first.clear()
        self._withdraw("it is looked at again")
        self.check_soon()

    def _publish_change(self, before: tuple[str, str]) -> None:
        now = self.health.state, self.health.reason
        self._update_facts()
        if now == before:
            return
        if self.health.state != HEALTHY:
            log.warning(
                'agent "%s" at %s is %s: %s; it is looked at again',
                self.agent.name,
                render_origin(self.agent.entry.url),
                self.health.state,
                line(self.health.reason),
            )
        self._publish(*now)

    def _update_facts(self) -> bool:
        """Whether policies now know something else of it."""
        facts = replace(
            self.agent.traits.facts,
            trust=TRUST[self.agent.entry.trust],
            signed=self._found is not None and self._found.signed and not self.quarantine_reason,
            healthy=self.health.state == HEALTHY,
            pinned=not self.quarantine_reason,
        )
        if facts == self.agent.traits.facts:
            return False
        self.agent.traits = replace(self.agent.traits, facts=facts)
        self._facts_changed()
        return True


async def check_agent(client: A2aClient, probed: ProbedAgent) -> str:
    """Asks for a task that there cannot be: what is wrong with the answer, nothing where it is
    right. Raises where there is none."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await client.get_task(probed, str(uuid4()))
    except TimeoutError:
        raise TimedOut(f"it did not answer within {ASK_SECONDS:g} s") from None
    except A2aError as error:
        if error.reason == TASK_NOT_FOUND:
            return ""
        if error.reason in (UNAUTHENTICATED, PERMISSION_DENIED):
            return f"it wants other credentials: {line(error.message)[:200]}"
        said = line(error.message)[:200]
        return f"asked for a task that there cannot be, it does not say so but: {said}"
    except AgentHttpStatus as error:
        if error.status >= 500:
            raise
        return str(error)
    return "asked for a task that there cannot be, it says that there is one"


def line(text: str) -> str:
    """For the log: what others say on one line, and nothing that a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", " ".join(text.split()))
