"""An agent made with the official SDK: JSON-RPC and HTTP+JSON, 1.0 and 0.3, on a port of its own.

    a2a_sdk_agent.py [--declare JSONRPC:1.0 --declare HTTP+JSON:0.3 ...] [--no-streaming] [--log F]

It prints where it is as one line of JSON. What it does depends on the first word of a message; see
`Agent.execute`. With --log it writes down the methods it was asked, one line of JSON each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    Part,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette
from starlette.requests import Request

EVERYTHING = ["JSONRPC:1.0", "HTTP+JSON:1.0", "JSONRPC:0.3", "HTTP+JSON:0.3"]


def data_part(value: Any) -> Part:
    made = Value()
    json_format.ParseDict(value, made)
    return Part(data=made, media_type="application/json")


async def wait_for_file(path: str) -> None:
    async with asyncio.timeout(60):
        while not Path(path).exists():
            await asyncio.sleep(0.02)


class Agent(AgentExecutor):
    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._turns: Counter[str] = Counter()
        """How many messages there were in each conversation."""

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        assert context.task_id and context.context_id and context.message
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        word, _, rest = context.get_user_input().partition(" ")
        self._log(event="execute", word=word, task=context.task_id, context=context.context_id)
        if word == "direct":
            await queue.enqueue_event(updater.new_agent_message([Part(text=rest)]))
            return
        if word == "parts":
            heard = [json_format.MessageToDict(part) for part in context.message.parts]
            await queue.enqueue_event(updater.new_agent_message([data_part({"parts": heard})]))
            return
        if word == "late":  # no id is known before the file is there
            await wait_for_file(rest)
            self._log(event="released")
        if word == "turn":
            self._turns[context.context_id] += 1
            rest = f"turn {self._turns[context.context_id]}"
        if context.current_task is None:
            task = Task(
                id=context.task_id,
                context_id=context.context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                history=[context.message],
            )
            task.status.timestamp.GetCurrentTime()
            await queue.enqueue_event(task)
            await updater.start_work()
        elif word not in ("ask", "login", "long"):
            await updater.add_artifact([Part(text=f"you said: {context.get_user_input()}")])
            await updater.complete()
            return
        if word == "report":
            await updater.add_artifact([data_part(received(context))])
            await updater.complete()
            return
        does: dict[str, Callable[[TaskUpdater, str], Awaitable[None]]] = {
            "ask": self._ask, "login": self._login, "reject": self._reject, "fail": self._fail,
            "chunks": self._chunks, "data": self._data, "file": self._file, "slow": self._slow,
            "hang": self._hang, "silent": self._silent, "wait": self._wait,
            "rich": self._rich, "starting": self._starting, "outside": self._outside,
            "form": self._form, "broken": self._broken, "long": self._long,
        }  # fmt: skip
        await does.get(word, self._echo)(updater, rest or word)

    async def _echo(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([Part(text=f"echo: {rest}")], name="echo")
        await updater.complete()

    async def _ask(self, updater: TaskUpdater, rest: str) -> None:
        await updater.requires_input(updater.new_agent_message([Part(text="which colour?")]))

    async def _login(self, updater: TaskUpdater, rest: str) -> None:
        words = "log in at https://login.example/x please"
        await updater.requires_auth(updater.new_agent_message([Part(text=words)]))

    async def _reject(self, updater: TaskUpdater, rest: str) -> None:
        await updater.reject(updater.new_agent_message([Part(text="not with me")]))

    async def _fail(self, updater: TaskUpdater, rest: str) -> None:
        await updater.failed(updater.new_agent_message([Part(text="the disk is full")]))

    async def _chunks(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([Part(text="one ")], artifact_id="a1", last_chunk=False)
        await updater.add_artifact(
            [Part(text="two")], artifact_id="a1", append=True, last_chunk=True
        )
        await updater.complete()

    async def _data(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([data_part({"answer": 42})], name="numbers")
        await updater.complete()

    async def _file(self, updater: TaskUpdater, rest: str) -> None:
        part = Part(raw=b"\x00\x01", media_type="application/x-thing", filename="a.thing")
        await updater.add_artifact([part])
        await updater.complete()

    async def _slow(self, updater: TaskUpdater, rest: str) -> None:
        for number in range(3):
            message = updater.new_agent_message([Part(text=f"step {number}")])
            await updater.update_status(TaskState.TASK_STATE_WORKING, message)
            await asyncio.sleep(0.05)
        await updater.complete(updater.new_agent_message([Part(text="all steps done")]))

    async def _silent(self, updater: TaskUpdater, rest: str) -> None:
        await updater.complete()

    async def _starting(self, updater: TaskUpdater, rest: str) -> None:
        await updater.update_status(
            TaskState.TASK_STATE_WORKING, updater.new_agent_message([Part(text="starting")])
        )
        await updater.complete()

    async def _rich(self, updater: TaskUpdater, rest: str) -> None:
        """Says all that there is a place for."""
        message = updater.new_agent_message([data_part({"step": 1})], {"of": "message"})
        await updater.update_status(
            TaskState.TASK_STATE_WORKING, message, metadata={"of": "status"}
        )
        await updater.add_artifact([Part(text="made")], name="a", metadata={"of": "artifact"})
        closing = updater.new_agent_message([Part(text="that was all"), data_part({"n": 1})])
        await updater.update_status(TaskState.TASK_STATE_COMPLETED, closing, metadata={"cost": "2"})

    async def _form(self, updater: TaskUpdater, rest: str) -> None:
        parts = [Part(text="which size?"), data_part({"sizes": ["s", "m"]})]
        await updater.requires_input(updater.new_agent_message(parts))

    async def _broken(self, updater: TaskUpdater, rest: str) -> None:
        parts = [Part(text="the disk is full"), data_part({"free": 0})]
        await updater.failed(updater.new_agent_message(parts))

    async def _outside(self, updater: TaskUpdater, rest: str) -> None:
        """Wants a login elsewhere, and goes on by itself when there is such a file."""
        await self._login(updater, rest)
        await wait_for_file(rest)
        await updater.start_work(updater.new_agent_message([Part(text="welcome")]))
        await updater.add_artifact([Part(text="logged in")])
        await updater.complete()

    async def _wait(self, updater: TaskUpdater, rest: str) -> None:
        """Until there is such a file."""
        await wait_for_file(rest)
        await updater.add_artifact([Part(text="it is there")])
        await updater.complete()

    async def _long(self, updater: TaskUpdater, rest: str) -> None:
        """Does what the file says, and again when it says something else, until the task ends."""
        done = ""
        async with asyncio.timeout(60):
            while True:
                path = Path(rest)
                said = path.read_text(encoding="utf-8") if path.exists() else ""
                if said != done:
                    done = said
                    word, _, words = said.partition(" ")
                    if await self._obey(updater, word, words):
                        return
                await asyncio.sleep(0.02)

    async def _obey(self, updater: TaskUpdater, word: str, words: str) -> bool:
        """Returns whether the task ends, or asks."""
        message = updater.new_agent_message([Part(text=words)])
        if word == "say":
            await updater.update_status(TaskState.TASK_STATE_WORKING, message)
        elif word == "complete":
            await updater.add_artifact([Part(text=words)])
            await updater.complete()
        elif word in ("fail", "reject", "cancel", "ask", "login"):
            ends = {
                "fail": updater.failed, "reject": updater.reject, "cancel": updater.cancel,
                "ask": updater.requires_input, "login": updater.requires_auth,
            }  # fmt: skip
            await ends[word](message)
        return word not in ("", "say", "login")

    async def _hang(self, updater: TaskUpdater, rest: str) -> None:
        message = updater.new_agent_message([Part(text="this takes long")])
        await updater.update_status(TaskState.TASK_STATE_WORKING, message)
        await asyncio.sleep(60)

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
        self._log(event="cancel", task=context.task_id)
        assert context.task_id and context.context_id
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


def received(context: RequestContext) -> dict[str, Any]:
    """What reached the agent."""
    message, configuration = context.message, context.configuration
    assert message is not None and configuration is not None
    return {
        "metadata": dict(context.metadata),
        "message_metadata": json_format.MessageToDict(message.metadata),
        "accepted": list(configuration.accepted_output_modes),
        "history": configuration.history_length,
        "activated": sorted(context.requested_extensions),
        "extensions": list(message.extensions),
        "references": list(message.reference_task_ids),
        "parts": [json_format.MessageToDict(part) for part in message.parts],
    }


def card(url: str, declared: list[str], streaming: bool) -> AgentCard:
    paths = {"JSONRPC": "/rpc", "HTTP+JSON": "/rest"}
    interfaces = []
    for each in declared:
        binding, _, version = each.partition(":")
        interfaces.append(
            AgentInterface(
                url=url + paths[binding], protocol_binding=binding, protocol_version=version
            )
        )
    return AgentCard(
        name="SDK agent",
        description="Does what the first word says.",
        version="1.2.3",
        supported_interfaces=interfaces,
        capabilities=AgentCapabilities(streaming=streaming, push_notifications=False),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id="echo", name="Echo", description="repeats", tags=["test"]),
            AgentSkill(id="ask", name="Ask", description="asks back", tags=["test"]),
        ],
    )


def main(
    agent: type[Agent] = Agent,
    describe: Callable[[str, list[str], bool], AgentCard] = card,
    *,
    validate_input_modes: bool = False,
) -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--declare", action="append", default=[])
    options.add_argument("--no-streaming", action="store_true")
    options.add_argument("--require", action="append", default=[], help="an extension")
    options.add_argument("--card", help="a file of JSON: other members and skills of the card")
    options.add_argument("--skill", action="append", default=[], help="a further one, as ID:TAG")
    options.add_argument("--extended", help="a file of JSON: members of an extended card")
    options.add_argument("--log")
    options.add_argument("--port", type=int, default=0)
    given = options.parse_args()

    def log(**entry: Any) -> None:
        if given.log:
            with open(given.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", given.port))
    port = sock.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    described = describe(url, given.declare or EVERYTHING, not given.no_streaming)
    if given.card:
        members = json.loads(Path(given.card).read_text(encoding="utf-8"))
        described.ClearField("skills")
        json_format.ParseDict(members, described)
    for id, _, tag in (one.partition(":") for one in given.skill):
        described.skills.append(AgentSkill(id=id, name=id, description=f"does {id}", tags=[tag]))
    for uri in given.require:
        described.capabilities.extensions.append(AgentExtension(uri=uri, required=True))
    if given.extended:
        described.capabilities.extended_agent_card = True

    async def extend(card: AgentCard, context: ServerCallContext) -> AgentCard:
        log(event="extended", authorization=context.state["headers"].get("authorization"))
        members = json.loads(Path(given.extended).read_text(encoding="utf-8"))
        extended = AgentCard()
        extended.CopyFrom(card)
        extended.ClearField("skills")
        json_format.ParseDict(members, extended)
        return extended

    handler = DefaultRequestHandler(
        agent_executor=agent(log),
        task_store=InMemoryTaskStore(),
        agent_card=described,
        extended_agent_card=described if given.extended else None,
        extended_card_modifier=extend if given.extended else None,
        validate_input_modes=validate_input_modes,
    )
    app = Starlette(
        routes=[
            *create_agent_card_routes(described),
            *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix="/rest", enable_v0_3_compat=True),
        ]
    )

    async def logged(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            version = request.headers.get("a2a-version", "")
            trace = request.headers.get("x-openstarry-trace-id", "")
            log(event="request", path=request.url.path, version=version, trace=trace)
        await app(scope, receive, send)

    sock.listen(128)
    print(json.dumps({"port": port, "url": url}), flush=True)
    config = uvicorn.Config(
        logged, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
