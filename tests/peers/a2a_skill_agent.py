"""The agent of `a2a_sdk_agent`, called by its skills: it takes the text of its argument `text`.

    a2a_skill_agent.py [--text-only] [what a2a_sdk_agent takes]

As most agents of the official SDK it reads text and nothing else with --text-only, says so on its
card and refuses everything else; without it, it takes data and reads no text.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import AgentCard
from google.protobuf import json_format

sys.path.append(str(Path(__file__).resolve().parents[2]))  # it is run as a script, anywhere
from tests.peers.a2a_sdk_agent import Agent, card, main

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


def describe(mode: str, url: str, declared: list[str], streaming: bool) -> AgentCard:
    described = card(url, declared, streaming)
    del described.default_input_modes[:]
    described.default_input_modes.append(mode)
    return described


if __name__ == "__main__":
    if TEXT_ONLY in sys.argv:
        sys.argv.remove(TEXT_ONLY)
        main(describe=partial(describe, "text/plain"), validate_input_modes=True)
    else:
        main(SkillAgent, partial(describe, "application/json"))
