"""The mounts of a sandbox: what is derived from a command, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.processes.config import ProcessLimits
from dragoman.processes.sandbox import (
    SandboxFolders,
    SandboxSpec,
    build_sandbox_command,
    describe_hub_paths,
    describe_loose_files,
    find_paths,
)


class User:
    """A user with a home and a hub, and the mounts of a server of theirs."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home" / "ada"
        self.hub = self.home / ".dragoman"
        self.make(".ssh/id", ".dragoman/hub.db")

    def make(self, *files: str) -> list[str]:
        for file in files:
            (self.home / file).parent.mkdir(parents=True, exist_ok=True)
            (self.home / file).write_text("")
        return [str(self.home / file) for file in files]

    def list_mounts(
        self,
        *command: str,
        users: bool = False,
        level: str = "net",
        granted: tuple[str, ...] = (),
        **env: str,
    ) -> dict[str, str]:
        """How each path of the user is mounted: the last mount wins."""
        own = self.hub / "servers" / "s"
        spec = SandboxSpec(level, SandboxFolders(self.hub, own, self.home), users, granted)
        env = {"PATH": "/usr/bin:/bin", **env}
        named = [name for name in env if name == "FILE"]
        cwd = str(self.home if users else own / "home")
        confined = build_sandbox_command("bwrap", spec, command, env, named, cwd, ProcessLimits())
        words = list(confined.options)
        found: dict[str, str] = {}
        for at, word in enumerate(words[: words.index("--chdir")]):
            if word in ("--bind", "--ro-bind"):
                found[words[at + 2]] = word.removesuffix("bind").strip("-") or "rw"
                found |= {words[at + 2]: "empty"} if words[at + 1].endswith("/etc/empty") else {}
            elif word in ("--tmpfs", "--symlink"):
                found[words[at + 1 + (word == "--symlink")]] = word.strip("-")
        base = str(self.home.parent.parent)
        return {
            os.path.relpath(path, self.home): how
            for path, how in found.items()
            if path.startswith(base) and not path.startswith(str(own))
        }


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path.resolve())


def test_nothing_of_the_user_is_mounted_unasked(user: User) -> None:
    assert user.list_mounts("/usr/bin/node") == {}


def test_listed_folder_of_a_script_is_writable(user: User) -> None:
    (script,) = user.make("tool/main.py")
    folder = str(user.home / "tool")
    assert user.list_mounts("/usr/bin/python3", script) == {"tool": "ro"}
    mounts = user.list_mounts("/usr/bin/python3", script, granted=(folder,))
    assert mounts == {"tool": "rw", "tool/main.py": "ro"}


def test_script_comes_with_its_modules_read_only(user: User) -> None:
    script, *_ = user.make(
        "src/node_modules/pkg/dist/index.js", "src/node_modules/pkg/package.json"
    )
    assert user.list_mounts("/usr/bin/node", script) == {"src": "ro"}
    script, *_ = user.make("tool/lib/main.py", "tool/pyproject.toml")
    assert user.list_mounts("/usr/bin/python3", script) == {"tool": "ro"}
    (script,) = user.make("node_modules/pkg/index.js")  # the project is the home
    assert user.list_mounts("/usr/bin/node", script) == {"node_modules": "ro"}
    (alone,) = user.make("alone.py")  # its folder is the home
    assert user.list_mounts("/usr/bin/python3", alone) == {"alone.py": "ro"}


def test_data_comes_with_its_folder(user: User) -> None:
    (file,) = user.make("data/notes.db")
    new = str(user.home / "data" / "new.json")
    assert user.list_mounts("/usr/bin/x", "--db", file) == {"data": "rw"}
    assert user.list_mounts("/usr/bin/x", f"--db={new}") == {"data": "rw"}
    assert user.list_mounts("/usr/bin/x", FILE=new) == {"data": "rw"}
    (loose,) = user.make("loose.db")
    assert user.list_mounts("/usr/bin/x", loose) == {"loose.db": "rw"}
    absent = str(user.home / "absent.db")
    assert user.list_mounts("/usr/bin/x", absent) == {}
    spec = SandboxSpec("net", SandboxFolders(user.hub, user.hub / "s", user.home), False, ())
    (remark,) = describe_loose_files(spec, ["/usr/bin/x", absent, file, "/mcp"], {}, ())
    assert remark.startswith(f"{absent} cannot be created or replaced in its sandbox")


def test_certificates_are_visible_read_only(user: User) -> None:
    (file,) = user.make("certificates.pem")
    assert user.list_mounts("/usr/bin/x", NODE_EXTRA_CA_CERTS=file) == {"certificates.pem": "ro"}
    assert user.list_mounts("/usr/bin/x", SSL_CERT_FILE="/absent.pem") == {}


def test_secrets_below_a_granted_folder_are_hidden(user: User) -> None:
    user.make(".netrc", ".bashrc")
    wide = {".": "rw", ".ssh": "tmpfs", ".dragoman": "tmpfs", ".netrc": "empty"}
    assert user.list_mounts("/usr/bin/x", str(user.home)) == wide
    assert user.list_mounts("/usr/bin/x", users=True) == {**wide, ".bashrc": "ro"}
    above = user.list_mounts("/usr/bin/x", str(user.home.parent))
    assert above == {"..": "rw", **{name: how for name, how in wide.items() if name != "."}}
    key = user.list_mounts("/usr/bin/x", str(user.home), str(user.home / ".ssh" / "id"))
    assert key == {**wide, ".ssh/id": "rw"}


def test_no_argument_grants_the_home_of_the_hub(user: User) -> None:
    hub = str(user.hub)
    user.make(".dragoman/config.toml", ".dragoman/run/http.sock", ".dragoman/tool.py")
    (user.home / "link").symlink_to(user.hub)
    (user.home / "odd.py").symlink_to(user.hub / "config.toml")
    named = [hub, f"{hub}/", f"{hub}/config.toml", f"{hub}/run/http.sock", f"{hub}/absent.db",
             f"{hub}/run", str(user.home / "link"), str(user.home / "link" / "config.toml"),
             str(user.home / "odd.py"), f"{user.home}/../ada/.dragoman"]  # fmt: skip
    for path in named:
        assert user.list_mounts("/usr/bin/x", path) == {}, path
        assert user.list_mounts("/usr/bin/x", f"--dir={path}") == {}, path
        assert user.list_mounts("/usr/bin/x", FILE=path) == {}, path
    assert user.list_mounts("/usr/bin/x", granted=(hub,)) == {}
    wide = {".": "rw", ".ssh": "tmpfs", ".dragoman": "tmpfs"}
    assert user.list_mounts("/usr/bin/x", str(user.home), *named) == wide
    assert user.list_mounts("/usr/bin/x", users=True, granted=(hub,)) == wide
    # A script there is visible by itself, without the folder that it is in.
    script = user.list_mounts("/usr/bin/python3", f"{hub}/tool.py")
    assert script == {".dragoman/tool.py": "ro"}

    own = user.hub / "servers" / "s"
    spec = SandboxSpec("net", SandboxFolders(user.hub, own, user.home), False, (hub,))
    command = ["/usr/bin/x", hub, f"{hub}/tool.py", str(own / "home"), str(user.home)]
    (remark,) = describe_hub_paths(spec, command, {}, (), str(own / "home"))
    assert remark.startswith(f"{hub} is in the hub's home, which no server in a sandbox sees")


def test_program_below_the_home_is_visible_with_its_interpreter(user: User) -> None:
    python, tool = user.make(".pyenv/versions/3/bin/python3", ".local/share/tools/t/bin/t")
    Path(tool).write_text(f"#!{user.home}/.local/share/tools/t/bin/python\n", encoding="utf-8")
    (Path(tool).parent / "python").symlink_to(python)
    user.make(".local/share/keyrings/login", ".local/bin/other")
    link = user.home / ".local" / "bin" / "t"
    link.symlink_to(tool)
    for program in (python, tool):
        Path(program).chmod(0o755)
    path = f"{user.home}/.local/bin:/usr/bin"
    assert user.list_mounts(str(link), PATH=path) == {
        ".local/bin": "ro",
        ".local/share/tools/t": "ro",
        ".pyenv/versions/3": "ro",
    }


def test_symbolic_link_is_made_again_and_its_target_mounted(user: User) -> None:
    user.make("real/a")
    (user.home / "link").symlink_to(user.home / "real")
    mounted = user.list_mounts("/usr/bin/x", str(user.home / "link"))
    assert mounted == {"real": "rw", "link": "symlink"}


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("/a/b", ["/a/b"]),
        ("--x=/a", ["/a"]),
        ("/a:/b", ["/a", "/b"]),
        ("file:///a/b", ["/a/b"]),
        ("sqlite:////a/b.db", ["/a/b.db"]),
        ("https://example.org/a", []),
        ("-v", []),
        ("relative/path", []),
        ("/a/../b", ["/b"]),
    ],
)
def test_absolute_paths_are_found_in_arguments(text: str, paths: list[str]) -> None:
    assert list(find_paths(text)) == paths
