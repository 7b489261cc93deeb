"""Changes messages for the fuzzers: values, members, headers, paths and bytes.

A case is a pure function of the door, the seed and its number. Imports only the standard library,
because servers and agents that fuzz the hub use it in processes of their own.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from faults.message_seeds import Seed

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 1e308, "", "x" * 3000, "\0",
    "\U0001f600", "\ud800", "../..", "%00", "${HOME}", "é" * 100, [], {}, [[]], {"": ""},
    [None] * 50, {"a": {"b": {"c": []}}}, "dragoman", "__proto__", "2026-07-28", "ROLE_USER",
    "TASK_STATE_WORKING", "NaN", "2026-13-45T99:99:99Z", "1970-01-01T00:00:00Z", [1, [2, [3]]],
]  # fmt: skip
KEYS = [
    "id", "method", "params", "jsonrpc", "result", "error", "metadata", "taskId", "_meta", "name",
    "arguments", "parts", "x",
]  # fmt: skip
HEADERS: dict[str, list[str]] = {
    "Mcp-Protocol-Version": ["2025-11-25", "2026-07-28", "1999-01-01", "", "\t"],
    "Mcp-Session-Id": ["x", "\xe9", "a" * 500],
    "Mcp-Method": ["tools/call", "", "x"],
    "Mcp-Name": ["mcp_r_echo", "=?base64?eA==?=", "\xff"],
    "A2A-Version": ["1.0", "0.3", "9", "x", ""],
    "A2A-Extensions": ["https://a/b", ",", "x" * 2000],
    "Idempotency-Key": ["k", "", "k" * 400, "\xe9"],
    "Last-Event-ID": ["0", "-1", "zz", "9" * 40],
    "Accept": ["*/*", "text/event-stream", "application/json", "x", "a/b;q=z, */*;q=0"],
    "Content-Type": ["text/plain", "application/json; charset=utf-16", "application/a2a+json", ""],
    "Content-Encoding": ["gzip", "identity"],
    "traceparent": ["00-0-0-0", "x" * 200, f"00-{'f' * 32}-{'f' * 16}-01"],
    "Authorization": ["Bearer", "Bearer x", "Basic eDp5"],
    "Origin": ["null", "http://evil.example"],
}


def mutate(value: Any, chance: random.Random, odd: float = 0.02) -> Any:
    """The same shape with some values replaced, some members gone, renamed, added or repeated.

    The deeper a value lies, the likelier it is replaced by an odd one.
    """
    if chance.random() < odd:
        return copy.deepcopy(chance.choice(ODD))
    if isinstance(value, dict):
        made = {}
        for name, member in value.items():
            kind = chance.random()
            if kind < 0.04:
                continue
            renamed = chance.choice([*KEYS, name.upper(), name + " "]) if kind < 0.06 else name
            deeper = min(2 * odd + 0.04, 0.2)
            made[renamed] = mutate(member, chance, deeper) if chance.random() < 0.5 else member
        if chance.random() < 0.1:
            made[chance.choice(KEYS)] = copy.deepcopy(chance.choice(ODD))
        return made
    if isinstance(value, list):
        return [mutate(one, chance, odd) for one in value] * chance.choice([1, 1, 1, 0, 3])
    return value


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    kind = chance.random()
    if kind < 0.08 and made:
        for _ in range(chance.randint(1, 4)):
            made[chance.randrange(len(made))] = chance.randrange(256)
    elif kind < 0.1:
        del made[chance.randrange(len(made) + 1) :]
    elif kind < 0.11:
        made = bytearray(b"[" * chance.randint(1, 3000) + made)
    return bytes(made)


def mutate_path(path: str, chance: random.Random) -> str:
    if chance.random() > 0.1:
        return path
    odd = quote(str(chance.choice(ODD)).encode("utf-8", "surrogatepass"))[:400]
    parts = path.split(chance.choice("/=?&"))
    parts[chance.randrange(len(parts))] = odd
    return chance.choice("/=&").join(parts) if not chance.randrange(3) else "/".join(parts)


def build_case(door: str, seeds: Sequence[Seed], seed: int, number: int) -> Seed:
    chance = random.Random(f"{door}:{seed}:{number}")
    begun = chance.choice(seeds)
    path = mutate_path(begun.path, chance)
    headers = dict(begun.headers)
    for name in chance.sample(list(HEADERS), chance.choice([0, 0, 0, 1, 1, 2])):
        headers[name] = chance.choice(HEADERS[name])
    if chance.random() < 0.05 and headers:
        headers.pop(chance.choice(list(headers)))
    body = None
    if begun.body is not None:
        message = begun.body
        if isinstance(message, dict) and message.get("id") == 1:
            message = {**message, "id": number}  # of those that run, each has another one
        body = mutate_bytes(json.dumps(mutate(message, chance)).encode(), chance)
    elif chance.random() < 0.05:
        body = b"{}"
    return Seed(path if path.startswith("/") else "/" + path, body, begun.method, headers)
