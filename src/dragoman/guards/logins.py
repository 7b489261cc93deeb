"""Asks a caller to log in at a server or agent, and continues the call after the login.

A login that is missing is found before anything was executed, so the call can be made again. The
question is a URL to visit: each server puts it in its own protocol's way, and a client that cannot
be asked gets an error with the link.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from dragoman.core.call import FOLLOW, URL, Call, Question, Result
from dragoman.core.errors import InvalidInput, LoginRequired, TimedOut
from dragoman.core.logins import LoginDesk, LoginLink, explain_login
from dragoman.core.question_handles import can_answer
from dragoman.core.structs import replace
from dragoman.core.tool import Nowhere

LOGIN = "login:"
"""How the handle of such a question begins."""
QUESTION = "login"
MAX_HELD = 1_000
FOLLOW_SECONDS = 600.0
"""How long a call that follows its question waits for the login."""


class LoginQuestions:
    def __init__(self, desk: LoginDesk | None, seconds: float) -> None:
        """`seconds` is how long a call whose client has opened the link waits for the login."""
        self._desk = desk
        self._seconds = seconds
        self._held: OrderedDict[str, tuple[Mapping[str, Any] | None, str | None]] = OrderedDict()
        """The answers and handles of calls that needed a login while they answered a question."""

    def apply(self, seconds: float) -> None:
        self._seconds = seconds

    def ask(self, call: Call, error: LoginRequired) -> Result:
        """Returns the question; raises the error, with the link, if it cannot be put."""
        if self._desk is None:
            raise error
        explained = self._desk.explain(error)
        link = self._desk.open_link(call, error)
        if link is None:
            raise explained from error
        error = explained
        is_known = not isinstance(call.tool.target, Nowhere)  # else it will be another tool
        if not is_known or not can_answer(URL, call.features):
            raise explain_login(error, link.url) from error
        return self._build_question(link, str(error), self._hold(call))

    def _build_question(self, link: LoginLink, message: str, held: str) -> Result:
        body = {"mode": "url", "url": link.url, "message": f"{message}. Log in here:"}
        question = Question(URL, body, completed=link.done)
        return Result(
            questions={QUESTION: question}, handle=f"{LOGIN}{link.id}:{held}", settles_itself=True
        )

    def _hold(self, call: Call) -> str:
        """Keeps what the call brought besides its arguments."""
        if call.handle is None:
            return ""
        id = token_hex(8)
        self._held[id] = call.answers, call.handle
        if len(self._held) > MAX_HELD:
            self._held.popitem(last=False)
        return id

    async def resume(self, call: Call) -> Call | Result:
        """Waits for the login; returns the call as it was before it needed one, or the question
        again. Raises `LoginRequired` if the person has declined, or could not log in."""
        id, _, held = (call.handle or "").removeprefix(LOGIN).partition(":")
        is_following = call.answers is FOLLOW
        if not is_following and not _is_accepted(call.answers):
            raise _build_failed(call, "it was declined")
        link = self._desk.find_link(id) if self._desk is not None else None
        if link is not None and not link.done.done():
            seconds = FOLLOW_SECONDS if is_following else self._seconds
            await asyncio.wait([link.done], timeout=seconds)
            if not link.done.done() and is_following:
                raise TimedOut(f'the login at "{call.tool.target.name}" was not finished in time')
            if not link.done.done():
                name = call.tool.target.name
                return self._build_question(link, f'"{name}" still waits for your login', held)
        if link is not None and (problem := link.done.result()):
            raise _build_failed(call, problem)
        if held and held not in self._held:  # it would be another call, not the rest of this one
            raise InvalidInput("the question has expired; start the call again")
        answers, handle = self._held.get(held, (None, None))
        return replace(call, answers=answers, handle=handle)


def _build_failed(call: Call, problem: str) -> LoginRequired:
    name = call.tool.target.name
    message = f'"{call.tool.name}" was not called: the login at "{name}" failed: {problem}'
    return LoginRequired(f"{message}; call it again to get another link", server=name)


def _is_accepted(answers: Mapping[str, Any] | None) -> bool:
    answer = answers.get(QUESTION) if answers is not None else None
    return isinstance(answer, Mapping) and answer.get("action", "accept") == "accept"
