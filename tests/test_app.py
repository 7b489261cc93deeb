"""The composition root: a complete hub in this process, and commands that need none."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dragoman import home
from dragoman.app.build import build_app
from dragoman.app.process import find_loop_factory
from dragoman.config import Config
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.keys import KeyStore


async def test_uptime_ignores_wall_clock_changes(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.prepare(str(short_tmp))
    app = build_app(short_tmp, Config(), "mcp")
    try:
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: 0.0)
            assert 0 <= (await app.status.status())["uptime_secs"] < 3_600
            assert "dragoman_uptime_seconds -" not in app.status.metrics()
    finally:
        await app.stop()


def test_a_connection_that_was_closed_while_it_is_written_to_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    build_loop = find_loop_factory()
    assert build_loop is not None
    with closing(build_loop()) as loop:

        async def fail_on(is_closed: bool) -> None:
            """Passes on what uvloop does when it writes with TLS."""
            server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1")
            async with server:
                port = server.sockets[0].getsockname()[1]
                transport, protocol = await loop.create_connection(
                    asyncio.Protocol, "127.0.0.1", port
                )
                if is_closed:
                    transport.close()
                error = RuntimeError("the handler is closed")
                context = {"transport": transport, "protocol": protocol, "exception": error}
                loop.call_exception_handler({"message": "Fatal error on SSL protocol", **context})
                transport.close()

        loop.run_until_complete(fail_on(True))
        assert not caplog.records
        loop.run_until_complete(fail_on(False))
        assert [one.levelname for one in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(ConnectionResetError(), False), (OSError("the disk is full"), True), (ValueError(), True)],
)
def test_a_failed_connection_that_is_not_waited_for_is_no_error(
    error: Exception, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    build_loop = find_loop_factory()
    assert build_loop is not None
    with closing(build_loop()) as loop:
        loop.create_future().set_exception(error)  # as uvloop does when a handshake fails
        gc.collect()
        assert bool(caplog.records) == is_logged

        async def fail() -> None:
            raise error

        caplog.clear()
        task = loop.create_task(fail())
        loop.run_until_complete(asyncio.wait([task]))
        del task
        gc.collect()
        assert "Task exception was never retrieved" in caplog.text


OFFLINE = ["keys list", "audit tail", "audit verify", "policy check", "stores", "backup saved.tar"]
LOADED = """
import sys
from dragoman.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
wanted = ("dragoman.", "psycopg")
print(*(name for name in sys.modules if name.startswith(wanted)), file=sys.stderr)
"""


@pytest.mark.parametrize("command", OFFLINE)
def test_offline_command_loads_no_hub_modules(command: str, short_tmp: Path) -> None:
    home.prepare(str(short_tmp))
    KeyStore(short_tmp).close()
    SqliteAuditLog(short_tmp).close()
    environment = {**os.environ, "DRAGOMAN_HOME": str(short_tmp)}
    run = subprocess.run(
        [sys.executable, "-c", LOADED, *command.split()],
        env=environment,
        cwd=short_tmp,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = run.stderr.splitlines()[-1].split()
    hub = ("dragoman.app.app", "dragoman.core.hub", "dragoman.mcp.server", "dragoman.web.api")
    driver = ("psycopg", "dragoman.stores.postgres")
    assert "dragoman.cli.main" in loaded and not [
        name for name in loaded if name.startswith((*hub, *driver))
    ]
    assert len(loaded) < 115


HUB = """
import asyncio, sys
from pathlib import Path
from dragoman.app.build import build_app
from dragoman.app.process import find_loop_factory
from dragoman.config import Config

async def main():
    app = build_app(Path(sys.argv[1]), Config(), "mcp")
    await app.parts.manifests.follow()
    wanted = ("dragoman.", "jwt", "cryptography", "psycopg", "redis", "opentelemetry")
    print(*(name for name in sys.modules if name.startswith(wanted)))
    await app.stop()

asyncio.run(main())
"""
NOT_CONFIGURED = ("redis.", "opentelemetry.", "dragoman.stores.redis_")
OF_AGENTS = (
    "dragoman.agents.command",
    "dragoman.agents.manifest.",
    "dragoman.agents.model_",
    "dragoman.agents.models.",
    "dragoman.processes.command_runner",
)
MANIFEST = '[[script]]\nsay = "hi"\n'


def test_hub_without_agents_loads_nothing_of_them(short_tmp: Path) -> None:
    home.prepare(str(short_tmp))

    def list_loaded() -> list[str]:
        command = [sys.executable, "-c", HUB, str(short_tmp)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        loaded = run.stdout.splitlines()[-1].split()
        return [name for name in loaded if f"{name}.".startswith(OF_AGENTS + NOT_CONFIGURED)]

    assert list_loaded() == []
    folder = short_tmp / "agents" / "one"
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text(MANIFEST, encoding="utf-8")
    assert "dragoman.agents.manifest" in list_loaded()


ISSUER = """from dragoman.config import AuthSettings
from dragoman.oauth.server.config import JwtIssuer, JwtSettings
AUTH = AuthSettings(jwt=JwtSettings(issuers=[JwtIssuer(issuer="https://login.example.com")]))
"""


def test_hub_without_issuers_loads_no_cryptography(short_tmp: Path) -> None:
    home.prepare(str(short_tmp))
    for program, is_loaded in (
        (HUB, False),
        (ISSUER + HUB.replace("Config()", "Config(auth=AUTH)"), True),
    ):
        command = [sys.executable, "-c", program, str(short_tmp)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        loaded = run.stdout.splitlines()[-1].split()
        assert ("jwt" in loaded, "cryptography" in loaded) == (is_loaded, is_loaded)
        assert "psycopg" not in loaded and "dragoman.stores.postgres" not in loaded


def test_a_single_hub_loads_nothing_of_a_cluster() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, dragoman.app.run; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names = set(done.stdout.split())
    assert "dragoman.app.build" in names
    cluster = {
        "dragoman.app.build_cluster",
        "dragoman.app.cluster_report",
        "dragoman.app.placed_servers",
        "dragoman.app.workers",
        "dragoman.stores.cluster",
        "dragoman.web.cluster_tls",
        "dragoman.web.forwarding",
        "psycopg",
        "redis",
    }
    assert not names & cluster
