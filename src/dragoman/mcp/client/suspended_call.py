"""A call that waits for an answer to a server's question, or for more of them.

The server's request stays open while its question travels to the client and back; the call's own
time stands still meanwhile. Knows neither sessions nor wires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dragoman.core.call import (
    ROOTS,
    AnswerError,
    Call,
    Progress,
    Question,
    TaskStarted,
    Update,
    discard_update,
)
from dragoman.core.errors import TimedOut
from dragoman.core.question_handles import MAX_QUESTIONS
from dragoman.mcp.client.notifications import RequestListener, ServerRequest, listener_from_call
from dragoman.mcp.protocol.elicitation import build_answer, is_answerable, question_from_request
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

REFUSED = -1
"""The code for a question that was not answered; the specification has it so for sampling."""

GATHER_SECONDS = 0.02
LONGEST_SECONDS = 7 * 86_400.0
LEAST_SECONDS = 1.0
"""What is left at least of a call's time once its question was answered."""

Work = Callable[[RequestListener], Awaitable[tuple[Any, int]]]
"""Makes the request, with whom to ask meanwhile."""


class QuestionBudget:
    """For the questions of one server that are open, in bytes."""

    def __init__(self, server: str, most: int) -> None:
        self._server = server
        self._left = most
        self._said = False

    def take(self, size: int) -> bool:
        """Whether there is any left for that."""
        if size > self._left:
            if not self._said:
                log.warning('questions of server "%s" are refused: too much is open', self._server)
            self._said = True
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        self._left += size
        self._said = False


class OpenQuestion(NamedTuple):
    question: Question
    asked: ServerRequest
    size: int


class SuspendedCall:
    """Made for a call whose server may ask; parked for as long as `questions` are open."""

    def __init__(
        self, call: Call, revision: int, seconds: float, work: Work, room: QuestionBudget
    ) -> None:
        self.client = call.client
        self._name = call.tool.name
        self._room = room
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._features = call.features
        self._revision = revision
        self._seconds = self._left = seconds
        self._deadline = self._loop.time() + seconds
        self._open: dict[str, OpenQuestion] = {}
        self._count = 0
        self._lasting = False
        self._arrived: asyncio.Future[None] | None = None
        self._lapsing: asyncio.TimerHandle | None = None
        made = listener_from_call(call) or RequestListener(client=call.client)
        made.ask = self._ask
        self._updates = call.updates
        made.updates = self._update
        self._listener = made
        self._task: asyncio.Task[tuple[Any, int]] = self._loop.create_task(self._run(work, made))
        self._task.add_done_callback(self._finished)

    async def _run(self, work: Work, listener: RequestListener) -> tuple[Any, int]:
        return await work(listener)

    @property
    def questions(self) -> dict[str, Question]:
        return {key: open.question for key, open in self._open.items()}

    # --- by its caller -------------------------------------------------------------------------

    async def wait_outcome(self) -> tuple[Any, int] | None:
        """What the server answered at last; None when it asks something first."""
        self._deadline = self._loop.time() + self._left
        while True:
            if self._task.done():
                return self._task.result()
            left = self._deadline - self._loop.time()
            if self._open:
                self._left = max(left, LEAST_SECONDS)
                await self._gather()
                if self._open and not self._task.done():
                    return None
                self._deadline = self._loop.time() + self._left
                continue
            if left <= 0:
                self._task.cancel()
                raise TimedOut(
                    f'the server of "{self._name}" did not answer within {self._seconds:g} s: the '
                    "call timed out and was cancelled; raise its timeout_secs if it needs longer"
                )
            self._arrived = self._loop.create_future()
            either: list[asyncio.Future[Any]] = [self._task, self._arrived]
            try:
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self._task.cancel()  # the caller has gone
                raise

    async def _gather(self) -> None:
        """A server that asks several things asks one after the other; they are put together."""
        try:
            await asyncio.wait([self._task], timeout=GATHER_SECONDS)
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    def suspend(self, seconds: float, lapsed: Callable[[], None]) -> None:
        """Nobody waits for it now; it ends by itself unless it is taken up again in time."""
        self._updates = discard_update
        self._lapsing = self._loop.call_later(seconds, lapsed)

    def resume(self, call: Call) -> None:
        """`call` continues it, with answers to some of what is open."""
        if self._lapsing is not None:
            self._lapsing.cancel()
        self._features = call.features
        self._updates = call.updates
        if self._lasting:
            call.updates(TaskStarted())
        for key, answer in (call.answers or {}).items():
            open = self._open.pop(key, None)
            if open is None:
                continue
            self._room.give(open.size)
            if isinstance(answer, AnswerError):
                open.asked.refuse(answer.code, answer.message, answer.data)
                continue
            result = build_answer(open.question, answer, self._revision)
            if result is None:
                open.asked.refuse(REFUSED, "the question was not answered")
            else:
                open.asked.answer(result)

    def abandon(self, words: str) -> None:
        """The session has ended: nobody waits for answers any more, and the client is told so."""
        self._withdraw_all()
        self.end(words)

    def end(self, words: str) -> None:
        """It is over, or will not be continued: the server is told of what is still open, and the
        request cancelled."""
        self._ended = True
        if self._lapsing is not None:
            self._lapsing.cancel()
        for open in self._open.values():
            self._room.give(open.size)
            open.asked.refuse(REFUSED, words)
        self._open.clear()
        self._task.cancel()

    def adopt(self, asked: ServerRequest) -> bool:
        """Takes a question that the server asked before the call; whether it will be put."""
        return self._ask(asked)

    def release_roots(self) -> list[ServerRequest]:
        """The questions for the client's roots that are still open: a server may ask for them at
        any time, whatever call is under way."""
        keys = [key for key, open in self._open.items() if open.question.kind == ROOTS]
        released = [self._open.pop(key) for key in keys]
        for open in released:
            self._room.give(open.size)
        return [open.asked for open in released]

    # --- by the server -------------------------------------------------------------------------

    def _ask(self, asked: ServerRequest) -> bool:
        question = question_from_request(asked.method, asked.params)
        if question is None or self._ended or len(self._open) >= MAX_QUESTIONS:
            return False
        if not is_answerable(question, self._features):
            return False
        size = len(encode(asked.params))
        if not self._room.take(size):
            return False
        self._count += 1
        key = f"q{self._count}"
        asked.on_cancel = partial(self._withdraw, key)
        question = replace(
            question, withdrawn=self._loop.create_future(), completed=self._loop.create_future()
        )
        asked.on_complete = partial(_set, question.completed)
        self._open[key] = OpenQuestion(question, asked, size)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        return True

    def _withdraw(self, key: str) -> None:
        """The server has cancelled this question."""
        open = self._open.pop(key, None)
        if open is not None:
            self._room.give(open.size)
            _set(open.question.withdrawn)

    def _withdraw_all(self) -> None:
        for open in self._open.values():
            _set(open.question.withdrawn)

    def _finished(self, task: asyncio.Task[tuple[Any, int]]) -> None:
        """The server has answered the call, so it needs no answers to its questions. The result, or
        the error, is kept for the call that continues this one."""
        if not task.cancelled():
            task.exception()  # an error that no call comes back for is not reported
            self._withdraw_all()

    def _update(self, update: Update) -> None:
        if isinstance(update, TaskStarted):
            self._lasting = True  # whose time is kept elsewhere
            self._seconds = self._left = LONGEST_SECONDS
        if isinstance(update, Progress | TaskStarted):
            self._deadline = self._loop.time() + self._seconds  # which gives the time again
        self._updates(update)


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
