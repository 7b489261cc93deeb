"""Seals the handle of a target's questions or of its task, and opens it in the call that continues.

A login that the target needs is such a question. A client that cannot be asked gets an error with
the question. A handle that is another principal's, expired, for another call or used already is
refused before anything leaves.
"""

from __future__ import annotations

from dataclasses import replace as replace_dataclass

from dragoman.core.call import Call, Result, TaskNamed, Update, Updates
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
        if call.task is not None:
            opened = replace(opened, updates=self._seal_named(call))
        try:
            result = await next(opened)
        except LoginRequired as error:
            if call.sends_nothing:
                raise  # nothing waits for the answer: it is asked again
            result = self.logins.ask(opened, error)
        questions = result.questions
        if questions is None:
            if result.unfinished:
                return replace(result, handle=self._handles.seal(call, result.handle or ""))
            return result
        if len(questions) > MAX_QUESTIONS:
            raise BadReply(
                f'"{call.tool.name}" asks {len(questions)} questions at once; '
                f"{MAX_QUESTIONS} are allowed"
            )
        if problem := build_needs_input(questions, call):
            raise problem
        return replace(result, handle=self._handles.seal(call, result.handle or ""))

    def _seal_named(self, call: Call) -> Updates:
        """Seals the handle by which a later call continues the task of this one."""

        def pass_on(update: Update) -> None:
            if isinstance(update, TaskNamed):
                update = replace_dataclass(update, handle=self._handles.seal(call, update.handle))
            call.updates(update)

        return pass_on
