"""Home files that others may write or read are not used, at start and at run time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import until
from tests.peers.process import server_entry

from dragoman.core.file_modes import find_exposure, make_private_folder

CONFIG = "[server]\nport = 0\n"


@pytest.fixture
def home(short_tmp: Path) -> Path:
    """One that others may enter."""
    short_tmp.chmod(0o755)
    made = short_tmp / "h"
    made.mkdir()
    made.chmod(0o755)
    (made / "config.toml").write_text(CONFIG, encoding="utf-8")
    (made / "config.toml").chmod(0o644)
    return made


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def refused(home: Path) -> str:
    done = subprocess.run(
        [*DRAGOMAN, "up", "--home", str(home)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 7, (done.returncode, done.stderr)
    return done.stderr


@pytest.mark.promise("G1")
def test_hub_does_not_start_with_files_open_to_others(home: Path) -> None:
    config = home / "config.toml"
    config.chmod(0o666)
    said = refused(home)
    assert f"{config} can be written by others (mode 0666)" in said
    assert f"chmod go-w {config}" in said
    config.chmod(0o644)
    (home / "env").write_text("SECRET=1\n", encoding="utf-8")
    (home / "env").chmod(0o644)
    assert f"chmod go-rwx {home / 'env'}" in refused(home)
    (home / "env").chmod(0o600)
    config.write_text(f'api_key = "a-key-of-more-than-16"\n{CONFIG}', encoding="utf-8")
    assert f"chmod go-rwx {config}" in refused(home)


@pytest.mark.promise("G1")
def test_files_writable_by_others_are_ignored_at_runtime(
    hub: Callable[..., RunningHub], home: Path, no_umask: None
) -> None:
    config = home / "config.toml"
    entry = server_entry("mine", "faulty_server", "ok")
    config.write_text(f"{CONFIG}{entry}", encoding="utf-8")
    running = hub(home=home)
    running.wait_connected("mine")
    folders = [path for path in home.rglob("*") if path.is_dir()]
    assert home / "servers" / "mine" in folders
    assert [path for path in folders if path.stat().st_mode & 0o077] == []

    def problem() -> str:
        return str(running.api("/api/status")["config_problem"] or "")

    config.write_text(f"{CONFIG}{entry}{server_entry('more', 'faulty_server', 'ok')}", "utf-8")
    config.chmod(0o666)
    until(lambda: "can be written by others" in problem())
    assert len(running.api("/api/mcp/servers")["configured"]) == 1
    config.chmod(0o644)
    running.wait_connected("more")
    assert problem() == ""

    policies = home / "policies"
    policies.mkdir(mode=0o777)  # an empty folder permits nothing
    until(lambda: "can be written by others" in str(running.api("/api/status")["policies"]))
    assert "result" in running.call("mine.echo", {"text": "x"})
    policies.chmod(0o755)
    until(lambda: running.get("/api/status").json().get("policies") is None)  # no more admin


def test_unreachable_files_are_not_checked(home: Path) -> None:
    file = home / "config.toml"
    file.chmod(0o666)
    found = find_exposure(file)
    assert found is not None and found.reachable
    home.chmod(0o700)
    found = find_exposure(file)
    assert found is not None and not found.reachable
    home.chmod(0o755)
    file.chmod(0o644)
    assert find_exposure(file) is None
    assert find_exposure(home / "none") is None
    # A link counts as what it leads to, and so does the folder of that.
    shared = home.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "real.toml").write_text("", encoding="utf-8")
    (shared / "real.toml").chmod(0o644)
    (home / "linked").symlink_to(shared / "real.toml")
    found = find_exposure(home / "linked")
    assert found is not None and found.fix == f"chmod go-w {shared}"
    shared.chmod(0o1777)
    assert find_exposure(home / "linked") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_foreign_group_and_owner_are_checked(home: Path) -> None:
    file = home / "config.toml"
    file.chmod(0o664)
    assert find_exposure(file) is None  # the user's own group
    os.chown(file, -1, 12345)
    found = find_exposure(file)
    assert found is not None and "can be written by others" in found.words
    os.chown(file, 12345, 0)
    found = find_exposure(file)
    assert found is not None and found.words == "belongs to user 12345"


def test_folders_are_created_private_with_their_parents(short_tmp: Path, no_umask: None) -> None:
    make_private_folder(short_tmp / "a" / "b" / "c")
    made = [short_tmp / "a", short_tmp / "a" / "b", short_tmp / "a" / "b" / "c"]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
