"""A raw client of any revision; its transports are in matrix_transports.

Declares the given capabilities, answers questions in its revision's form, and records messages with
their stream. Every wait is bounded. Knows nothing of correct answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.peers import wire

from dragoman.mcp.protocol.revisions import NAMES

REVISIONS = NAMES
SECONDS = 30.0

Answering = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]

ADA: dict[str, Any] = {"action": "accept", "content": {"name": "Ada"}}
PARIS: dict[str, Any] = {
    "role": "assistant",
    "content": {"type": "text", "text": "Paris"},
    "model": "small",
    "stopReason": "endTurn",
}
FOLDERS: dict[str, Any] = {"roots": [{"uri": "file:///home/ada/work", "name": "work"}]}


def well(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A good answer to any question."""
    if method == "elicitation/create":
        return {"action": "accept"} if params.get("mode") == "url" else ADA
    return {"sampling/createMessage": PARIS, "roots/list": FOLDERS}[method]


def everything(revision: str) -> dict[str, Any]:
    """The capabilities of a client that can do all that its revision has."""
    features: dict[str, Any] = {"roots": {"listChanged": True}, "sampling": {}}
    if revision >= "2025-11-25":
        features["elicitation"] = {"form": {}, "url": {}}
    elif revision >= "2025-06-18":
        features["elicitation"] = {}
    return features


class Refuses(Exception):
    """Raised by `answering`: the client answers with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.native = {"code": code, "message": message}


@dataclass(frozen=True)
class ReceivedNotification:
    stream: Any
    """The id of the request whose answer the stream is; "session" for what comes beside."""
    method: str
    params: Mapping[str, Any]


class Client:
    """Use it with `with`. A transport sends; what comes goes to `_take`."""

    def __init__(self, revision: str, features: Mapping[str, Any]) -> None:
        self.revision = revision
        self.modern = revision >= wire.MODERN
        self.features = dict(features)
        self.answering: Answering = well
        self.received: list[ReceivedNotification] = []
        """Notifications."""
        self.asked: list[ReceivedNotification] = []
        """Questions, pushed or in an `InputRequiredResult`."""
        self.initialized: Any = None
        self._answers: dict[Any, Any] = {}
        self._changed = threading.Condition()
        self._last = 0
        self._threads: list[threading.Thread] = []

    # --- requests

    def request(
        self, method: str, params: Mapping[str, Any] | None = None, **meta: Any
    ) -> dict[str, Any]:
        """The whole answer; questions on the way to it are answered."""
        return self.answer_to(self.begin(method, params, **meta), method, params, **meta)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **meta: Any) -> Any:
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)

    def begin(self, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> int:
        """Sends a request; gives its id."""
        with self._changed:
            self._last += 1
            number = self._last
        sent = dict(params or {})
        if self.modern:
            known = wire.modern_params({"_meta": meta}, self.revision)["_meta"]
            known["io.modelcontextprotocol/clientCapabilities"] = self.features
            sent["_meta"] = known
        elif meta:
            sent["_meta"] = meta
        self._send(wire.request(number, method, sent))
        return number

    def answer_to(
        self, number: int, method: str, params: Mapping[str, Any] | None = None, **meta: Any
    ) -> dict[str, Any]:
        while True:
            answer = self.wait(number)
            result = answer.get("result")
            if not isinstance(result, dict) or result.get("resultType") != "input_required":
                return answer
            again = dict(params or {})
            for name, question in (result.get("inputRequests") or {}).items():
                asked = ReceivedNotification(
                    number, question["method"], question.get("params") or {}
                )
                self.asked.append(asked)
                responses = again.setdefault("inputResponses", {})
                responses[name] = self.answering(asked.method, asked.params)
            if "requestState" in result:
                again["requestState"] = result["requestState"]
            number = self.begin(method, again, **meta)

    def wait(self, number: int) -> dict[str, Any]:
        """The answer as it came, questions not answered."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers, SECONDS):
                raise TimeoutError(f"no answer to {number} in {SECONDS} s; heard: {self.received}")
            answer = self._answers.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self._send(wire.notification(method, params))

    def cancel(self, number: int) -> None:
        """As the revision does over this transport."""
        self.notify("notifications/cancelled", {"requestId": number, "reason": "not needed"})

    # --- what is heard

    def wait_notification(self, method: str, since: int = 0, **params: Any) -> ReceivedNotification:
        """The first such notification after the first `since`."""

        def found() -> list[ReceivedNotification]:
            return [
                one
                for one in self.received[since:]
                if one.method == method and all(one.params.get(k) == v for k, v in params.items())
            ]

        with self._changed:
            if not self._changed.wait_for(found, SECONDS):
                raise TimeoutError(f"no {method} {params} in {SECONDS} s: {self.received[since:]}")
            return found()[0]

    def said(self, method: str, since: int = 0) -> list[ReceivedNotification]:
        return [one for one in self.received[since:] if one.method == method]

    def _take(self, message: Any, stream: Any) -> None:
        if "method" not in message:
            with self._changed:
                self._answers[message.get("id")] = message
                self._changed.notify_all()
            return
        received = ReceivedNotification(stream, message["method"], message.get("params") or {})
        asked = "id" in message
        with self._changed:
            (self.asked if asked else self.received).append(received)
            self._changed.notify_all()
        if asked:
            try:
                answer = self.answering(received.method, received.params)
            except Refuses as error:
                self._send({"jsonrpc": "2.0", "id": message["id"], "error": error.native})
                return
            if answer is not None:
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": answer})

    def _failed(self, number: Any, problem: Exception) -> None:
        """The stream of a request has ended; that is news only where the answer had not come."""
        with self._changed:
            self._answers.setdefault(number, problem)
            self._changed.notify_all()

    # --- transports

    def _send(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    def _shake_hands(self) -> None:
        if self.modern:
            return
        client = {"name": "matrix", "version": "1"}
        answer = self.request(
            "initialize",
            {
                "protocolVersion": self.revision,
                "capabilities": self.features,
                "clientInfo": client,
            },
        )
        self.initialized = answer["result"]
        assert self.initialized["protocolVersion"] == self.revision
        self.notify("notifications/initialized")

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
