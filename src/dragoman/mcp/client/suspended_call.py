"""Questions that a server of the handshake era asks on a client's own session.

`SuspendedCall` puts the questions of a call to the client: the server's request stays open while
they travel there and back, and the time of the call stands still. `SessionQuestions` takes those
that belong to no call. Neither knows how messages travel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dragoman.core.background import resolve, start_task
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
from dragoman.core.ports import ClientAsker, Viewer
from dragoman.core.question_handles import MAX_QUESTIONS
from dragoman.mcp.client.notifications import RequestListener, UpstreamRequest, listener_from_call
from dragoman.mcp.protocol.elicitation import build_answer, is_answerable, question_from_request
from dragoman.mcp.protocol.revisions import LATEST_HANDSHAKE, Revision
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

REFUSED = -1
"""The error code of an unanswered question; the specification defines it for sampling."""
GATHER_SECONDS = 0.02
"""How long further questions are awaited, so that they are asked together."""
LONGEST_SECONDS = 7 * 86_400.0
LEAST_SECONDS = 1.0
"""The least that is left of a call's time after its question was answered."""
ANSWER_SECONDS = 60.0
"""For the answer to a question outside of calls; servers made with the SDKs wait no longer."""

SendRequest = Callable[[RequestListener], Coroutine[Any, Any, tuple[Any, int]]]
"""Sends the request of a call; the listener receives its questions."""


class QuestionBudget:
    """Bounds the bytes of all open questions of one server."""

    def __init__(self, server: str, limit: int) -> None:
        self._server = server
        self._left = limit
        self._is_reported = False

    def take(self, size: int) -> bool:
        """Reserves that many bytes; False if they are not left."""
        if size > self._left:
            if not self._is_reported:
                log.warning('questions of server "%s" are refused: too many are open', self._server)
            self._is_reported = True
            return False
        self._left -= size
        return True

    def release(self, size: int) -> None:
        self._left += size
        self._is_reported = False


class OpenQuestion(NamedTuple):
    question: Question
    request: UpstreamRequest
    size: int


class SuspendedCall:
    """A call whose server may ask questions; suspended for as long as `questions` are open."""

    def __init__(
        self,
        call: Call,
        revision: Revision,
        seconds: float,
        send: SendRequest,
        budget: QuestionBudget,
    ) -> None:
        self.client = call.client
        self._name = call.tool.name
        self._budget = budget
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
        self._expiry: asyncio.TimerHandle | None = None
        listener = listener_from_call(call) or RequestListener(client=call.client)
        listener.ask = self.ask
        self._updates = call.updates
        listener.updates = self._update
        self._task = start_task(send(listener))
        self._task.add_done_callback(self._finish)

    @property
    def questions(self) -> dict[str, Question]:
        return {key: open.question for key, open in self._open.items()}

    # --- used by its caller --------------------------------------------------------------------

    async def wait_outcome(self) -> tuple[Any, int] | None:
        """Returns the server's result and its size, or None when it asks questions first."""
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
                self._task.cancel()
                raise

    async def _gather(self) -> None:
        """Waits for the further questions of a server that asks several one after the other."""
        try:
            await asyncio.wait([self._task], timeout=GATHER_SECONDS)
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    def suspend(self, seconds: float, expire: Callable[[], None]) -> None:
        """`expire` is called unless the call is resumed within that time."""
        self._updates = discard_update
        self._expiry = self._loop.call_later(seconds, expire)

    def resume(self, call: Call) -> None:
        """Continues with the answers that `call` brings to some of the open questions."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._features = call.features
        self._updates = call.updates
        if self._lasting:
            call.updates(TaskStarted())
        for key, answer in (call.answers or {}).items():
            open = self._open.pop(key, None)
            if open is not None:
                self._budget.release(open.size)
                send_answer(open.request, open.question, answer, self._revision)

    def abandon(self, reason: str) -> None:
        """Ends it because its session has ended: the client learns that no answer is needed."""
        self._withdraw_all()
        self.end(reason)

    def end(self, reason: str) -> None:
        """Refuses the open questions and cancels the request."""
        self._ended = True
        if self._expiry is not None:
            self._expiry.cancel()
        for open in self._open.values():
            self._budget.release(open.size)
            open.request.refuse(REFUSED, reason)
        self._open.clear()
        self._task.cancel()

    def release_roots(self) -> list[UpstreamRequest]:
        """Releases the open requests for the client's roots: a server may ask for them at any time,
        whatever call is in flight."""
        keys = [key for key, open in self._open.items() if open.question.kind == ROOTS]
        released = [self._open.pop(key) for key in keys]
        for open in released:
            self._budget.release(open.size)
        return [open.request for open in released]

    # --- used by the server --------------------------------------------------------------------

    def ask(self, request: UpstreamRequest) -> bool:
        """Takes a question; False if it cannot be put to the client."""
        question = question_from_request(request.method, request.params)
        if question is None or self._ended or len(self._open) >= MAX_QUESTIONS:
            return False
        if not is_answerable(question, self._features):
            return False
        size = len(encode(request.params))
        if not self._budget.take(size):
            return False
        self._count += 1
        key = f"q{self._count}"
        request.on_cancel = partial(self._withdraw, key)
        question = replace(
            question, withdrawn=self._loop.create_future(), completed=self._loop.create_future()
        )
        request.on_complete = partial(resolve, question.completed)
        self._open[key] = OpenQuestion(question, request, size)
        resolve(self._arrived, None)
        return True

    def _withdraw(self, key: str) -> None:
        """The server has cancelled this question."""
        open = self._open.pop(key, None)
        if open is not None:
            self._budget.release(open.size)
            resolve(open.question.withdrawn, None)

    def _withdraw_all(self) -> None:
        for open in self._open.values():
            resolve(open.question.withdrawn, None)

    def _finish(self, task: asyncio.Task[tuple[Any, int]]) -> None:
        """The server has answered the call and needs no more answers. The result, or the error, is
        kept for the call that continues this one."""
        if not task.cancelled():
            task.exception()  # not reported if no call continues
            self._withdraw_all()

    def _update(self, update: Update) -> None:
        if isinstance(update, TaskStarted):
            self._lasting = True  # a task has its own limits
            self._seconds = self._left = LONGEST_SECONDS
        if isinstance(update, Progress | TaskStarted):
            self._deadline = self._loop.time() + self._seconds
        self._updates(update)


class SessionQuestions:
    """Questions on a client's own session while no call of the client is in flight.

    Some servers ask for the client's roots as soon as the session begins. The client is asked at
    once if it is connected, else with its next call.
    """

    def __init__(self, viewer: Call | Viewer, asker: ClientAsker | None) -> None:
        """`viewer` is the client that the session is opened for."""
        self._client = viewer.client
        self._features = viewer.features
        self._asker = asker
        self.revision: Revision = LATEST_HANDSHAKE
        """The revision that the server speaks."""
        self.asked: set[str] = set()
        """The methods of the questions so far."""
        self._has_asked = asyncio.Event()
        self._pending: list[UpstreamRequest] = []
        self._answering: set[asyncio.Task[None]] = set()
        self.listener = RequestListener(client=viewer.client, ask=self._ask)

    def take_pending(self) -> list[UpstreamRequest]:
        """Removes and returns the questions to ask with the client's next call."""
        pending, self._pending = self._pending, []
        return pending

    def adopt(self, request: UpstreamRequest) -> None:
        """Takes a question that the call in flight turned out not to depend on."""
        if not self._ask(request):
            request.refuse(REFUSED, "the question cannot be put to the client")

    @property
    def has_asked(self) -> bool:
        return self._has_asked.is_set()

    async def wait_asked(self, seconds: float) -> None:
        """Waits until the server has asked anything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_asked.wait()

    async def wait_answered(self, seconds: float) -> bool:
        """Waits until the client has answered the questions so far; False if there are none."""
        if not self._answering:
            return False
        await asyncio.wait(self._answering, timeout=seconds)
        return True

    def close(self) -> None:
        for request in self.take_pending():
            request.refuse(REFUSED, "the session has ended")
        for task in self._answering:
            task.cancel()

    def _ask(self, request: UpstreamRequest) -> bool:
        self.asked.add(request.method)
        self._has_asked.set()
        question = question_from_request(request.method, request.params)
        if question is None or not is_answerable(question, self._features):
            return False
        if len(self._pending) + len(self._answering) >= MAX_QUESTIONS:
            return False
        if self._asker is not None and self._asker.is_reachable(self._client):
            task = start_task(self._answer(self._asker, request, question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            request.on_cancel = task.cancel
        else:
            self._pending.append(request)
            request.on_cancel = partial(self._withdraw, request)
        return True

    def _withdraw(self, request: UpstreamRequest) -> None:
        if request in self._pending:
            self._pending.remove(request)

    async def _answer(
        self, asker: ClientAsker, request: UpstreamRequest, question: Question
    ) -> None:
        answer = await asker.ask_client(self._client, question, ANSWER_SECONDS)
        send_answer(request, question, answer, self.revision)


def send_answer(
    request: UpstreamRequest, question: Question, answer: Any, revision: Revision
) -> None:
    """Sends the client's answer to the server, or refuses the question."""
    if isinstance(answer, AnswerError):
        request.refuse(answer.code, answer.message, answer.data)
        return
    result = build_answer(question, answer, revision)
    if result is None:
        request.refuse(REFUSED, "the question was not answered")
    else:
        request.answer(result)
