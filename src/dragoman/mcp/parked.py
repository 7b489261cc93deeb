"""A call that waits for an answer to a server's question, or for more of them.

The server's request stays open while its question travels to the client and back; the call's own
time stands still meanwhile. Knows neither sessions nor wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.core.call import Call, Lasting, Progress, Question, Update, discard
from dragoman.core.errors import TimedOut
from dragoman.core.questions import MAX_QUESTIONS
from dragoman.mcp.hearing import Asked, Listener, listener_of
from dragoman.mcp.questions import answer_for, is_answerable, question_of

REFUSED = -1
"""The code for a question that was not answered; the specification has it so for sampling."""

GATHER_SECONDS = 0.02
LONGEST_SECONDS = 7 * 86_400.0
LEAST_SECONDS = 1.0
"""What is left at least of a call's time once its question was answered."""

Work = Callable[[Listener], Awaitable[tuple[Any, int]]]
"""Makes the request, with whom to ask meanwhile."""


class Parked:
    """Made for a call whose server may ask; parked for as long as `questions` are open."""

    def __init__(self, call: Call, revision: int, seconds: float, work: Work) -> None:
        self.client = call.client
        self._loop = asyncio.get_running_loop()
        self._features = call.features
        self._revision = revision
        self._seconds = self._left = seconds
        self._deadline = self._loop.time() + seconds
        self._open: dict[str, tuple[Question, Asked]] = {}
        self._count = 0
        self._lasting = False
        self._arrived: asyncio.Future[None] | None = None
        self._lapsing: asyncio.TimerHandle | None = None
        made = listener_of(call) or Listener(client=call.client)
        made.ask = self._ask
        self._updates = call.updates
        made.updates = self._update
        self._listener = made
        self._task: asyncio.Task[tuple[Any, int]] = self._loop.create_task(self._run(work, made))
        self._task.add_done_callback(_look)

    async def _run(self, work: Work, listener: Listener) -> tuple[Any, int]:
        return await work(listener)

    @property
    def questions(self) -> dict[str, Question]:
        return {key: question for key, (question, _) in self._open.items()}

    # --- by its caller -------------------------------------------------------------------------

    async def outcome(self) -> tuple[Any, int] | None:
        """What the server answered at last; None when it asks something first."""
        self._deadline = self._loop.time() + self._left
        while True:
            if self._task.done():
                return self._task.result()
            left = self._deadline - self._loop.time()
            if self._open:
                self._left = max(left, LEAST_SECONDS)
                return await self._gathered()
            if left <= 0:
                self._task.cancel()
                raise TimedOut(
                    f"the server did not answer within {self._seconds:g} s and was told to cancel; "
                    "raise its timeout_secs if it needs more"
                )
            self._arrived = self._loop.create_future()
            either: list[asyncio.Future[Any]] = [self._task, self._arrived]
            try:
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self._task.cancel()  # the caller has gone
                raise

    async def _gathered(self) -> tuple[Any, int] | None:
        """A server that asks several things asks one after the other; they are put together."""
        try:
            await asyncio.wait([self._task], timeout=GATHER_SECONDS)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return self._task.result() if self._task.done() else None

    def park(self, seconds: float, lapsed: Callable[[], None]) -> None:
        """Nobody waits for it now; it ends by itself unless it is taken up again in time."""
        self._updates = discard
        self._lapsing = self._loop.call_later(seconds, lapsed)

    def take_up(self, call: Call) -> None:
        """`call` continues it, with answers to some of what is open."""
        if self._lapsing is not None:
            self._lapsing.cancel()
        self._features = call.features
        self._updates = call.updates
        if self._lasting:
            call.updates(Lasting())
        for key, answer in (call.answers or {}).items():
            question, asked = self._open.pop(key, (None, None))
            if question is None or asked is None:
                continue
            result = answer_for(question, answer, self._revision)
            if result is None:
                asked.refuse(REFUSED, "the question was not answered")
            else:
                asked.answer(result)

    def end(self, words: str) -> None:
        """It will not be continued: the server is told, and the request cancelled."""
        if self._lapsing is not None:
            self._lapsing.cancel()
        for _, asked in self._open.values():
            asked.refuse(REFUSED, words)
        self._open.clear()
        self._task.cancel()

    # --- by the server -------------------------------------------------------------------------

    def _ask(self, asked: Asked) -> bool:
        question = question_of(asked.method, asked.params)
        if question is None or len(self._open) >= MAX_QUESTIONS:
            return False
        if not is_answerable(question, self._features):
            return False
        self._count += 1
        self._open[f"q{self._count}"] = question, asked
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        return True

    def _update(self, update: Update) -> None:
        if isinstance(update, Lasting):
            self._lasting = True  # whose time is kept elsewhere
            self._seconds = self._left = LONGEST_SECONDS
        if isinstance(update, Progress | Lasting):
            self._deadline = self._loop.time() + self._seconds  # which gives the time again
        self._updates(update)


def _look(task: asyncio.Task[tuple[Any, int]]) -> None:
    """An error that nobody came back for is nobody's."""
    if not task.cancelled():
        task.exception()
