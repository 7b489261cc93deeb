"""Seals the handle of a target's questions, and opens it when they are answered.

A login that the target needs is such a question. A client that cannot be asked gets an error with
the question. A handle that is another principal's,
expired, for another call or used already is refused before anything leaves.
"""

from __future__ import annotations

from dragoman.core.call import Call, Result
from dragoman.core.errors import BadReply, LoginRequired
from dragoman.core.pipeline import Next
from dragoman.core.question_handles import MAX_QUESTIONS, QuestionHandles, build_needs_input
from dragoman.core.structs import replace
from dragoman.guards.logins import LOGIN, LoginQuestions


class Questions:
    def __init__(self, handles: QuestionHandles, logins: LoginQuestions | None = None) -> None:
        """`logins` asks callers to log in; None: they get an error."""
        self._handles = handles
        self.logins = logins or LoginQuestions(None, 0.0)

    async def __call__(self, next: Next, call: Call) -> Result:
        opened = call
        if call.handle is not None:
            opened = replace(call, handle=self._handles.open(call))
            if opened.handle is not None and opened.handle.startswith(LOGIN):
                resumed = await self.logins.resume(opened)
                if isinstance(resumed, Result):
                    return replace(resumed, handle=self._handles.seal(call, resumed.handle or ""))
                opened = resumed
        try:
            result = await next(opened)
        except LoginRequired as error:
            result = self.logins.ask(opened, error)
        questions = result.questions
        if questions is None:
            return result
        if len(questions) > MAX_QUESTIONS:
            raise BadReply(
                f'"{call.tool.name}" asks {len(questions)} questions at once; '
                f"{MAX_QUESTIONS} are allowed"
            )
        if problem := build_needs_input(questions, call):
            raise problem
        return replace(result, handle=self._handles.seal(call, result.handle or ""))
