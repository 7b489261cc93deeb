"""The agent of `a2a_sdk_agent`, called by its skills: it takes the text of its argument `text`.

    a2a_skill_agent.py [--text-only] [what a2a_sdk_agent takes]

As most agents of the official SDK it reads text and nothing else with --text-only, says so on its
card and refuses everything else; without it, it takes data and reads no text.
"""

from __future__ import annotations

import functools
import sys

import a2a_sdk_agent
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import AgentCard
from a2a_sdk_agent import Agent, main
from google.protobuf import json_format

TEXT_ONLY = "--text-only"


class SkillAgent(Agent):
    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        words = ""
        for part in context.message.parts if context.message is not None else ():
            if part.HasField("data"):
                words = json_format.MessageToDict(part.data).get("text", words)
            elif context.current_task is not None:  # an answer to its question
                words = part.text
        context.get_user_input = lambda *_: words  # type: ignore[method-assign]
        await super().execute(context, queue)


def card(url: str, declared: list[str], streaming: bool) -> AgentCard:
    described = plain_card(url, declared, streaming)
    del described.default_input_modes[:]
    described.default_input_modes.append("text/plain" if text_only else "application/json")
    return described


if __name__ == "__main__":
    text_only = TEXT_ONLY in sys.argv
    if text_only:
        sys.argv.remove(TEXT_ONLY)
        checking = functools.partial(a2a_sdk_agent.DefaultRequestHandler, validate_input_modes=True)
        a2a_sdk_agent.DefaultRequestHandler = checking  # type: ignore[misc]
    else:
        a2a_sdk_agent.Agent = SkillAgent  # type: ignore[misc]
    plain_card, a2a_sdk_agent.card = a2a_sdk_agent.card, card
    main()
