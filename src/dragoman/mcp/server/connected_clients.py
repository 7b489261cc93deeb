"""The clients with a session, by its id: upstream servers ask them questions outside of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.call import AnswerError, Question
from dragoman.core.errors import HubError
from dragoman.mcp.server import client_questions
from dragoman.mcp.server.client_state import ClientState


class ConnectedClients:
    """Implements `core.ports.ClientAsker`. Built before the server, for the upstreams."""

    def __init__(self) -> None:
        self._by_session: dict[str, ClientState] = {}

    def add(self, client: ClientState) -> None:
        if client.client:
            self._by_session[client.client] = client

    def remove(self, client: ClientState) -> None:
        self._by_session.pop(client.client, None)

    def find(self, session: str) -> ClientState | None:
        return self._by_session.get(session)

    def is_reachable(self, client: str) -> bool:
        found = self.find(client)
        return found is not None and found.is_reachable and not found.closed

    async def ask_client(
        self, client: str, question: Question, seconds: float
    ) -> Mapping[str, Any] | AnswerError | None:
        """Returns what the client answers; None if it does not."""
        found = self.find(client)
        if found is None:
            return None

        def push(message: bytes) -> bool:
            found.notify(message)
            return True

        try:
            answers, _ = await client_questions.ask(
                {"": question}, found, found.revision, push, seconds
            )
        except HubError:
            return None
        return answers.get("")
