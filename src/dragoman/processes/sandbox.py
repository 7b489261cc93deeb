"""The command line of bubblewrap for a stdio server: what it sees of the file system, and its
namespaces.

`strict` and `net` show the system read-only, the server's own folders, the program, and what the
operator has granted: absolute paths in its arguments and named variables, its `cwd` and
`sandbox_paths`. Deeper paths are mounted later, so that a secret below a granted folder is hidden,
and a granted file below a hidden folder is visible. Every path is mounted under its real name, and
symbolic links that lead there are made again: so no other name of a hidden folder exists.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dragoman.core.file_modes import make_private_folder
from dragoman.processes.bubblewrap import UNSHARED
from dragoman.processes.child_process import COMMON_VARIABLES, Confined
from dragoman.processes.config import ProcessLimits
from dragoman.processes.process_limits import build_limited_command

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu"),
    *("/snap", "/run/current-system", "/run/opengl-driver", "/var/lib/ca-certificates"),
    "/sys/devices/system/cpu",
)
"""Read-only in every sandbox."""
STRICT_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "ca-certificates"),
    *("ca-certificates.conf", "pki", "localtime", "timezone", "fonts", "mime.types", "hosts"),
    *("nsswitch.conf", "static"),
)
"""What `strict` shows of /etc; `net` shows all but `SYSTEM_SECRETS`."""
SYSTEM_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers"),
    *("/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/letsencrypt", "/etc/wireguard"),
    *("/etc/NetworkManager/system-connections", "/etc/kubernetes", "/etc/rancher"),
    *("/etc/docker", "/etc/pki/tls/private", "/etc/krb5.keytab", "/var/lib/docker"),
)
USER_SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".oci", ".fly", ".cloudflared"),
    *(".config/gcloud", ".config/gh", ".config/hub", ".config/op", ".config/doctl"),
    *(".config/rclone", ".config/sops", ".config/age", ".config/heroku", ".terraform.d"),
    *(".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".bitwarden"),
    *(".config/Bitwarden", ".config/1Password", ".config/keepassxc", ".mozilla", ".thunderbird"),
    *(".config/google-chrome", ".config/chromium", ".config/BraveSoftware"),
    *(".config/microsoft-edge", ".config/vivaldi", ".var/app", "snap"),
    *(".claude", ".claude.json", ".codex", ".gemini", ".cursor/mcp.json", ".continue"),
    *(".codeium", ".config/Code/User/mcp.json", ".config/zed/settings.json"),
    *(".config/Claude", ".config/github-copilot", ".config/opencode", ".local/share/opencode"),
    *(".netrc", ".git-credentials", ".config/git/credentials", ".npmrc", ".yarnrc.yml", ".pypirc"),
    *(".pgpass", ".my.cnf", ".vault-token", ".s3cfg", ".boto", ".dockercfg", ".cargo/credentials"),
    *(".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml"),
    *(".gradle/gradle.properties", ".Xauthority", ".ICEauthority", ".bash_history"),
    *(".zsh_history", ".python_history", ".psql_history", ".mysql_history"),
    *(".node_repl_history", ".local/share/fish/fish_history"),
)  # fmt: skip
"""Below the home of the user; hidden unless the operator grants them by their own path."""
STARTUP_FILES = (
    *(".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".xprofile", ".xinitrc"),
    *(".config/autostart", ".config/systemd", ".config/fish", ".config/environment.d"),
    *(".local/bin", "bin", ".gitconfig", ".config/git", ".vimrc", ".config/nvim"),
)  # fmt: skip
"""Below the home of the user; never writable, since programs outside of the sandbox run them."""
PROJECT_MARKS = (
    *("package.json", "pyproject.toml", "setup.py", "deno.json", "go.mod"),
    *("requirements.txt", ".git", "pyvenv.cfg"),
)
"""Files that mark the folder of a program with several parts."""
CODE = (".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".rb", ".jar", ".php", ".pl", ".lua")
MAX_LINKS = 20
MAX_PATHS = 200
"""Paths that are taken from the arguments and variables of one server."""
_NO_PATHS = frozenset({"PATH", "HOME", "TMPDIR"})
_IN_TEXT = re.compile(r"(?:^|[=,:;]|file://|sqlite:///)(/[^=,:;]*)")


class SandboxFolders(NamedTuple):
    hub: Path
    """The hub's home, which is hidden."""
    own: Path
    """The server's folder in it, of which home, tmp and cache are visible."""
    user: Path
    """The home of the hub's user."""


@dataclass(frozen=True, slots=True)
class Mount:
    path: str
    how: str
    """`ro`, `rw`, `hide` or `tmpfs`."""
    rank: int
    """Among mounts at the same path, the last one decides."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    level: str
    """`strict` or `net`."""
    folders: SandboxFolders
    has_user_home: bool
    granted: tuple[str, ...]
    """Paths that may be read and written: `sandbox_paths`."""
    readable: tuple[str, ...] = ()
    """Paths that may be read."""
    grants_named_paths: bool = True
    """Whether the folder it starts in and absolute paths in its arguments and variables are granted
    too. Never for arguments that a model has chosen."""


def build_sandbox_command(
    bubblewrap: str,
    spec: SandboxSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    named: Iterable[str],
    cwd: str,
    limits: ProcessLimits,
) -> Confined:
    """Builds the command that runs `command`, an absolute program with its arguments, in the
    sandbox. `named` are the variables that the operator has given it."""
    links: dict[str, str] = {}
    mounts = sorted(
        _list_mounts(spec, command, env, named, cwd, links),
        key=lambda mount: (_count_parts(mount.path), mount.rank),
    )
    words = [*UNSHARED, "--unshare-cgroup-try", "--die-with-parent"]
    words += ["--cap-drop", "ALL", "--hostname", "sandbox"]
    words += ["--unshare-net"] if spec.level == "strict" else []
    visible: dict[str, str] = {}
    hidden: list[str] = []
    empty = str(_write_file(spec.folders.own / "etc" / "empty", ""))
    for mount in mounts:
        is_seen = _find_deepest(mount.path, visible) > _find_deepest(mount.path, hidden)
        if mount.how == "hide":
            if is_seen:
                words += _hide(mount.path, empty)
                hidden.append(mount.path)
        elif mount.how == "tmpfs":
            words += ["--perms", "1777", "--tmpfs", mount.path]
            hidden.append(mount.path)
        elif not (is_seen and visible[_find_nearest(mount.path, visible)] == mount.how):
            # What is visible anyway is not mounted: a mounted file cannot be replaced.
            bind = "--ro-bind" if mount.how == "ro" else "--bind"
            words += [bind, mount.source or mount.path, mount.path]
            visible[mount.path] = mount.how
    words += ["--proc", "/proc", "--dev", "/dev"]
    for link, target in sorted(links.items()):
        if _find_deepest(link, visible) <= _find_deepest(link, hidden):
            words += ["--symlink", target, link]
    words += ["--chdir", cwd]
    return Confined([bubblewrap, "--", *build_limited_command(command, limits)], options=words)


def _hide(path: str, empty: str) -> list[str]:
    if os.path.isdir(path):
        return ["--perms", "0700", "--tmpfs", path]
    return ["--ro-bind", empty, path]


def _list_mounts(
    spec: SandboxSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    named: Iterable[str],
    cwd: str,
    links: dict[str, str],
) -> Iterator[Mount]:
    folders = spec.folders
    wide = _WideFolders(folders)
    yield from _list_system(spec, links)
    grants = list(_list_grants(spec, command, env, named, cwd, wide))
    for path in ("/tmp", "/run", "/var/tmp"):
        yield Mount(path, "tmpfs", 1)
    user = os.path.realpath(folders.user)
    if not any(_is_below(user, os.path.realpath(path)) for path, _ in grants) and user != "/":
        yield Mount(user, "hide", 1)
    for secret in wide.secrets:
        yield Mount(secret, "hide", 2)
    for path in _list_program_paths(command[0], env["PATH"], wide):
        yield Mount(_resolve(path, links), "ro", 3)
    for path, how in grants:
        yield Mount(_resolve(path, links), how, 4)
    if spec.has_user_home:
        for name in STARTUP_FILES:
            path = os.path.realpath(folders.user / name)
            if os.path.exists(path):
                yield Mount(path, "ro", 5)
    else:
        for name in ("home", "tmp", "cache"):
            make_private_folder(folders.own / name)
            yield Mount(_resolve(str(folders.own / name), links), "rw", 5)


def _list_system(spec: SandboxSpec, links: dict[str, str]) -> Iterator[Mount]:
    for path in SYSTEM:
        if os.path.islink(path):
            links[path] = os.readlink(path)
        elif os.path.isdir(path):
            yield Mount(path, "ro", 0)
    if spec.level == "net":
        yield Mount("/etc", "ro", 0)
        target = os.path.realpath("/etc/resolv.conf")
        if target.startswith("/run/"):
            yield Mount(os.path.dirname(target), "ro", 2)
        return
    for name in STRICT_ETC:
        path = f"/etc/{name}"
        if os.path.exists(path):
            yield Mount(path, "ro", 0, os.path.realpath(path))
    uid, gid, home = os.getuid(), os.getgid(), spec.folders.own / "home"
    users = f"user:x:{uid}:{gid}::{home}:/bin/sh\n"
    for name, text in (("passwd", users), ("group", f"user:x:{gid}:\n")):
        file = _write_file(spec.folders.own / "etc" / name, text)
        yield Mount(f"/etc/{name}", "ro", 0, str(file))


class _WideFolders:
    """Which folders show more than one program's files: they are visible only if the operator has
    granted them by name."""

    def __init__(self, folders: SandboxFolders) -> None:
        homes = {folders.user, *_find_account_home()}
        self.secrets = [os.path.realpath(folders.hub), *SYSTEM_SECRETS]
        for home in homes:
            self.secrets += (os.path.realpath(home / name) for name in USER_SECRETS)
        self.secrets = [path for path in self.secrets if os.path.exists(path)]
        self._homes = [*map(os.path.realpath, homes), *self.secrets]

    def covers(self, folder: str) -> bool:
        folder = os.path.realpath(folder)
        return _count_parts(folder) < 2 or any(_is_below(home, folder) for home in self._homes)


def _find_account_home() -> Iterator[Path]:
    """Yields the home in the list of users: HOME may name another folder."""
    with contextlib.suppress(KeyError):
        yield Path(pwd.getpwuid(os.getuid()).pw_dir)


def _list_grants(
    spec: SandboxSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    named: Iterable[str],
    cwd: str,
    wide: _WideFolders,
) -> Iterator[tuple[str, str]]:
    """Yields the paths that the operator has granted, with `ro` or `rw`."""
    if spec.has_user_home:
        yield str(spec.folders.user), "rw"
    inner = (str(spec.folders.hub), str(spec.folders.own))
    if spec.grants_named_paths and not any(is_below(cwd, folder) for folder in inner):
        yield cwd, "rw"
    for name in COMMON_VARIABLES & env.keys():
        if os.path.isabs(env[name]) and os.path.exists(env[name]):
            yield env[name], "ro"
    for path in _list_named_paths(command, env, named) if spec.grants_named_paths else ():
        if not _is_in_hub(path, spec.folders):
            yield from _grant(path, wide)
        elif _is_script(path):
            yield path, "ro"
    # Last, since the last of several mounts at one path decides: the folder of a script is
    # read-only unless it is listed.
    hub = os.path.realpath(spec.folders.hub)
    for paths, how in ((spec.readable, "ro"), (spec.granted, "rw")):
        for path in map(os.path.expanduser, paths):
            if os.path.realpath(path) != hub:
                yield path, how


def _is_in_hub(path: str, folders: SandboxFolders) -> bool:
    """Whether the path is the hub's home or lies in it, outside of the server's own folder. No
    argument grants it: with its socket and its keys, a server would be the owner."""
    return is_below(path, str(folders.hub)) and not is_below(path, str(folders.own))


def _is_script(path: str) -> bool:
    real = os.path.realpath(path)
    return real.endswith(CODE) and os.path.isfile(real)


def describe_hub_paths(
    spec: SandboxSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    named: Iterable[str],
    cwd: str,
) -> list[str]:
    """Describes paths that the operator names and no server sees, because they are in the hub's
    home."""
    paths = [*_list_named_paths(command, env, named), cwd]
    hidden = [one for one in paths if _is_in_hub(one, spec.folders) and not _is_script(one)]
    hub = os.path.realpath(spec.folders.hub)
    hidden += [one for one in spec.granted if os.path.realpath(os.path.expanduser(one)) == hub]
    return [
        f"{path} is in the hub's home, which no server in a sandbox sees; move what it needs to "
        "another folder"
        for path in dict.fromkeys(hidden)
    ]


def _list_named_paths(
    command: Sequence[str], env: Mapping[str, str], named: Iterable[str]
) -> list[str]:
    texts = [*command[1:], *(env[name] for name in named if name in env and name not in _NO_PATHS)]
    found = dict.fromkeys(path for text in texts for path in find_paths(text))
    return list(found)[:MAX_PATHS]


def _grant(path: str, wide: _WideFolders) -> Iterator[tuple[str, str]]:
    """A folder is granted as it is. With a script goes the folder of its program, read-only; with
    another file its folder, since databases keep files beside it; each unless that is too wide."""
    if os.path.isdir(path):
        yield path, "rw"
        return
    folder = os.path.dirname(path)
    if not os.path.exists(path):
        if os.path.isdir(folder) and not wide.covers(folder):
            yield folder, "rw"
        return
    if path.endswith(CODE) or os.access(path, os.X_OK):
        yield path, "ro"
        if (project := _find_project(folder, wide)) is not None:
            yield project, "ro"
        return
    is_wide = wide.covers(folder) or _is_system(folder)
    yield (path if is_wide else folder), "rw"


def describe_loose_files(
    spec: SandboxSpec, command: Sequence[str], env: Mapping[str, str], named: Iterable[str]
) -> list[str]:
    """Describes data files whose folder is too wide to be granted with them: they cannot be created
    or replaced in the sandbox."""
    if spec.has_user_home:
        return []
    wide, user = _WideFolders(spec.folders), os.path.realpath(spec.folders.user)
    granted = [os.path.realpath(os.path.expanduser(path)) for path in spec.granted]
    found: list[str] = []
    for path in _list_named_paths(command, env, named):
        folder = os.path.realpath(os.path.dirname(path))
        is_data = not os.path.isdir(path) and not (os.path.exists(path) and path.endswith(CODE))
        is_loose = is_data and _is_below(folder, user) and os.path.isdir(folder)
        if is_loose and wide.covers(folder) and not any(_is_below(folder, one) for one in granted):
            found.append(
                f"{path} cannot be created or replaced in its sandbox, because the folder contains "
                "your home or secrets; move the file to a folder of its own"
            )
    return found


def find_paths(text: str) -> Iterator[str]:
    """Finds absolute paths in an argument: alone, after `=`, or in a list."""
    whole = text.startswith("/")
    if whole and (os.path.exists(text) or not _IN_TEXT.search(text[1:])):
        yield os.path.normpath(text)
        return
    for match in _IN_TEXT.finditer(text):
        path = os.path.normpath(match[1].rstrip())
        if not match[1].startswith("//") and path != "/":
            yield path


def _find_project(folder: str, wide: _WideFolders) -> str | None:
    """Finds the outermost folder with Node.js modules, which looks for them upwards, or the nearest
    one with a mark of a project; else `folder` itself."""
    if wide.covers(folder):
        return None
    marked: list[str] = []
    outermost, here = None, folder
    while not wide.covers(here):
        is_modules = os.path.basename(here) == "node_modules"
        if is_modules or os.path.isdir(os.path.join(here, "node_modules")):
            outermost = here
        if any(os.path.exists(os.path.join(here, mark)) for mark in PROJECT_MARKS):
            marked.append(here)
        here = os.path.dirname(here)
    return outermost or next(iter(marked), folder)


def _list_program_paths(program: str, path: str, wide: _WideFolders) -> Iterator[str]:
    """Lists where a program, its interpreter and what is on the PATH are installed."""
    yield from _list_installed(program, wide)
    interpreter = _find_interpreter(program, path)
    if interpreter is not None:
        yield from _list_installed(interpreter, wide)
    for folder in path.split(os.pathsep):
        is_there = os.path.isabs(folder) and os.path.isdir(folder)
        if is_there and not _is_system(folder) and not wide.covers(folder):
            yield folder


def _list_installed(program: str, wide: _WideFolders) -> Iterator[str]:
    """Lists the folders of a program and of each program that it is a symbolic link to."""
    here = program
    for _ in range(MAX_LINKS):
        folder = os.path.dirname(here)
        prefix = os.path.dirname(folder)
        is_bin = os.path.basename(folder) in ("bin", "sbin", "shims")
        for choice in (prefix, folder) if is_bin else (folder,):
            if not wide.covers(choice):
                if not _is_system(choice):
                    yield choice
                break
        else:
            yield here
        if not os.path.islink(here):
            return
        here = os.path.normpath(os.path.join(os.path.realpath(folder), os.readlink(here)))


def _find_interpreter(program: str, path: str) -> str | None:
    try:
        with open(program, "rb") as file:
            line = file.readline(256)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode("utf-8", "replace").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(words[0], path=path) if words else None
        return os.path.abspath(found) if found else None
    return words[0] if words and os.path.isabs(words[0]) else None


def _resolve(path: str, links: dict[str, str]) -> str:
    """Returns the real path; notes the symbolic links on the way to it."""
    here = "/"
    for part in Path(os.path.abspath(path)).parts[1:]:
        here = os.path.join(here, part)
        if os.path.islink(here):
            real = os.path.realpath(here)
            links.setdefault(here, real)
            here = real
    return here


def is_below(path: str, folder: str) -> bool:
    """Whether the real path is that of `folder` or lies in it."""
    return _is_below(os.path.realpath(path), os.path.realpath(folder))


def _is_system(path: str) -> bool:
    return any(_is_below(os.path.realpath(path), os.path.realpath(each)) for each in SYSTEM)


def _is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _find_nearest(path: str, folders: Iterable[str]) -> str:
    """Returns the nearest of `folders` around `path`; an empty string if it is in none."""
    return max((one for one in folders if _is_below(path, one)), key=len, default="")


def _find_deepest(path: str, folders: Iterable[str]) -> int:
    """Returns how deep the nearest of `folders` around `path` is; -1 if it is in none."""
    return _count_parts(_find_nearest(path, folders))


def _count_parts(path: str) -> int:
    return len(Path(path).parts) - 1  # -1 for an empty string


def _write_file(file: Path, text: str) -> Path:
    """Writes a file that the sandbox shows read-only; a running server keeps its own."""
    make_private_folder(file.parent)
    try:
        if file.read_text(encoding="utf-8") == text:
            return file
    except OSError:
        pass
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
    return file
