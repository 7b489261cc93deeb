"""What agents are shown to prove who asks: by reference, to the registered origin, never told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.a2a.registry_ground import anybody, external, ground, moody

from dragoman.a2a.credentials import Credentials
from dragoman.core.errors import ConfigError, InvalidInput
from dragoman.core.principal import OWNER
from dragoman.core.view import EVERYTHING

pytestmark = pytest.mark.promise("R10")

SECRET = "s3cret-value"


def private(path: Path, text: str = SECRET) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    path.chmod(0o600)
    return path


async def test_a_token_of_the_environment_is_shown_to_the_agent_and_to_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with moody("deploy") as agent, moody("other") as elsewhere:
        agent.wants = SECRET
        interface = {"url": elsewhere.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        async with ground(tmp_path, lookup={"OPS_TOKEN": SECRET}) as here:
            row = await here.listed.add({"url": agent.url, "token": "env:OPS_TOKEN"})
            assert row["health"] == "healthy"
            await here.hub.call(OWNER, "moody.deploy", {}, door="test", view=EVERYTHING)
            sent = {one.headers.get("authorization") for one in agent.served.requests}
            assert sent == {f"Bearer {SECRET}"}
            agent.card["supportedInterfaces"] = [interface]
            await here.listed.refetch("moody")
            assert elsewhere.served.requests
            assert not any("authorization" in one.headers for one in elsewhere.served.requests)
            told = [here.listed.all(anybody, secret=True), row, here.side.status(), here.reasons]
            assert SECRET not in json.dumps(told) and SECRET not in caplog.text
            assert "env:OPS_TOKEN" in json.dumps(here.listed.all(anybody, secret=True))
            assert "OPS_TOKEN" not in json.dumps(here.listed.all(anybody, secret=False))
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert SECRET.encode() not in kept and b"env:OPS_TOKEN" in kept


async def test_a_file_is_read_at_every_use(tmp_path: Path) -> None:
    private(tmp_path / "secrets" / "ops", "first")
    async with moody("deploy") as agent, ground(tmp_path) as here:
        agent.wants = "first"
        row = await here.listed.add({"url": agent.url, "token": "file:secrets/ops"})
        assert row["health"] == "healthy"
        agent.wants = "second"
        assert (await here.listed.refetch("moody"))["health"] == "degraded"
        private(tmp_path / "secrets" / "ops", "second")
        assert (await here.listed.refetch("moody"))["health"] == "healthy"
        (tmp_path / "secrets" / "ops").chmod(0o644)
        gone = await here.listed.refetch("moody")
        assert gone["health"] == "degraded" and "chmod 600" in gone["reason"]


async def test_headers_are_filled_in_on_the_way_out(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, lookup={"KEY": SECRET}) as here:
        headers = {"X-Api-Key": "${KEY}", "Authorization": "Custom ${KEY}"}
        await here.listed.add({"url": agent.url, "headers": headers})
        for request in agent.served.requests:
            assert request.headers["x-api-key"] == SECRET
            assert request.headers["authorization"] == f"Custom {SECRET}"
        row = here.listed.one("moody", anybody, secret=True)
        assert row["credentials"] == {"token": None, "headers": ["x-api-key", "authorization"]}


async def test_a_secret_that_is_not_there_is_said_before_anything_is_kept(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path) as here:
        with pytest.raises(InvalidInput, match="environment variable ABSENT, which is not set"):
            await here.listed.add({"url": agent.url, "token": "env:ABSENT"})
        assert not agent.served.requests and not here.registry.all()


async def test_an_agent_of_the_configuration_whose_secret_is_missing_is_left_out(
    tmp_path: Path,
) -> None:
    async with moody("deploy") as agent:
        config = external("ops", agent.url, token='"env:ABSENT"')
        async with ground(tmp_path, config) as here:
            assert "environment variable ABSENT" in here.side.failures["ops"]
            assert not here.registry.all()


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (lambda home: None, "none", "no such file"),
        (lambda home: (home / "d").mkdir(), "d", "no regular file"),
        (lambda home: os.mkfifo(home / "pipe", 0o600), "pipe", "no regular file"),
        (lambda home: (home / "t").write_text("x"), "t", "chmod 600"),
        (lambda home: private(home / "t", "x" * 9_000), "t", "more than 8192 bytes"),
        (lambda home: private(home / "t", "two\nlines"), "t", "visible ASCII"),
        (lambda home: private(home / "t", ""), "t", "visible ASCII"),
        (lambda home: private(home / "hub.key"), "hub.key", "hub's own"),
        (lambda home: private(home / "hub.db"), "hub.db", "hub's own"),
        (lambda home: private(home / "env"), "./env", "hub's own"),
        (lambda home: private(home.parent / "out"), "../out", "outside"),
        (lambda home: private(home.parent / "out"), "sub/../../out", "no such file|outside"),
        (lambda home: (home / "l").symlink_to(private(home.parent / "o")), "l", "outside"),
        (lambda home: None, "/etc/hostname", "outside|no such file"),
    ],
)
def test_a_file_that_is_not_private_or_not_in_the_home_is_no_token(
    tmp_path: Path, make: Callable[[Path], object], name: str, said: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    make(home)
    credentials = Credentials("ops", f"file:{name}", {}, {}, home, anywhere=False)
    with pytest.raises(ConfigError, match=said) as caught:
        credentials.values()
    assert 'agent "ops"' in str(caught.value) and SECRET not in str(caught.value)


def test_whoever_writes_the_configuration_may_point_anywhere(tmp_path: Path) -> None:
    outside = private(tmp_path / "outside")
    home = tmp_path / "home"
    home.mkdir()
    credentials = Credentials("ops", f"file:{outside}", {}, {}, home, anywhere=True)
    assert credentials.values() == {"authorization": f"Bearer {SECRET}"}
    assert SECRET not in str(credentials.headers)
