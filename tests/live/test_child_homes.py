"""Imported servers run with the user's home; others have their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import text_of
from tests.peers.process import command, server_entry

pytestmark = pytest.mark.promise("B10")

ADA = "Ada Lovelace <ada@example.org>"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The home of a user who has configured git and has a client with a server."""
    home = tmp_path / "ada"
    (home / ".cursor").mkdir(parents=True)
    (home / ".gitconfig").write_text("[user]\nname = Ada Lovelace\nemail = ada@example.org\n")
    program, *args = command("mcp1_git_server")
    servers = {"taken": {"command": program, "args": args}}
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return home


def test_imported_server_works_as_before(
    hub: Callable[..., RunningHub], user: Path, tmp_path: Path, short_tmp: Path
) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True, timeout=60)
    place = short_tmp / "h"
    place.mkdir(mode=0o700)
    config = place / "config.toml"
    others = [
        server_entry("private", "mcp1_git_server"),
        server_entry("named", "mcp1_git_server", env=["HOME"]),
    ]
    config.write_text("\n".join(["[server]\nport = 0\n", *others]))
    config.chmod(0o600)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env = {
        **bare,
        "HOME": str(user),
        "USER": "ada",
        "LC_ALL": "C.UTF-8",
        "TZ": "Asia/Tokyo",
        "SSL_CERT_FILE": "/etc/ada.pem",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "SECRET": "not for servers",
    }
    imported = subprocess.run(
        [*DRAGOMAN, "import", "cursor", "--home", str(place)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert imported.returncode == 0, imported.stderr
    assert "use your home folder and its settings, as before" in imported.stdout
    assert "note: it receives HTTPS_PROXY from this shell" in imported.stdout
    assert 'home = "user"' in config.read_text()

    running = hub(home=place, env=env)
    running.wait_connected("taken", "private", "named")

    def commit(server: str) -> str:
        about = {"folder": str(repository), "message": f"by {server}"}
        return text_of(running.call(f"{server}.git_commit", about))

    assert commit("taken") == commit("named") == ADA
    assert commit("private") != ADA

    def environ(server: str) -> dict[str, Any]:
        result = running.call(f"{server}.environ")["result"]["structuredContent"]
        return dict(result.get("result", result))

    seen = environ("taken")
    assert (seen["HOME"], seen["cwd"], seen["USER"]) == (str(user), str(user), "ada")
    assert seen["HTTPS_PROXY"] == env["HTTPS_PROXY"]
    assert "npm_config_cache" not in seen and "SECRET" not in seen
    private = environ("private")
    assert Path(private["HOME"]).is_relative_to(place.resolve() / "servers" / "private")
    assert private["npm_config_cache"] == str(place.resolve() / "cache" / "npm")
    assert "HTTPS_PROXY" not in private and "USER" not in private
    for each in (seen, private):
        names = ("LC_ALL", "TZ", "SSL_CERT_FILE")
        assert [each[name] for name in names] == ["C.UTF-8", "Asia/Tokyo", "/etc/ada.pem"]

    told = running.command("doctor").stdout
    assert told.count("settings and credentials in your home folder") == 2
