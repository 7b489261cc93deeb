from __future__ import annotations

import json

import pytest
from tests.cli.terminal import Terminal
from tests.skill_hub import SkillHub

from dragoman.core.errors import AuthorizationError
from dragoman.core.principal import Principal
from dragoman.guards.audit import Audit
from dragoman.stores.audit.log import SqliteAuditLog


@pytest.mark.promise("R12")
async def test_tail_prints_principal_and_decision(terminal: Terminal) -> None:
    terminal.home.mkdir(mode=0o700)
    log = SqliteAuditLog(terminal.home)
    skill_hub = SkillHub(before=[Audit(log)])
    await skill_hub.call(who=Principal("key", "ci", behalf="carol"))
    await skill_hub.call("files.read")
    skill_hub.judge.denied.add("vercel_ops.deploy")
    with pytest.raises(AuthorizationError):
        await skill_hub.call()
    log.close()

    lines = terminal.run("audit", "tail").out.splitlines()
    assert lines[1].endswith("vercel_ops.deploy  for carol  permit (team)")
    assert lines[2].endswith("files.read  permit (team)")
    assert lines[3].endswith("vercel_ops.deploy  deny (no-deploys)")

    def verbs(*args: str) -> list[tuple[str, str]]:
        done = terminal.run("audit", "tail", "--json", *args)
        assert done.code == 0, done.err
        rows = [json.loads(line) for line in done.out.splitlines()]
        return [(row["verb"], row["decision"]) for row in rows]

    assert verbs("--decision", "deny") == [("vercel_ops.deploy", "deny")]
    assert verbs("--agent", "card-1", "-n", "1") == [("vercel_ops.deploy", "deny")]
    assert len(verbs("--agent", "Vercel Ops")) == 3
    assert verbs("--agent", "nobody") == []
    assert "no matching records" in terminal.run("audit", "tail", "--agent", "nobody").err
