"""An agent of Google's Agent Development Kit: a session of it for each A2A context."""

import sys
from collections.abc import AsyncGenerator

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from scripted import answer


class Scripted(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        said = [
            "".join(part.text or "" for part in content.parts or [])
            for content in llm_request.contents
            if content.role == "user"
        ]
        part = types.Part(text=answer(said))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


port = int(sys.argv[1])
agent = LlmAgent(
    name="adk_talker",
    description="Counts the turns of a conversation",
    model=Scripted(model="scripted"),
    instruction="Count.",
)
uvicorn.run(to_a2a(agent, host="127.0.0.1", port=port), host="127.0.0.1", port=port)
