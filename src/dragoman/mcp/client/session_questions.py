"""Questions that a server asks on a client's own session while no call of the client is under way.

A server of the handshake era may ask at any time; some ask for the client's roots as soon as the
session has begun. The client is asked at once where it can be reached, else with its next call.
"""

from __future__ import annotations

import asyncio
from functools import partial

from dragoman.core.call import AnswerError, Call, Question
from dragoman.core.ports import ClientAsker, Viewer
from dragoman.core.question_handles import MAX_QUESTIONS
from dragoman.mcp.client.notifications import RequestListener, ServerRequest
from dragoman.mcp.client.suspended_call import REFUSED
from dragoman.mcp.protocol.elicitation import build_answer, is_answerable, question_from_request
from dragoman.mcp.protocol.revisions import LATEST_HANDSHAKE

ANSWER_SECONDS = 60.0
"""How long the client may take; the SDKs' servers wait no longer."""


class SessionQuestions:
    def __init__(self, call: Call | Viewer, asker: ClientAsker | None) -> None:
        """`call` is the one that the session is opened for."""
        self._client = call.client
        self._features = call.features
        self._asker = asker
        self.revision = LATEST_HANDSHAKE
        """That the server speaks."""
        self.has_asked = False
        self._held: list[ServerRequest] = []
        self._answering: set[asyncio.Task[None]] = set()
        self.listener = RequestListener(client=call.client, ask=self._ask)

    def take_pending(self) -> list[ServerRequest]:
        """What is to be asked with the client's next call."""
        held, self._held = self._held, []
        return held

    def adopt(self, asked: ServerRequest) -> None:
        """A question that the call under way turned out not to wait for."""
        if not self._ask(asked):
            asked.refuse(REFUSED, "the question cannot be put to the client")

    async def wait_answered(self, seconds: float) -> None:
        """Waits until the client has answered what it was asked so far."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=seconds)

    def close(self) -> None:
        for asked in self.take_pending():
            asked.refuse(REFUSED, "the session has ended")
        for task in self._answering:
            task.cancel()

    def _ask(self, asked: ServerRequest) -> bool:
        self.has_asked = True
        question = question_from_request(asked.method, asked.params)
        if question is None or not is_answerable(question, self._features):
            return False
        if len(self._held) + len(self._answering) >= MAX_QUESTIONS:
            return False
        if self._asker is not None and self._asker.is_reachable(self._client):
            work = self._answer(self._asker, asked, question)
            task = asyncio.get_running_loop().create_task(work)
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            asked.on_cancel = partial(_cancel, task)
        else:
            self._held.append(asked)
            asked.on_cancel = partial(self._withdraw, asked)
        return True

    def _withdraw(self, asked: ServerRequest) -> None:
        if asked in self._held:
            self._held.remove(asked)

    async def _answer(self, asker: ClientAsker, asked: ServerRequest, question: Question) -> None:
        answer = await asker.ask_client(self._client, question, ANSWER_SECONDS)
        if isinstance(answer, AnswerError):
            asked.refuse(answer.code, answer.message, answer.data)
            return
        result = build_answer(question, answer, self.revision)
        if result is None:
            asked.refuse(REFUSED, "the question was not answered")
        else:
            asked.answer(result)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
