"""Backup and restore of a home while the hub runs."""

from __future__ import annotations

import io
import json
import shutil
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import text_of
from tests.peers import wire
from tests.peers.process import server_entry

Start = Callable[..., RunningHub]
SECRET = "s3cret-value-of-the-env-file"


def dragoman(hub: RunningHub, home: Path, *args: str) -> tuple[int, str]:
    before, hub.home = hub.home, home
    try:
        done = hub.command(*args)
    finally:
        hub.home = before
    return done.returncode, done.stdout + done.stderr


def test_backup_restores_keys_pins_policies_and_audit(hub: Start, short_tmp: Path) -> None:
    first = hub([server_entry("near", "faulty_server", "ok")])
    (first.home / "env").write_text(f"TOKEN={SECRET}\n", encoding="utf-8")
    (first.home / "env").chmod(0o600)
    assert first.command("policy", "init").returncode == 0
    key = first.command("keys", "create", "ci").stdout.strip()
    first.headers = {"Authorization": f"Bearer {key}"}
    first.wait_connected("near")
    (first.home / "cache" / "npm").write_text("fetched again where it is missing")
    working = threading.Event()

    def work() -> None:
        while not working.is_set():
            first.call("near.echo", {"text": "x"})

    busy = threading.Thread(target=work)
    busy.start()
    file, bare = short_tmp / "copy.tar.gz", short_tmp / "bare.tar.gz"
    try:
        made = first.command("backup", str(file), "--json")
        assert made.returncode == 0, made.stderr
        assert first.command("backup", str(bare), "--no-secrets").returncode == 0
        again = first.command("backup", str(file))
        assert again.returncode == 2 and "already exists" in again.stderr
    finally:
        working.set()
        busy.join(60)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    revoked = first.command("keys", "revoke", "ci")
    assert revoked.returncode == 0, revoked.stderr
    entries = len(first.audit())
    first.stop()
    assert sorted(path.name for path in short_tmp.iterdir()) == ["bare.tar.gz", "copy.tar.gz", "h0"]

    refused = dragoman(first, first.home, "restore", str(file), "--yes")
    assert refused[0] == 2 and "exists and is not empty" in refused[1]
    home = short_tmp / "new" / "home"
    asked = dragoman(first, home, "restore", str(file))
    assert asked[0] == 2 and not home.exists()  # unanswered
    code, said = dragoman(first, home, "restore", str(file), "--yes")
    assert code == 0, said
    assert all(not path.stat().st_mode & 0o077 for path in home.rglob("*"))
    assert (home / "env").read_text(encoding="utf-8") == f"TOKEN={SECRET}\n"
    assert not (home / "cache").exists() and not (home / "servers").exists()
    second = hub(home=home)
    second.headers = first.headers
    second.wait_connected("near")
    assert wire.get(f"{second.url}/api/tools").status == 401
    assert text_of(second.call("near.echo", {"text": "there"})) == "there", revoked
    records = second.audit()
    verbs = [one["verb"] for one in records]
    assert "home.restore" in verbs and 0 < len(records) < entries
    assert (home / "policies").is_dir() and "near.echo" in verbs

    # Without secrets: the same rules, and nothing that opens a door.
    with tarfile.open(bare) as archive:
        names = {name.removeprefix("home/") for name in archive.getnames()}
        texts = [archive.extractfile(one).read() for one in archive if one.isreg()]  # type: ignore[union-attr]
    assert {"config.toml", "pins.db", "registry.db", "manifest.json"} < names
    assert not names & {"env", "hub.db", "hub.key", "audit.db", "audit.key", "stores.json"}
    assert not any(SECRET.encode() in text or b"home_store" in text for text in texts)
    other = short_tmp / "bare"
    code, said = dragoman(first, other, "restore", str(bare), "--yes")
    assert code == 0 and "no keys" in said
    third = hub(home=other)
    third.wait_connected("near")
    assert third.get("/api/tools").status == 200  # its own keys, of which there are none yet


def test_backup_without_secrets_contains_none(
    tmp_path: Path,
) -> None:
    from dragoman.stores.backup import back_up

    home, file = tmp_path / "home", tmp_path / "copy.tar.gz"
    home.mkdir(mode=0o700)
    for name in ("env", "hub.key", "moved.json", "mine.cedar"):
        (home / name).write_text("", encoding="utf-8")
    manifest = back_up(home, file, home / ".", "0", "2026-11-17T00:00:00Z", secrets=False)
    assert list(manifest.files) == ["mine.cedar"]


def test_backup_copies_a_home_whose_files_come_and_go(tmp_path: Path) -> None:
    from dragoman.stores.backup import back_up

    home, ended = tmp_path / "home", threading.Event()
    home.mkdir(mode=0o700)
    (home / "mine.cedar").write_text("", encoding="utf-8")

    def write() -> None:
        while not ended.is_set():
            (home / "runs.db-journal").write_bytes(b"x")
            (home / "audit.new").write_bytes(b"x")
            folder = home / "skills" / "new" / "deep"
            folder.mkdir(parents=True)
            for path in (home / "runs.db-journal", home / "audit.new"):
                path.unlink()
            shutil.rmtree(home / "skills")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            file = tmp_path / f"{number}.tar.gz"
            manifest = back_up(home, file, home / ".", "0", "2026-11-17T00:00:00Z", secrets=False)
            assert "mine.cedar" in manifest.files and "runs.db-journal" not in manifest.files
    finally:
        ended.set()
        writer.join(60)


def test_backup_follows_only_links_that_the_hub_reads(hub: Start, short_tmp: Path) -> None:
    home, away = short_tmp / "linked", short_tmp / "away"
    home.mkdir(mode=0o700)
    (away / "rules").mkdir(parents=True)
    for name in ("config.toml", "env", "secret", "agent.py", "rules/mine.cedar", "rules/secret"):
        (away / name).write_text(f"# {name}\n", encoding="utf-8")
    (away / "rules" / "far.cedar").symlink_to(away / "rules" / "mine.cedar")
    (home / "rules").symlink_to(away / "rules")
    for name in ("config.toml", "env", "agent.py"):
        (home / name).symlink_to(away / name)
    (away / "config.toml").write_text('[policy]\nfolder = "rules"\n', encoding="utf-8")
    (home / "all").symlink_to(away)  # a folder
    (home / "notes").symlink_to(away / "secret")
    (home / "leak.py").symlink_to("env")
    (home / "tokens").mkdir()
    (home / "tokens" / "t").symlink_to(away / "secret")
    (home / "tokens" / "again").symlink_to(home)
    running = hub([])
    running.stop()
    full, bare = short_tmp / "full.tar.gz", short_tmp / "bare.tar.gz"
    code, said = dragoman(running, home, "backup", str(full))
    assert code == 0, said
    for name in ("all", "notes", "tokens/t"):
        assert f"{name} links outside the home" in said
    code, said = dragoman(running, home, "backup", str(bare), "--no-secrets", "--json")
    assert code == 0 and json.loads(said)["left_out"] == ["agent.py", "leak.py"], said
    policies = {"rules/far.cedar", "rules/mine.cedar"}
    for file, expected in (
        (full, {"config.toml", "env", "agent.py", "leak.py", *policies}),
        (bare, {"config.toml", *policies}),
    ):
        with tarfile.open(file) as archive:
            names = {name.removeprefix("home/") for name in archive.getnames()}
            assert all(member.isreg() for member in archive)
        assert names == {"manifest.json", *expected}
    (short_tmp / "empty").mkdir()
    (short_tmp / "new").symlink_to(short_tmp / "empty")
    code, said = dragoman(running, short_tmp / "new", "restore", str(full), "--yes")
    assert code == 0 and "notes linked outside the home" in said, said
    assert (short_tmp / "new").is_symlink() and (
        short_tmp / "empty" / "rules" / "far.cedar"
    ).exists()
    # A folder of policies beside the home is outside of it, however it is written.
    (away / "config.toml").write_text('[policy]\nfolder = "../away/rules"\n', encoding="utf-8")
    code, said = dragoman(running, home, "backup", str(short_tmp / "x.tar.gz"))
    assert code == 0 and "is outside the home" in said, said


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a home that no hub has run on."""
    from dragoman.stores.backup import back_up

    folder = tmp_path_factory.mktemp("copy")
    home = folder / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("# mine\n", encoding="utf-8")
    back_up(
        home, folder / "ok.tar.gz", home / "policies", "1", "2026-01-01T00:00:00Z", secrets=True
    )
    return folder / "ok.tar.gz"


def _changed(archive: Path, target: Path, name: str, text: bytes, listed: bool = True) -> Path:
    with tarfile.open(archive) as source, tarfile.open(target, "w:gz") as copy:
        for member in source:
            data = source.extractfile(member).read()  # type: ignore[union-attr]
            if member.name == "manifest.json" and name != "home/config.toml" and listed:
                manifest = json.loads(data)
                entry = manifest["files"].pop("config.toml")
                manifest["files"][name.removeprefix("home/")] = entry
                data = json.dumps(manifest).encode()
            elif member.name == "home/config.toml":
                member = tarfile.TarInfo(name)
                data = text
            member.size = len(data)
            copy.addfile(member, io.BytesIO(data))
    return target


DAMAGE = {
    "another text": ("home/config.toml", b"# evil\n", True, "does not match its checksum"),
    "a longer text": ("home/config.toml", b"# mine\n" * 9, True, "does not match its checksum"),
    "a path that leads out": ("home/../x", b"# mine\n", True, "contains a path outside the home"),
    "a whole path": ("home//tmp/x", b"# mine\n", True, "contains a path outside the home"),
    "what is not listed": ("home/y", b"# mine\n", False, "that its manifest does not list"),
}


OUTSIDE = ["../policies", "/etc", "a/../../b", "", "x\0y"]


@pytest.mark.parametrize("policies", OUTSIDE)
def test_backup_with_policies_outside_the_home_is_refused(
    archive: Path, tmp_path: Path, policies: str
) -> None:
    from dragoman.core.errors import InvalidInput
    from dragoman.stores.backup import read_manifest, restore

    bad = tmp_path / "bad.tar.gz"
    with tarfile.open(archive) as source, tarfile.open(bad, "w:gz") as copy:
        for member in source:
            data = source.extractfile(member).read()  # type: ignore[union-attr]
            if member.name == "manifest.json":
                data = json.dumps({**json.loads(data), "policies": policies}).encode()
            member.size = len(data)
            copy.addfile(member, io.BytesIO(data))
    with pytest.raises(InvalidInput, match="contains a path outside the home"):
        read_manifest(bad)
    with pytest.raises(InvalidInput, match="contains a path outside the home"):
        restore(bad, tmp_path / "home", "me")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar.gz"]


@pytest.mark.parametrize("damage", [*DAMAGE, "half of it", "no archive", "nothing"])
def test_changed_backup_is_not_restored(archive: Path, tmp_path: Path, damage: str) -> None:
    from dragoman.core.errors import InvalidInput
    from dragoman.stores.backup import restore

    bad, why = tmp_path / "bad.tar.gz", "is damaged"
    if damage in DAMAGE:
        name, text, listed, why = DAMAGE[damage]
        _changed(archive, bad, name, text, listed)
    elif damage == "half of it":
        bad.write_bytes(archive.read_bytes()[:150])
    elif damage == "no archive":
        bad.write_bytes(b"x")
    else:
        bad, why = archive, ""
    if not why:
        restore(bad, tmp_path / "home", "me")
        assert (tmp_path / "home" / "config.toml").read_bytes() == b"# mine\n"
        return
    with pytest.raises(InvalidInput, match=why):
        restore(bad, tmp_path / "home", "me")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar.gz"]


def test_home_with_a_lost_store_is_not_backed_up(hub: Start, short_tmp: Path) -> None:
    running = hub([])
    running.stop()
    running.checks = False
    (running.home / "pins.db").unlink()
    done = running.command("backup", str(short_tmp / "x"))
    assert done.returncode == 7 and "pins.db is missing" in done.stderr
    assert not (short_tmp / "x").exists()
