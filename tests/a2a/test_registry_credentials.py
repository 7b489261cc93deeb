"""Agent credentials: by reference, sent only to the registered origin, never revealed."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.a2a.registry_fixture import external, permit_all, run_changeable_agent, run_registry
from tests.permissive_hub import call_tool
from tests.wire.test_masked_replies import PiecedBody

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.credentials import AgentCredentials, CredentialHttpClient
from dragoman.a2a.remote.registration import create_registration, encode_registration
from dragoman.core.errors import ConfigError, InvalidInput
from dragoman.core.principal import OWNER
from dragoman.core.secret_references import SecretResolver
from dragoman.core.secret_rules import Author, ReferenceRules, SecretUse
from dragoman.stores.registry import RegistryStore
from dragoman.wire.http import HttpReply

pytestmark = pytest.mark.promise("R10")

SECRET = "s3cret-value"
BY_API = SecretUse(Author.API, 'agent "ops"')


def private(path: Path, text: str = SECRET) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    path.chmod(0o600)
    return path


async def test_token_from_the_environment_is_sent_only_to_its_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_changeable_agent("deploy") as agent, run_changeable_agent("other") as elsewhere:
        agent.wants = SECRET
        interface = {"url": elsewhere.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        async with run_registry(tmp_path, lookup={"DRAGOMAN_AGENT_OPS": SECRET}) as here:
            body = {"url": agent.url, "token": "env:DRAGOMAN_AGENT_OPS", "allow_private": True}
            row = await here.listed.add(body)
            assert row["health"] == "healthy"
            await call_tool(here.hub, OWNER, "moody.deploy", {})
            sent = {one.headers.get("authorization") for one in agent.served.requests}
            assert sent == {f"Bearer {SECRET}"}
            agent.card["supportedInterfaces"] = [interface]
            await here.listed.refetch("moody")
            assert elsewhere.served.requests
            assert not any("authorization" in one.headers for one in elsewhere.served.requests)
            told = [
                await here.listed.list_agents(permit_all, secret=True),
                row,
                await here.listed.list_status(),
                here.reasons,
            ]
            assert SECRET not in json.dumps(told) and SECRET not in caplog.text
            assert "env:DRAGOMAN_AGENT_OPS" in json.dumps(
                await here.listed.list_agents(permit_all, secret=True)
            )
            assert "AGENT_OPS" not in json.dumps(
                await here.listed.list_agents(permit_all, secret=False)
            )
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert SECRET.encode() not in kept and b"env:DRAGOMAN_AGENT_OPS" in kept


async def test_token_file_is_read_at_every_use(tmp_path: Path) -> None:
    private(tmp_path / "tokens" / "ops", "first")
    async with run_changeable_agent("deploy") as agent, run_registry(tmp_path) as here:
        agent.wants = "first"
        row = await here.listed.add({"url": agent.url, "token": "file:tokens/ops"})
        assert row["health"] == "healthy"
        agent.wants = "second"
        assert (await here.listed.refetch("moody"))["health"] == "degraded"
        private(tmp_path / "tokens" / "ops", "second")
        assert (await here.listed.refetch("moody"))["health"] == "healthy"
        (tmp_path / "tokens" / "ops").chmod(0o644)
        gone = await here.listed.refetch("moody")
        assert gone["health"] == "degraded" and "chmod 600" in gone["reason"]


async def test_headers_are_expanded_when_sent(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, lookup={"DRAGOMAN_AGENT_KEY": SECRET}) as here,
    ):
        headers = {
            "X-Api-Key": "${DRAGOMAN_AGENT_KEY}",
            "Authorization": "Custom ${DRAGOMAN_AGENT_KEY}",
        }
        await here.listed.add({"url": agent.url, "headers": headers})
        for request in agent.served.requests:
            assert request.headers["x-api-key"] == SECRET
            assert request.headers["authorization"] == f"Custom {SECRET}"
        row = here.listed.get_agent("moody", permit_all, secret=True)
        assert row["credentials"] == {"token": None, "headers": ["x-api-key", "authorization"]}


async def test_missing_secret_is_reported_before_storing(tmp_path: Path) -> None:
    async with run_changeable_agent("deploy") as agent, run_registry(tmp_path) as here:
        with pytest.raises(InvalidInput, match="variable DRAGOMAN_AGENT_ABSENT, which is not set"):
            await here.listed.add({"url": agent.url, "token": "env:DRAGOMAN_AGENT_ABSENT"})
        assert not agent.served.requests and not here.registry.agents.list_agents()


async def test_configured_agent_with_a_missing_secret_is_omitted(
    tmp_path: Path,
) -> None:
    async with run_changeable_agent("deploy") as agent:
        config = external("ops", agent.url, token='"env:ABSENT"')
        async with run_registry(tmp_path, config) as here:
            assert "environment variable ABSENT" in here.agents.failures["ops"]
            assert not here.registry.agents.list_agents()


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (lambda home: None, "tokens/none", "no such file"),
        (lambda home: (home / "tokens/d").mkdir(), "tokens/d", "not a regular file"),
        (lambda home: os.mkfifo(home / "tokens/pipe", 0o600), "tokens/pipe", "not a regular file"),
        (lambda home: (home / "tokens/t").write_text("x"), "tokens/t", "chmod 600"),
        (lambda home: private(home / "tokens/t", "x" * 9_000), "tokens/t", "more than 8192 bytes"),
        (lambda home: private(home / "tokens/t", "two\nlines"), "tokens/t", "visible ASCII"),
        (lambda home: private(home / "tokens/t", ""), "tokens/t", "visible ASCII"),
        (
            lambda home: (home / "tokens/l").symlink_to(private(home.parent / "o")),
            "tokens/l",
            "outside",
        ),
        (
            lambda home: (home / "tokens/l").symlink_to(private(home / "hub.key")),
            "tokens/l",
            "outside",
        ),
    ],
)
async def test_unsafe_or_invalid_token_file_is_refused(
    tmp_path: Path, make: Callable[[Path], object], name: str, said: str
) -> None:
    home = tmp_path / "home"
    (home / "tokens").mkdir(parents=True)
    make(home)
    secrets = SecretResolver({}, home)
    credentials = AgentCredentials("ops", f"file:{name}", {}, secrets, author=Author.API)
    with pytest.raises(ConfigError, match=said) as caught:
        await credentials.resolve()
    assert 'agent "ops"' in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("env:AWS_SECRET_ACCESS_KEY", 'add "AWS_SECRET_ACCESS_KEY" to credential_env below'),
        ("env:dragoman_agent_x", "begins with DRAGOMAN_AGENT_"),
        ("env:LISTED2", 'add "LISTED2"'),
        ("file:env", "file:tokens/NAME"),
        ("file:env.bak", "file:tokens/NAME"),
        ("file:servers/github/home/.config/tok", "file:tokens/NAME"),
        ("file:tokens", "file:tokens/NAME"),
        ("file:tokens/../hub.key", "file:tokens/NAME"),
        ("file:tokens2/x", "file:tokens/NAME"),
        ("file:../tokens/x", "file:tokens/NAME"),
        ("file:/etc/hostname", "file:tokens/NAME"),
    ],
)
def test_api_references_only_agent_credentials(tmp_path: Path, reference: str, said: str) -> None:
    rules = ReferenceRules(["LISTED"], tmp_path)
    for allowed in ("env:LISTED", "env:DRAGOMAN_AGENT_X", "file:tokens/a/b", "file:tokens/x"):
        rules.check(allowed, BY_API)
    with pytest.raises(InvalidInput, match=re.escape(said)):
        rules.check(reference, BY_API)


async def test_operator_may_reference_any_file(tmp_path: Path) -> None:
    outside = private(tmp_path / "outside")
    home = tmp_path / "home"
    home.mkdir()
    secrets = SecretResolver({}, home)
    credentials = AgentCredentials("ops", f"file:{outside}", {}, secrets, author=Author.OWNER)
    credentials.check_local()
    assert await credentials.resolve() == {"authorization": f"Bearer {SECRET}"}
    assert SECRET not in str(credentials.headers)
    for name in ("hub.key", "hub.db", "env"):
        private(home / name)
        own = AgentCredentials("ops", f"file:{name}", {}, secrets, author=Author.OWNER)
        with pytest.raises(ConfigError, match="belongs to the hub itself"):
            await own.resolve()
        with pytest.raises(ConfigError, match="belongs to the hub itself"):
            own.check_local()


async def test_refused_reference_sends_and_reveals_nothing(tmp_path: Path) -> None:
    """By registering, by registering again and by changing."""
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, lookup={"VENDOR": SECRET, "DRAGOMAN_AGENT_A": "a"}) as here,
    ):
        refused = []
        for name in ("VENDOR", "NOT_SET"):
            for body in ({"token": f"env:{name}"}, {"headers": {"Cookie": f"Bearer ${{{name}}}"}}):
                with pytest.raises(InvalidInput) as caught:
                    await here.listed.add({"url": agent.url, **body})
                refused.append(str(caught.value).replace(name, "NAME"))
        assert len(set(refused)) == 1 and not agent.served.requests
        await here.listed.add({"url": agent.url, "token": "env:DRAGOMAN_AGENT_A"})
        for act in (
            here.listed.add({"url": agent.url, "token": "env:VENDOR"}),
            here.listed.change("moody", {"token": "env:VENDOR"}),
            here.listed.change("moody", {"token": None, "headers": {"X": "${VENDOR}"}}),
        ):
            with pytest.raises(InvalidInput, match="credential_env"):
                await act
        await here.listed.refetch("moody")
        assert {one.headers.get("authorization") for one in agent.served.requests} == {"Bearer a"}
        assert SECRET not in str([one.headers for one in agent.served.requests])


async def test_credential_reference_is_bound_to_its_first_origin(
    tmp_path: Path,
) -> None:
    """Also after the agent was removed and the hub was started again."""
    variables = {"DRAGOMAN_AGENT_OPS": SECRET}
    private(tmp_path / "tokens" / "ops")
    async with run_changeable_agent("deploy") as agent, run_changeable_agent("steal") as thief:
        async with run_registry(tmp_path, lookup=variables) as here:
            body = {"url": agent.url, "token": "env:DRAGOMAN_AGENT_OPS"}
            await here.listed.add({**body, "headers": {"X-Key": "${DRAGOMAN_AGENT_OPS}"}})
            await here.listed.remove("moody")
            await here.listed.add({"url": agent.url, "token": "file:tokens/ops"})
            await here.listed.remove("moody")
        async with run_registry(tmp_path, lookup=variables) as here:
            for given in (
                {"token": "env:DRAGOMAN_AGENT_OPS"},
                {"headers": {"X-Key": "${DRAGOMAN_AGENT_OPS}"}},
                {"token": "file:tokens/ops"},
                {"token": "file:tokens/.//ops"},
            ):
                with pytest.raises(InvalidInput, match=f"is reserved for {agent.url}"):
                    await here.listed.add({"url": thief.url, **given})
            await here.listed.add({"url": f"{agent.url}/", "token": "file:tokens/ops"})
            with pytest.raises(InvalidInput, match='unknown setting "url"'):
                await here.listed.change("moody", {"url": thief.url})
        assert not thief.served.requests
        # The operator says otherwise in config.toml.
        written = external("thief", thief.url, token='"env:DRAGOMAN_AGENT_OPS"')
        async with run_registry(tmp_path, written, lookup=variables) as here:
            await here.registry.wait_until_checked()
            assert thief.served.requests[-1].headers["authorization"] == f"Bearer {SECRET}"


async def test_stored_agent_with_a_forbidden_reference_is_kept_unused(
    tmp_path: Path,
) -> None:
    """As a version of the hub that allowed every variable has stored it."""
    async with (
        run_changeable_agent("deploy", name="Ops") as agent,
        run_changeable_agent("b", name="Other") as other,
    ):
        store = RegistryStore(tmp_path)
        for name, url in (("Ops", agent.url), ("Other", other.url)):
            entry = ExternalAgent(name=name, url=url, token="env:VENDOR")
            store.save_agent(encode_registration(create_registration(entry, 1.0)))
        store.close()
        async with run_registry(tmp_path, lookup={"VENDOR": SECRET}) as here:
            row = here.one("ops")
            assert (row["health"], row["enabled"]) == ("unknown", True) and not row["tools"]
            assert "is not used" in row["reason"] and "credential_env" in row["reason"]
            assert [one["refused"] for one in await here.listed.list_status()] == [True, True]
            changed = await here.listed.change("ops", {"trustLevel": "trusted"})
            assert "credential_env" in changed["reason"] and not agent.served.requests
            await here.listed.refetch("ops")
            again = await here.listed.change("ops", {"token": None})
            assert again["health"] == "healthy" and agent.served.requests
            assert "authorization" not in agent.served.requests[-1].headers
        allowed = 'credential_env = ["VENDOR"]\n'
        async with run_registry(tmp_path, bridge=allowed, lookup={"VENDOR": SECRET}) as here:
            await here.registry.wait_until_checked()
            assert here.one("other")["health"] == "healthy"
            assert other.served.requests[-1].headers["authorization"] == f"Bearer {SECRET}"
            await here.listed.change("ops", {"token": "env:VENDOR"})  # it was there before


async def test_token_that_is_replaced_while_its_reply_is_awaited_is_masked(tmp_path: Path) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    class SlowEcho:
        """Repeats the token; the first reply waits."""

        async def request(
            self, method: str, url: str, headers: Mapping[str, str], *_: object, **__: object
        ) -> HttpReply:
            data = headers["authorization"].encode()
            if not begun.is_set():
                begun.set()
                await may_end.wait()
            return HttpReply(200, {}, PiecedBody(data, len(data)))

    file = private(tmp_path / "tokens" / "ops", "first-secret")
    secrets = SecretResolver({}, tmp_path)
    credentials = AgentCredentials("ops", "file:tokens/ops", {}, secrets, author=Author.API)
    client = CredentialHttpClient(SlowEcho(), credentials)

    async def call() -> bytes:
        reply = await client.request("POST", "http://x", credentials.headers, timeout=60)
        return await reply.body.read(10_000)

    async with asyncio.timeout(60):
        first = asyncio.create_task(call())
        await begun.wait()
        private(file, "second-secret")
        assert await call() == b"Bearer ***"
        may_end.set()
        assert await first == b"Bearer ***"
