"""Foreign agents over the bridge: their skill is called as an MCP tool, asks, is answered, and is
cancelled.
"""

import http.client
import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tests.peers import wire

from conformance.paths import HOMES, HUB
from conformance.peers import Result
from conformance.processes import Command, run

SECONDS = 20.0
ASKABLE: dict[str, Any] = {"elicitation": {"form": {}}}


def as_tool(title: str, name: str, url: str, base: str, slow: bool) -> list[Result]:
    """Of the agent `name` at `url`, by the hub at `base`; `slow` where it gives out its task."""
    steps: dict[str, Callable[[], str | None]] = {
        "a skill is a tool": lambda: _called(base, name),
        "its question is asked and answered": lambda: _answered(base, name),
    }
    if slow:
        steps["its task is cancelled with the call"] = lambda: _cancelled(base, name, url)
    found = []
    for label, step in steps.items():
        try:
            problem = step()
        except (OSError, KeyError, ValueError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"[:300]
        found.append(Result(f"{title}: {label}", problem))
    return found


def _tool(base: str, name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "_", name.lower())
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        listed = wire.modern_request(f"{base}/mcp", "tools/list").rpc()["result"]["tools"]
        for tool in listed:
            if tool["name"].startswith(f"{slug}."):
                return str(tool["name"])
        time.sleep(0.05)
    raise KeyError(f"no skill of {name} is listed")


def _params(base: str, name: str, words: str, **more: Any) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/clientCapabilities": ASKABLE}
    return {"name": _tool(base, name), "arguments": {"text": words}, "_meta": meta, **more}


def _call(base: str, params: dict[str, Any]) -> Any:
    return wire.modern_request(f"{base}/mcp", "tools/call", params, timeout=SECONDS).rpc()["result"]


def _called(base: str, name: str) -> str | None:
    result = _call(base, _params(base, name, "hello"))
    return None if _says(result, "echo: hello") else f"came {json.dumps(result)[:300]}"


def _answered(base: str, name: str) -> str | None:
    asked = _call(base, _params(base, name, "ask"))
    if asked.get("resultType") != "input_required":
        return f"it did not ask: {json.dumps(asked)[:300]}"
    answers = {
        key: {"action": "accept", "content": {"reply": "more"}} for key in asked["inputRequests"]
    }
    more = {"inputResponses": answers, "requestState": asked["requestState"]}
    result = _call(base, _params(base, name, "ask", **more))
    return None if _says(result, "echo: more") else f"came {json.dumps(result)[:300]}"


def _says(result: Any, words: str) -> bool:
    return not result.get("isError") and words in json.dumps(result.get("content"))


def _cancelled(base: str, name: str, url: str) -> str | None:
    params = _params(base, name, "slow")
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=SECONDS)
    headers = {"Content-Type": "application/json", "Accept": wire.ACCEPT}
    headers |= wire.modern_headers("tools/call", params)
    body = json.dumps(wire.request(1, "tools/call", wire.modern_params(params)))
    connection.request("POST", "/mcp", body, headers)
    try:
        _dispatch(base, "running")
        time.sleep(0.5)  # until the agent has said what its task is called, which is not told here
    finally:
        connection.close()
    task = str(_dispatch(base, "cancelled")["taskId"])
    command: Command = [HUB, "a2a", "task", url, task, "--json"]
    command += ["--home", HOMES / f"a2a-hand-{name}"]
    end = time.monotonic() + SECONDS
    while True:
        _, out, errors = run(f"bridge-{name}-task", command, SECONDS)
        if "TASK_STATE_CANCELED" in out:
            return None
        if time.monotonic() > end:
            return f"its task is {(out or errors).strip()[:300]}"


def _dispatch(base: str, status: str) -> Any:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        answer = wire.get(f"{base}/api/a2a/dispatches?status={status}").json()
        if answer["dispatches"]:
            return answer["dispatches"][0]
        time.sleep(0.05)
    raise KeyError(f"no dispatch is {status}")
