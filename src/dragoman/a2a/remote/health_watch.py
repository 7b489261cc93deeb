"""Checks a remote agent periodically, and offers its tools only while it is reachable.

A check fetches the card by its ETag and asks for a task that cannot exist: this proves the address,
the dialect and the credentials, and has no effect. A card that the pins reject is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from dragoman.a2a.client.card_discovery import FoundCard
from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import AgentHttpStatus
from dragoman.a2a.config import WIRE_SKILL_ONLY
from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.remote.remote_agent import TRUST, RemoteAgent
from dragoman.core.background import start_task
from dragoman.core.backoff import Backoff, add_jitter
from dragoman.core.catalog import UncheckedReason
from dragoman.core.errors import (
    ConfigError,
    HubError,
    LoginRequired,
    StorageFailed,
    TimedOut,
    Unreachable,
)
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.safe_text import escape_line
from dragoman.core.urls import render_origin

log = logging.getLogger(__name__)

HEALTHY, DEGRADED, UNREACHABLE, UNKNOWN = "healthy", "degraded", "unreachable", "unknown"
REACHED = frozenset({HEALTHY, DEGRADED})
FAILURES = 3
"""Failed checks in a row after which an agent is unreachable."""
SLOW_SECONDS = 5.0
ASK_SECONDS = 10.0
AGAIN_SECONDS = 5.0
"""Pause after the first failed checks."""
PAUSES = Backoff(first=1.0, longest=300.0, jitter=0.0)
"""Between checks of an unreachable agent."""

CHECKS_AT_ONCE = 32
"""A hub with a thousand agents would otherwise begin a thousand checks in one moment."""
SLOT_SECONDS = 2.0
"""How long a check counts as running: agents that do not answer must not delay the others."""
LATE_SECONDS = 1.0
"""If the event loop was late by more than this during a check, what the check did not receive in
time is no proof against the agent."""

EXTENDED_SECONDS = 300.0
"""After so many seconds an extended card is fetched again, besides when the public one changes."""

ReviewCard = Callable[[str, Mapping[str, Any], str, bool], str | None]
"""Takes the agent's name, its card, the pin mode and whether the card is the extended one; returns
why the card is rejected, or None."""


class AgentHealth:
    """The outcome of an agent's checks. Pure."""

    def __init__(self) -> None:
        self.state = UNKNOWN
        self.reason = "it was not checked yet"
        self.latency: float | None = None
        """Seconds that its last answer took."""
        self.failures = 0
        """In a row."""
        self._unreachable = 0
        """Those of them that found it unreachable."""
        self._is_uncertain = False
        """Whether the last check has shown nothing."""

    def record_answer(self, seconds: float | None, wrong: str = "") -> None:
        """`wrong` says what is wrong with the answer."""
        self.failures = self._unreachable = 0
        self._is_uncertain = False
        self.latency = seconds if seconds is not None else self.latency
        if not wrong and seconds is not None and seconds > SLOW_SECONDS:
            wrong = f"it took {seconds:.1f} s to answer"
        self.state, self.reason = (DEGRADED if wrong else HEALTHY), wrong

    def record_failure(self, why: str) -> None:
        """An agent that was never found is unreachable at once."""
        self.failures += 1
        self._is_uncertain = False
        unreachable = self.state in (UNKNOWN, UNREACHABLE) or self.failures >= FAILURES
        self._unreachable += unreachable
        self.state, self.reason = (UNREACHABLE if unreachable else DEGRADED), why

    def record_own_delay(self) -> None:
        """The hub was late itself: nothing is known of the agent, which is checked again soon."""
        self._is_uncertain = True

    def next_pause(self, every: float) -> float:
        """Returns the seconds until the next check."""
        if self.state == UNREACHABLE:
            return PAUSES.delay(self._unreachable)
        return min(every, AGAIN_SECONDS) if self.failures or self._is_uncertain else every


class CheckSlots:
    """Bounds the checks of all agents that run at once."""

    def __init__(self, most: int = CHECKS_AT_ONCE) -> None:
        self._free = asyncio.Semaphore(most)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits for a slot, and frees it at the end or after `SLOT_SECONDS`."""
        await self._free.acquire()
        is_held = True

        def free() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(SLOT_SECONDS, free)
        try:
            yield
        finally:
            timer.cancel()
            free()


class HealthWatch:
    def __init__(
        self,
        agent: RemoteAgent,
        id: str,
        *,
        every: float,
        review_card: ReviewCard,
        save_card: Callable[[FoundCard], None],
        publish: Callable[[str, str], None],
        facts_changed: Callable[[], None],
        slots: CheckSlots,
        read_delay: Callable[[], float],
        is_watched: Callable[[], bool] = lambda: False,
    ) -> None:
        """`every` is the interval in seconds. `save_card` gets each new card; `publish` the state
        and its reason, whenever one of them changes. All agents share the `slots` of checks;
        `read_delay` returns by how many seconds the event loop has been late so far. `is_watched`
        says whether another hub checks the agent, which is enough while it is healthy."""
        self._is_watched = is_watched
        self._slots = slots
        self._read_delay = read_delay
        self.agent = agent
        self.id = id
        self.health = AgentHealth()
        self.probed: ProbedAgent | None = None
        self.quarantine_reason = ""
        """Why the current card was rejected; empty if it was not."""
        self.fetched_at: float | None = None
        self.seen_at: float | None = None
        self._every = every
        self._review_card = review_card
        self._save_card = save_card
        self._publish = publish
        self._facts_changed = facts_changed
        self._found: FoundCard | None = None
        """The latest card, accepted or not."""
        self._extended: FoundCard | None = None
        """The latest extended card, accepted or not."""
        self._extended_of: ProbedAgent | None = None
        """The card with which it was fetched."""
        self._extended_until = 0.0
        self._fetch_problem = self._extended_problem = ""
        """Findings of the last fetch, and of the last check."""
        self._offered: ProbedAgent | None = None
        self._checking: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._checked = asyncio.Event()
        """Set by each check; the loop clears it before it waits."""
        self._first = asyncio.Event()
        self._stopped = False
        self._under_way = False
        self._again = False
        """Whether another check follows the running one."""

    # --- lifecycle --------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._stopped:
            self._loop = start_task(self._run())

    async def stop(self) -> None:
        self._stopped = True
        for task in (self._loop, self._checking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._first.set()
        await self.agent.stop()

    async def wait_for_first_check(self) -> None:
        await self._first.wait()

    async def refresh(self) -> None:
        """Checks now. A running check may have read an outdated card: another one follows it."""
        self._extended_until = 0.0
        if not self._start_check() and self._under_way:
            self._again = True
        await self._wait_for_check()

    async def _wait_for_check(self) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])

    def check_soon(self) -> None:
        """Checks in the background, after a decision about its card."""
        self._again = not self._start_check()

    def _start_check(self) -> bool:
        """Starts a check; returns False if one is running."""
        if self._stopped or (self._checking is not None and not self._checking.done()):
            return False
        self._checking = start_task(self._run_checks())
        return True

    async def _run_checks(self) -> None:
        async with self._slots.take():
            await self._check()
        while self._again:
            self._again = False
            async with self._slots.take():
                await self._check()

    async def _run(self) -> None:
        while True:
            if self.health.state != HEALTHY or not self._is_watched():
                self._start_check()
            await self._wait_for_check()
            self._checked.clear()
            while await self._wait_for_other_check(self.health.next_pause(self._every)):
                self._checked.clear()  # the pause starts again after that check

    async def _wait_for_other_check(self, pause: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(add_jitter(pause)):
                await self._checked.wait()
            return True
        return False

    # --- one check --------------------------------------------------------------------------------

    async def _check(self) -> None:
        agent, url = self.agent, self.agent.entry.url
        before = self.health.state, self.health.reason
        late_before = self._read_delay()
        self._under_way = True
        try:
            async with asyncio.timeout(agent.entry.timeout_secs):
                found = await agent.client.refetch_card(url)
                self.fetched_at = time.time()
                await self.accept_card(found)
        except (TimeoutError, TimedOut, Unreachable) as error:
            why = str(error) or f"it did not answer within {agent.entry.timeout_secs:g} s"
            if (delay := self._read_delay() - late_before) > LATE_SECONDS:
                log.info(
                    'agent "%s" is checked again: the hub was late by %.1f s', agent.name, delay
                )
                self.health.record_own_delay()
            else:
                self._record_failure(why)
        except StorageFailed as error:  # the hub's own trouble, which says nothing of the agent
            STORAGE_OUTAGE.note(f"agents cannot be checked: {error}")
            self.health.record_own_delay()
        except (HubError, A2aError) as error:
            self._record_failure(str(error))
        except Exception as error:  # or the agent would never be checked again
            log.exception('agent "%s" could not be checked', agent.name)
            self._record_failure(repr(error))
        self._under_way = False
        self._publish_change(before)
        self._first.set()
        self._checked.set()

    async def accept_card(self, found: FoundCard) -> None:
        """Uses the card if the pins accept it, and checks whether the agent answers."""
        if not self._is_accepted(found):
            return
        agent, url = self.agent, self.agent.entry.url
        probed = self.probed = agent.client.adopt_card(url, found)
        try:
            await self._check_answer(probed)
        except LoginRequired as error:  # it answers; who calls it is asked to log in
            self.health.record_answer(None, "" if agent.is_per_user else str(error))
        self.seen_at = time.time()
        agent.breaker.record_success()
        self._update_facts()  # first: policies judge the offered tools by it
        probed.extended, problem = await self._find_extended(probed)
        probed.replace_finding(self._extended_problem, problem)
        self._extended_problem = problem
        self._offer(probed)

    async def _find_extended(self, probed: ProbedAgent) -> tuple[FoundCard | None, str]:
        """The extended card that the hub gets with its own credentials, if the pins accept it; and
        a finding, or an empty text."""
        agent = self.agent
        declared = probed.card.get("capabilities", {}).get("extendedAgentCard") is True
        if not declared or agent.is_per_user or agent.entry.wire == WIRE_SKILL_ONLY:
            self._extended = None
            return None, ""
        now = time.monotonic()
        if probed is not self._extended_of or now >= self._extended_until:
            self._extended_of, self._extended_until = probed, now + EXTENDED_SECONDS
            self._fetch_problem = await self._fetch_extended(probed)
        if (found := self._extended) is None:
            return None, self._fetch_problem
        why = self._review(found, is_extended=True)
        if why is not None:
            return None, f"its extended card is not used: {why}"
        return found, self._fetch_problem

    async def _fetch_extended(self, probed: ProbedAgent) -> str:
        """Returns a finding, or an empty text. Keeps the earlier card while the agent cannot be
        asked."""
        agent = self.agent
        try:
            async with asyncio.timeout(min(ASK_SECONDS, agent.entry.timeout_secs / 2)):
                found = await agent.client.fetch_extended_card(probed)
        except (TimeoutError, TimedOut, Unreachable) as error:
            why = str(error) or "it did not answer in time"
        except (HubError, A2aError) as error:
            why, self._extended = str(error), None
        else:
            if self._extended is None or self._extended.raw != found.raw:
                self._extended = found
            return ""
        return f"its extended card could not be fetched: {why}"

    async def _check_answer(self, probed: ProbedAgent) -> None:
        client = self.agent.client
        await client.find_probed(probed)
        if self.agent.entry.wire == WIRE_SKILL_ONLY:
            # Such an agent may know nothing but messages, which would have an effect.
            self.health.record_answer(None)
            return
        begun, late_before = time.monotonic(), self._read_delay()
        wrong = await check_agent(client, probed)
        own = self._read_delay() - late_before
        self.health.record_answer(max(0.0, time.monotonic() - begun - own), wrong)

    def _is_accepted(self, found: FoundCard) -> bool:
        """Decides before anything is sent to an address in the card."""
        if found is not self._found:
            self._found = found
            self._save_card(found)
        why = self._review(found)
        self.quarantine_reason = why or ""
        if why is not None:
            self._withdraw(why)
            self.health.record_answer(None, why)
            return False
        return True

    def _review(self, found: FoundCard, is_extended: bool = False) -> str | None:
        """Returns why the pins do not accept a card. Raises `StorageFailed` if that is unknown."""
        entry = self.agent.entry
        why = self._review_card(entry.name, found.raw, entry.pin, is_extended)
        if isinstance(why, UncheckedReason):
            raise StorageFailed(why)
        return why

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
            escape_line(probed.card["name"]),
            len(probed.card["skills"]),
            probed.endpoint,
        )
        for finding in probed.findings:
            log.warning('agent "%s": %s', agent.name, escape_line(finding))

    def _withdraw(self, why: str) -> None:
        self._offered = None
        self.agent.withdraw(why)

    def _record_failure(self, why: str) -> None:
        self.health.record_failure(why)
        if self.health.state == UNREACHABLE:
            self._withdraw(why)

    # --- what policies and listeners know ---------------------------------------------------------

    def apply_trust(self) -> None:
        """Applies a changed trust level of its entry."""
        if not self._update_facts():
            return
        if self._offered is not None:
            self._offer(self._offered)  # the results of its tools are labelled by it
        self._publish(self.health.state, f'its trust is now "{self.agent.entry.trust}"')

    def apply_pin_mode(self) -> None:
        """Applies a changed pin mode: nothing is offered until a check has reviewed all of it."""
        self._first.clear()
        self._withdraw("its pins are being reviewed")
        self.check_soon()

    def _publish_change(self, before: tuple[str, str]) -> None:
        now = self.health.state, self.health.reason
        self._update_facts()
        if now == before:
            return
        if self.health.state != HEALTHY:
            log.warning(
                'agent "%s" at %s is %s: %s; checks continue',
                self.agent.name,
                render_origin(self.agent.entry.url),
                self.health.state,
                escape_line(self.health.reason),
            )
        self._publish(*now)

    def _update_facts(self) -> bool:
        """Updates the facts that policies know; returns whether they changed."""
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
    """Asks for a task that cannot exist. Returns what is wrong with the answer, empty if nothing
    is; raises if there is no answer."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await client.get_task(probed, str(uuid4()))
    except TimeoutError:
        raise TimedOut(f"it did not answer within {ASK_SECONDS:g} s") from None
    except A2aError as error:
        if error.reason == errors.TASK_NOT_FOUND:
            return ""
        if error.reason in (errors.UNAUTHENTICATED, errors.PERMISSION_DENIED):
            return f"it rejects the credentials: {escape_line(error.message)[:200]}"
        answer = escape_line(error.message)[:200]
        return f"asked for a task that cannot exist, it answered: {answer}"
    except AgentHttpStatus as error:
        if error.status >= 500:
            raise
        return str(error)
    return "asked for a task that cannot exist, it answered with one"
