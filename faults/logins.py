"""Users with logins of their own at one server: whose token each call leaves with, while tokens
expire, are refreshed, and users log out and in again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from typing import Any

from tests.oauth.login_rig import LoginRig, build_login_rig

from faults.harness import Outcome, temporary_home

for _noisy in ("mcp", "httpx"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)

USERS = tuple(f"user{number}" for number in range(6))
AT_ONCE = 40
LOGOUTS = 5
ERROR = "dragoman.hub/error"


def interleave_users(calls: int, seed: int, outcome: Outcome) -> None:
    """`calls` in each era, of six users at one server."""
    for era in ("modern", "legacy"):
        asyncio.run(_interleave(era, calls, seed, outcome))


async def _interleave(era: str, calls: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(f"{seed} {era}")
    with temporary_home() as home:
        async with build_login_rig(
            home, credentials="user", era=era, users=USERS, own_process=True
        ) as rig:
            for user in USERS:
                await rig.log_in(user)
            await rig.until_state("connected")
            marks = [(chance.choice(USERS), f"{era}-{number}") for number in range(calls)]
            answered: Counter[str] = Counter()
            todo = iter(marks)

            async def work() -> None:
                for user, text in todo:
                    answered[_judge(await rig.call(user, text), text)] += 1

            workers = [asyncio.ensure_future(work()) for _ in range(AT_ONCE)]
            await _disturb(rig, chance, workers)
            await asyncio.gather(*workers)
            _check(rig, marks, answered, outcome, era)


async def _disturb(rig: LoginRig, chance: random.Random, workers: list[Any]) -> None:
    """Lets all tokens expire once, and users log out and in again, while calls are made. A server
    that rejects fresh tokens again and again would be another experiment."""
    await asyncio.sleep(chance.uniform(0.1, 0.5))
    rig.authority.expire()
    for user in chance.sample(USERS, LOGOUTS):
        if all(one.done() for one in workers):
            return
        await asyncio.sleep(chance.uniform(0.02, 0.2))
        await rig.api("DELETE", "/api/mcp/servers/files/login", user)
        await rig.log_in(user)


def _judge(result: dict[str, Any], text: str) -> str:
    if result.get("isError"):
        return str(result.get("_meta", {}).get(ERROR, {}).get("kind", "other"))
    content = result.get("content") or [{}]
    return "answered" if content[0].get("text") == text else f"wrong: {result!r:.200}"


def _check(
    rig: LoginRig,
    marks: list[tuple[str, str]],
    answered: Counter[str],
    outcome: Outcome,
    era: str,
) -> None:
    owners = {text: user for user, text in marks}
    crossed = [(user, text) for user, text in rig.server.calls if owners[text] != user]
    shared = [users for users in rig.server.sessions.values() if len(users) > 1]
    repeated = [text for text, many in Counter(t for _, t in rig.server.calls).items() if many > 1]
    outcome.check(not crossed, f"{era}: calls left with the token of another user: {crossed[:5]}")
    outcome.check(not shared, f"{era}: sessions were shared by users: {shared[:5]}")
    outcome.check(not repeated, f"{era}: calls were made twice: {repeated[:5]}")
    # Between a logout and the next login a call has no token; everything else is answered.
    allowed = {"answered", "LoginRequired", "Unreachable"}
    strange = {kind: many for kind, many in answered.items() if kind not in allowed}
    outcome.check(not strange, f"{era}: {strange}")
    outcome.check(
        answered["answered"] >= 0.8 * len(marks), f"{era}: too few calls were answered: {answered}"
    )
    outcome.count(f"calls answered, {era}", answered["answered"])
    outcome.count(f"calls without a login, {era}", answered["LoginRequired"])
    outcome.count(f"refreshes, {era}", rig.authority.refreshes)
