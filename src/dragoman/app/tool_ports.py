"""Joins the built-in tools with the guarded HTTP client, the A2A client and the command runner."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple
from uuid import uuid4

from dragoman.a2a.client.client import A2aClient
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.parts import block_from_part
from dragoman.core.backoff import Backoff
from dragoman.core.call import Result
from dragoman.core.errors import HubError, InvalidInput, Unreachable, WorkFailed
from dragoman.core.local_agents import AgentProfile
from dragoman.core.urls import render_origin
from dragoman.net.urls import BadUrl, join_url, parse_url
from dragoman.processes.command_runner import CommandRunner, CommandSpec
from dragoman.processes.config import ProcessLimits, SandboxLevel
from dragoman.tools.a2a import CheckOrigin
from dragoman.tools.shell import ShellLimits, ShellOutcome
from dragoman.tools.web import DialledOrigin
from dragoman.tools.workspace import parse_path
from dragoman.wire.http import NO_HEADERS, AddressFinder, HttpClient, HttpReply

FIRST_POLL, LONGEST_POLL = 0.2, 3.0
_ENDED = {"COMPLETED", "FAILED", "CANCELED", "REJECTED"}
_WAITING = {"INPUT_REQUIRED", "AUTH_REQUIRED"}


def find_origin(url: str) -> DialledOrigin:
    """Parses a URL as the HTTP client does. Raises `InvalidInput`."""
    try:
        return DialledOrigin(*parse_url(url).origin)
    except BadUrl as problem:
        raise InvalidInput(f'"{render_origin(url)}" cannot be used: {problem}') from None


class GuardedWeb(NamedTuple):
    """Implements `tools.web.WebPort`."""

    http: HttpClient

    def find_origin(self, url: str) -> DialledOrigin:
        return find_origin(url)

    def join(self, url: str, location: str) -> str:
        try:
            return join_url(parse_url(url), location).full
        except BadUrl as problem:
            raise InvalidInput(f"the page redirects to an invalid URL: {problem}") from None


class SearchEngine(NamedTuple):
    """Implements `tools.web.SearchPort`."""

    url: str
    http: HttpClient
    headers: Mapping[str, str] = NO_HEADERS


class SandboxedShell(NamedTuple):
    """Implements `tools.shell.ShellRunner`. A command sees the system, and may write to the
    workspace of its agent and to a private home."""

    runner: CommandRunner
    sandbox: SandboxLevel
    file_megabytes: int
    """The largest file that a command may write."""

    async def run(
        self, agent: AgentProfile, argv: Sequence[str], timeout: float, limits: ShellLimits
    ) -> ShellOutcome:
        workspace, program = str(agent.workspace), argv[0]
        if "/" in program and not program.startswith("/"):  # a file of the workspace
            program = str(agent.workspace.joinpath(*parse_path(program)))
        spec = CommandSpec(
            name=agent.name,
            command=[program, *argv[1:]],
            cwd=workspace,
            sandbox=self.sandbox,
            writable=[workspace],
            limits=ProcessLimits(file_megabytes=self.file_megabytes),
            seconds=timeout,
            output_bytes=limits.output_bytes,
        )
        outcome = await self.runner.run(spec)
        if outcome.flooded:
            raise WorkFailed(f'"{argv[0][:100]}" failed: {outcome.describe()}')
        return ShellOutcome(
            outcome.status if outcome.status is not None else -1,
            outcome.stdout.read_text(),
            outcome.stderr.read_text(),
            outcome.signal,
            bool(outcome.stdout.omitted or outcome.stderr.omitted),
            outcome.timed_out,
        )


class GrantedHttp(NamedTuple):
    """Implements `wire.http.HttpClient` and `AddressFinder`: each origin is checked where it is
    dialled, also one that a card names. Redirects are not followed."""

    http: HttpClient
    check: CheckOrigin

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        self.check(find_origin(url))
        return await self.http.request(
            method, url, headers, body, timeout=timeout, extra_headers=extra_headers
        )

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        self.check(find_origin(url))
        if not isinstance(self.http, AddressFinder):
            raise Unreachable("this client supports no gRPC", sent=False)
        return await self.http.find_addresses(url, timeout)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        return dict(headers)


class A2aPeers:
    """Implements `tools.a2a.A2aPort`: agents that are not registered, without credentials."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def find_origin(self, url: str) -> DialledOrigin:
        return find_origin(url)

    async def discover(self, url: str, check: CheckOrigin) -> Mapping[str, Any]:
        async with aclosing(_PeerClient(self._http, check)) as peer:
            return (await peer.client.discover(url)).card

    async def send(
        self, url: str, message: str, context: str, check: CheckOrigin
    ) -> tuple[Result, str]:
        sent: dict[str, Any] = {
            "messageId": str(uuid4()),
            "role": "ROLE_USER",
            "parts": [{"text": message}],
        }
        if context:
            sent["contextId"] = context
        async with aclosing(_PeerClient(self._http, check)) as peer:
            return await peer.send(url, sent)


class _PeerClient:
    """A client for one use: what is known of an agent belongs to the grants it was learnt with."""

    def __init__(self, http: HttpClient, check: CheckOrigin) -> None:
        self.client = A2aClient(GrantedHttp(http, check))

    async def send(self, url: str, sent: Mapping[str, Any]) -> tuple[Result, str]:
        try:
            answer = await self.client.send_message(url, {"message": sent})
            task = answer.get("task")
            if isinstance(task, dict):
                return _result_from_task(await self._follow(url, task))
        except A2aError as error:
            raise WorkFailed(f'the agent at "{render_origin(url)}": {error.message}') from error
        reply = answer.get("message")
        holder = reply if isinstance(reply, dict) else {}
        return Result(content=_read_blocks(holder)), str(holder.get("contextId") or "")

    async def _follow(self, url: str, task: dict[str, Any]) -> dict[str, Any]:
        """Polls a task until it ends or waits; the time of the call bounds it."""
        backoff = Backoff(FIRST_POLL, LONGEST_POLL)
        id = str(task.get("id", ""))
        try:
            while _read_state(task) not in _ENDED | _WAITING:
                await asyncio.sleep(backoff.next_delay())
                task = await self.client.get_task(url, id)
        except asyncio.CancelledError:
            # No caller waits for the task any more.
            await asyncio.shield(self._cancel(url, id))
            raise
        return task

    async def _cancel(self, url: str, id: str) -> None:
        try:
            async with asyncio.timeout(2):
                await self.client.cancel_task(url, id)
        except (TimeoutError, A2aError, HubError):
            pass

    async def aclose(self) -> None:
        await self.client.close()


def _read_state(task: Mapping[str, Any]) -> str:
    status = task.get("status")
    state = status.get("state") if isinstance(status, dict) else None
    return str(state or "").removeprefix("TASK_STATE_")


def _read_blocks(holder: Any) -> list[dict[str, Any]]:
    parts = holder.get("parts") if isinstance(holder, dict) else None
    return [block_from_part(one) for one in parts or () if isinstance(one, dict)]


def _result_from_task(task: Mapping[str, Any]) -> tuple[Result, str]:
    state = _read_state(task)
    status = task.get("status")
    said = _read_blocks(status.get("message")) if isinstance(status, dict) else []
    artifacts = task.get("artifacts")
    made = [
        block
        for artifact in (artifacts if isinstance(artifacts, list) else ())
        for block in _read_blocks(artifact)
    ]
    content = made or said
    if state in _WAITING:
        asks = "asks for more input" if state == "INPUT_REQUIRED" else "requires a login"
        content = [*said, {"type": "text", "text": f"[The agent {asks}.]"}]
    elif state != "COMPLETED":
        content = [*said, {"type": "text", "text": f"[The task ended as {state.lower()}.]"}]
    failed = state not in ("COMPLETED", "INPUT_REQUIRED")
    return Result(content=content, failed=failed), str(task.get("contextId") or "")
