"""Checks of the machine, the home, its databases, the configuration and the running hub.

A check changes nothing; it yields findings, each with a fix.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from dragoman import __version__, home
from dragoman.cli.base.output import clean
from dragoman.cli.base.shared_audit import AUDIT_FILES, list_audit_homes
from dragoman.cli.clients.install import read_client_state
from dragoman.cli.clients.known_clients import CLIENTS
from dragoman.cli.doctor.findings import DoctorContext, Finding, Level
from dragoman.cli.doctor.port_owner import find_listener
from dragoman.cli.hub import read_lock_pid
from dragoman.config import Config, find_issuer_name, holds_secrets
from dragoman.config_layers import find_near_misses
from dragoman.core.errors import HubError
from dragoman.core.file_modes import find_exposures, find_exposures_in
from dragoman.processes.bubblewrap import NoBubblewrap, find_bubblewrap

MAX_EXPOSURES = 10
LEAST_PYTHON = (3, 11)
LEAST_DISK = 128 * 1024 * 1024
LEAST_FILES = 1024
MOST_ENTRIES = 200_000
"""The most entries that are verified without --deep: about two seconds."""
RELEASED = 1_767_225_600.0
"""2026-01-01: an earlier time means that the clock was never set."""
CLOCK_SLACK = 300.0


def check_python(_: DoctorContext) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= LEAST_PYTHON
    fix = "" if fine else "install Python 3.11 or newer and install dragoman with that"
    yield Finding("python", "ok" if fine else "problem", f"Python {version}, {sys.executable}", fix)


def check_home(found: DoctorContext) -> Iterator[Finding]:
    place = found.home
    if not os.path.lexists(place):
        yield Finding("home", "info", f"{place} does not exist yet", "dragoman up creates it")
        return
    try:
        home.prepare(str(place))
    except home.HomeUnusable as error:
        said, _, fix = str(error).rstrip(".").partition("; ")
        yield Finding("home", "problem", said, fix or "use another home: --home or DRAGOMAN_HOME")
        return
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & 0o077:
        said = f"{place} is accessible to other users (mode {mode:04o})"
        yield Finding("home", "warning", said, f'chmod 700 "{place}"')
    else:
        yield Finding("home", "ok", f"{place} is private")


def check_env_file(found: DoctorContext) -> Iterator[Finding]:
    """Checks the file of secrets beside config.toml."""
    path = found.home / "env"
    if found.env_problem:
        yield Finding("env file", "problem", found.env_problem, f'correct "{path}"')
        return
    if not path.exists():
        return
    quoted = [name for name, value in found.env.items() if _is_quoted(value)]
    if quoted:
        said = f"the quotes around {', '.join(quoted)} are part of the value"
        yield Finding("env file", "warning", said, f'write NAME=value without quotes in "{path}"')
    else:
        yield Finding("env file", "ok", f"{len(found.env)} values")


def check_modes(found: DoctorContext) -> Iterator[Finding]:
    """Checks the permissions of the files in the home."""
    config = found.config
    is_secret = config is not None and holds_secrets(config)
    exposures = list(find_exposures(found.home, config_is_secret=is_secret))
    if config is not None:
        exposures += find_exposures_in(found.home / config.policy.folder)
    for one in exposures[:MAX_EXPOSURES]:
        level: Level = "problem" if one.reachable else "info"
        after = "; the hub does not start" if one.reachable else ", but its folder protects it"
        yield Finding("modes", level, f"{one.path} {one.words}{after}", one.fix)


def _is_quoted(value: str) -> bool:
    value = value.strip()
    return len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"


def check_configuration(found: DoctorContext) -> Iterator[Finding]:
    file = found.home / "config.toml"
    if found.config is None:
        said, fix = found.config_problem, "correct the file, then: dragoman config check"
        if found.daemon is not None:
            said += " (the running hub keeps the old configuration)"
        yield Finding("config", "problem", said, fix)
        return
    if not file.exists():
        said = f"{file} does not exist: no servers, and IDEs see no tools"
        yield Finding("config", "info", said, "dragoman init writes a commented file")
        return
    for name, meant in find_near_misses(Config, os.environ):
        said = f"unknown environment variable {name}"
        yield Finding("config", "warning", said, f"did you mean {meant}?")
    count = len(found.config.mcp_servers)
    yield Finding("config", "ok", f"{file} is valid, {count} server{'s' * (count != 1)}")
    if not count and not _has_agents(found):
        said = "no servers or agents are configured, so there are no tools"
        fix = "dragoman import, dragoman servers add, or dragoman agents add URL"
        yield Finding("servers", "warning", said, fix)
    if not found.config.mcp.stdio_expose:
        said = "IDEs see no tools of servers and agents: [mcp] stdio_expose is empty"
        yield Finding("expose", "warning", said, 'add stdio_expose = ["*"] below [mcp]')


def _has_agents(found: DoctorContext) -> bool:
    from dragoman.app.policy_admin.known_ids import list_registered_agents

    config = found.config
    configured = config is not None and bool(config.agents or config.a2a.external_agents)
    if configured:
        return True
    with found.open_place() as place:
        return bool(list_registered_agents(place))


def check_running_hub(found: DoctorContext) -> Iterator[Finding]:
    daemon, place = found.daemon, str(found.home)
    if daemon is not None:
        where = daemon.url or "inside a `dragoman mcp`"
        said = f"process {daemon.pid} has been running since {daemon.started_at}, {where}"
        if found.hub_problem:
            said += f"; it did not report the state of its servers: {found.hub_problem}"
            yield Finding("hub", "problem", said, "dragoman stop, then dragoman up")
        elif daemon.version != __version__:
            said += f"; it is version {daemon.version}, this command is {__version__}"
            yield Finding("hub", "warning", said, "dragoman stop, then dragoman up")
        else:
            yield Finding("hub", "ok", said)
    elif found.home.is_dir() and home.is_locked(place):
        pid = read_lock_pid(place)
        said = f"process {pid or '?'} holds {place} but does not answer"
        fix = f"kill {pid or 'it'} (if necessary kill -9), then: dragoman up"
        yield Finding("hub", "problem", said, fix)
    elif found.record is not None:
        said = f"not running; process {found.record.pid} was killed and left daemon.json"
        yield Finding("hub", "warning", said, "dragoman up cleans up and starts")
    else:
        yield Finding("hub", "info", "no hub is running on this home", "dragoman up starts one")


def check_cluster(found: DoctorContext) -> Iterator[Finding]:
    """Checks the hubs that work as one with the running hub, and the copy of the audit log."""
    for problem in found.store_problems:
        yield Finding("stores", "problem", problem, "see the hub's log: dragoman logs")
    living = [one for one in found.hubs if one["state"] not in ("stopped", "dead")]
    problems = [(one["id"], said) for one in living for said in one.get("problems", ())]
    for id, said in problems:
        if said not in found.store_problems:
            fix = "dragoman cluster status; see: dragoman docs cluster"
            yield Finding("cluster", "warning", f"hub {id}: {said}", fix)
    if living and not problems:
        hubs = "1 hub" if len(living) == 1 else f"{len(living)} hubs, which reach each other"
        yield Finding("cluster", "ok", hubs)


def check_port(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None:
        return
    host, number = found.config.server.host, found.config.server.port
    url = found.daemon.url if found.daemon else None
    if url is not None:
        listens = url.rpartition(":")[2]
        if number and listens != str(number):
            said = f"the hub listens on port {listens}, config.toml says {number}"
            yield Finding("port", "info", said, "the next start uses the port in config.toml")
        else:
            yield Finding("port", "ok", f"the hub listens on {host} port {listens}")
        return
    error = find_listening_problem(host, number)
    if error is None:
        said = "any free port (port = 0)" if number == 0 else f"{host} port {number} is free"
        yield Finding("port", "ok", said)
        return
    if is_transient(error, host, number):
        said = (
            f"{host} port {number} is the local end of a connection that is open or was just "
            "closed; no program listens there"
        )
        fix = f"try again in a minute, or: sysctl net.ipv4.ip_local_reserved_ports={number}"
        yield Finding("port", "warning", said, fix)
        return
    who = find_listener(number) if number else None
    why = f"{clean(who)} listens there" if who else error.strerror or str(error)
    said = f"the hub cannot listen on {host} port {number}: {why}"
    fix = "stop that process, or set another [server] port, or: dragoman up --port N"
    if error.errno != errno.EADDRINUSE:
        fix = 'set [server] host to an address of this machine, such as "127.0.0.1"'
    yield Finding("port", "problem", said, fix)


def check_keys(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None or not found.home.is_dir():
        return
    host, auth = found.config.server.host, found.config.auth
    count = _count_active_keys(found)
    issuers = [find_issuer_name(one) for one in (*auth.jwt.issuers, auth.introspection) if one]
    if auth.server.enabled:
        issuers.append("this hub (dragoman users)")
    if issuers:
        said = f"HTTP clients need a key or an access token of: {', '.join(issuers)}"
        yield Finding("keys", "ok", said)
    elif found.config.api_key is not None or count:
        what = "api_key is set" if found.config.api_key else f"{count} active"
        yield Finding("keys", "ok", f"HTTP clients need a key ({what})")
    elif count is None:
        if _is_loopback(host):
            yield Finding("keys", "ok", f"none; {host} is reachable from this machine only")
        else:
            said = f'[server] host = "{host}" is reachable from other machines and there is no key'
            fix = "dragoman keys create NAME, or set api_key, or host = 127.0.0.1"
            yield Finding("keys", "problem", said, fix)
    else:
        said = "no key is active, so HTTP clients are rejected"
        yield Finding("keys", "warning", said, "dragoman keys create NAME")


def _count_active_keys(found: DoctorContext) -> int | None:
    """Counts the active keys; returns None if no key was ever created."""
    from dragoman.app.store_place import has_store
    from dragoman.stores.keys import KeyStore

    with found.open_place() as place:
        if not has_store(place, "hub.db"):
            return None
        with closing(KeyStore(place)) as store:
            records = store.list()
        states = [record.get_state(time.time()) for record in records]
        return states.count("active") if states else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_audit(found: DoctorContext) -> Iterator[Finding]:
    logs = list_audit_homes(found.home)
    if not logs:
        yield Finding("audit", "info", "no audit log yet")
    for log in logs:
        for one in _check_audit_log(log, found.deep):
            of = f"{log.relative_to(found.home)}: " if log != found.home else ""
            yield replace(one, said=f"{of}{one.said}")


def _check_audit_log(place: Path, deep: bool) -> Iterator[Finding]:
    from dragoman.stores.audit.reader import AuditReader
    from dragoman.stores.audit.verify import verify

    missing = [name for name in AUDIT_FILES if not (place / name).exists()]
    fix = "restore a backup; see: dragoman docs operations"
    if missing:
        said = f"{' and '.join(missing)} is missing, so the audit log cannot be verified"
        yield Finding("audit", "problem", said, fix)
        return
    try:
        reader = AuditReader(place)
        entries = reader.find_last_seq()
        reader.close()
    except HubError as error:
        yield Finding("audit", "problem", str(error), fix)
        return
    if entries > MOST_ENTRIES and not deep:
        said = f"{entries} entries, not verified"
        yield Finding("audit", "info", said, "dragoman doctor --deep, or dragoman audit verify")
        return
    verdict = verify(place)
    if verdict.ok:
        yield Finding("audit", "ok", f"{verdict.entries} entries verified")
    else:
        yield Finding("audit", "problem", f"the audit log is not intact: {verdict.problem}", fix)


def check_disk(found: DoctorContext) -> Iterator[Finding]:
    place = next(path for path in (found.home, *found.home.parents) if path.is_dir())
    yield check_space(shutil.disk_usage(place).free, place)


def check_space(free: int, place: Path) -> Finding:
    said = f"{free / 2**20:,.0f} MB free in {place}"
    if free < LEAST_DISK:
        fix = "free some space: when the disk is full, calls cannot be audited and are refused"
        return Finding("disk", "problem", said, fix)
    return Finding("disk", "ok", said)


def check_descriptors(_: DoctorContext) -> Iterator[Finding]:
    """Checks the hard limit of open files: the hub raises its soft limit by itself."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        said = f"the limit of {hard} open files and connections is low for a hub"
        fix = f"raise the hard limit (ulimit -Hn) to {LEAST_FILES} or more"
        yield Finding("open files", "warning", said, fix)
    else:
        limit = "unlimited" if hard == resource.RLIM_INFINITY else f"limit {hard}"
        yield Finding("open files", "ok", limit)


def check_isolation(found: DoctorContext) -> Iterator[Finding]:
    sockets = (
        "the hub does not mistake them for you on its sockets"
        if sys.platform == "linux"
        else "on this system the hub cannot distinguish them from you on its sockets"
    )
    yield Finding(
        "isolation",
        "info",
        "servers run with a cleared environment, in their own session and with a private home "
        f'unless their entry has home = "user"; {sockets}',
    )
    try:
        find_bubblewrap()
        usable = ""
    except NoBubblewrap as error:
        usable = str(error)
    servers = found.config.mcp_servers if found.config else []
    local = [one for one in servers if one.enabled and hasattr(one.transport, "command")]
    free = [one.name for one in local if usable or one.sandbox == "off"]
    if not free:
        works = "bubblewrap works" if not usable else f"none is available: {usable}"
        yield Finding("sandbox", "info" if usable else "ok", works)
        return
    said = (
        f"{len(free)} of {len(local)} programs run without one ({', '.join(free[:5])}"
        f"{', …' * (len(free) > 5)}): each can read and write your files, including pins.db and "
        "config.toml"
    )
    fix = usable or f'try one in a sandbox: dragoman servers harden "{free[0]}"'
    yield Finding("sandbox", "info", said, fix)


def check_clock(found: DoctorContext) -> Iterator[Finding]:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now))
    fix = "set the clock: keys, certificates and audit records depend on it"
    newest = max(_get_modified(path) for path in (found.home / "audit.db", found.home / "lock"))
    if now < RELEASED:
        said = f"it shows {shown}, before the release of this program"
        yield Finding("clock", "problem", said, fix)
    elif newest > now + CLOCK_SLACK:
        said = f"it shows {shown}, but files in the home are newer"
        yield Finding("clock", "warning", said, fix)
    else:
        yield Finding("clock", "ok", shown)


def _get_modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def check_clients(found: DoctorContext) -> Iterator[Finding]:
    """Checks the configuration files of known IDEs and other MCP clients."""
    seen = False
    for client in CLIENTS.values():
        now = read_client_state(client)
        path = Path(now["path"])
        folder = path.parent
        if not now["exists"] and (not folder.is_dir() or folder == Path.home()):
            continue
        seen = True
        install = f"dragoman install {client.name}"
        level: Level = "info"
        fix = ""
        if now["problem"]:
            said, fix = f"{client.title}: {now['problem']}", f"correct {path}, then: {install}"
        elif now["installed"] and now["command"] and not shutil.which(now["command"]):
            level = "warning"
            said = f'{client.title} starts "{now["command"]}", which does not exist'
            fix = install
        elif now["installed"] and (twice := _list_duplicates(found, now["servers"])):
            level = "warning"
            said = f"{client.title} has the hub and also {twice}, so their tools are listed twice"
            fix = f"dragoman import {client.name} --move"
        elif now["installed"]:
            level, said = "ok", f'{client.title} has the hub as "{now["name"]}"'
            if 0 < client.tool_limit < (count := _count_tools(found)):
                level = "info"
                said += (
                    f"; it takes at most {client.tool_limit} tools, and the hub has {count}, so it "
                    "gets find_tools and call_tool instead"
                )
                fix = "choose its tools with a view, see: dragoman docs views"
        elif now["installed"] is None:
            said, fix = f"{client.title}: its YAML file is not checked", install
        else:
            said, fix = f"{client.title} does not have the hub", install
        yield Finding("client", level, clean(said), fix)
    if not seen:
        said = "no known MCP client has files in your home folder"
        yield Finding("client", "info", said, "dragoman install lists the known clients")


def _count_tools(found: DoctorContext) -> int:
    """Counts the tools that `dragoman mcp` lists, where it lists all."""
    if found.config is None or "*" not in found.config.mcp.stdio_expose:
        return 0
    return sum(state.get("tools_count") or 0 for state in found.servers.values())


def _list_duplicates(found: DoctorContext, theirs: list[str]) -> str:
    """Returns the names of servers in both the hub's and the client's configuration."""
    ours = found.config.mcp_servers if found.config is not None else ()
    return ", ".join(entry.name for entry in ours if entry.enabled and entry.name in theirs)


WRITTEN = ("lock", "daemon.json", "children.json", "stores.json", "audit.head", "audit.journal")
"""Files that a hub writes, besides the databases."""


def check_files(found: DoctorContext) -> Iterator[Finding]:
    """Checks that the hub can write its home."""
    place = found.home
    if not place.is_dir():
        return
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        said = f"you cannot write {place}; the hub does not start"
        yield Finding("files", "problem", said, _advise(place, "u+rwx"))
        return
    for name in WRITTEN:
        path = place / name
        try:
            kind = path.lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(kind):
            said = f"{path} is not a regular file; the hub does not start"
            yield Finding("files", "problem", said, f"move it away: {_quote(path)}")
        elif not os.access(path, os.R_OK | os.W_OK):
            yield Finding("files", "problem", f"you cannot write {path}", _advise(path, "u+rw"))
    if os.path.lexists(place / "run"):
        try:
            home.find_socket_paths(str(place))
        except home.HomeUnusable as error:
            said, _, fix = str(error).rstrip(".").partition("; ")
            yield Finding("files", "problem", said, fix or "remove it and try again")


def _advise(path: Path, mode: str) -> str:
    owner = path.stat().st_uid
    if owner != os.geteuid():
        return f"it belongs to user {owner}: sudo chown -R {os.geteuid()} {_quote(path)}"
    return f"chmod {mode} {_quote(path)}; on a read-only file system use another home"


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def find_listening_problem(host: str, port: int) -> OSError | None:
    """Returns why the address cannot be listened on, or None. Port 0 checks the host only."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(1)
    except OSError as error:
        return error
    return None


def is_transient(error: OSError, host: str, port: int) -> bool:
    """Whether a port in use has no listener: it is the local end of a connection that is open or
    was just closed (TIME-WAIT)."""
    if error.errno != errno.EADDRINUSE:
        return False
    try:
        with socket.create_connection((host, port), timeout=1):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def check_grpc(found: DoctorContext) -> Iterator[Finding]:
    config = found.config
    if config is None or not config.a2a.enabled or config.a2a.grpc_port is None:
        return
    if find_spec("grpc") is None or find_spec("google") is None:
        said = "[a2a] grpc_port is set, but the gRPC packages are not installed"
        yield Finding("grpc", "problem", said, "install dragoman-hub[grpc], or remove the setting")
        return
    if found.daemon is not None:
        return
    for number in {config.a2a.grpc_port, *config.a2a.grpc_ports.values()} - {0}:
        error = find_listening_problem(config.server.host, number)
        if error is not None and not is_transient(error, config.server.host, number):
            said = f"the hub cannot listen on port {number} for gRPC: {error.strerror or error}"
            fix = "stop the process that uses it, or set another port under [a2a]"
            yield Finding("grpc", "problem", said, fix)


def check_plugins(found: DoctorContext) -> Iterator[Finding]:
    """Checks the plug-ins and the signing key that the configuration names."""
    config = found.config
    if config is None:
        return
    from dragoman.a2a.cards.signing import load_private_key
    from dragoman.app.plugins import find_plugin

    for name in config.bus.plugins:
        try:
            find_plugin(name)
        except HubError as error:
            yield Finding("plug-ins", "problem", str(error), "install it, or remove the setting")
    if config.a2a.enabled and config.a2a.signing_key is not None:
        try:
            load_private_key(found.home / config.a2a.signing_key)
        except HubError as error:
            said = f"[a2a] signing_key: {error}"
            yield Finding("signing key", "problem", said, "correct the path, or remove the setting")


DAMAGE_SECONDS = 2.0
"""How long each database is checked; `--deep` checks it completely."""
DEEP_DAMAGE_SECONDS = 3600.0


def check_stores(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.stores.sqlite import describe_remedy, find_damage
    from dragoman.stores.store_inventory import FILES as STORE_FILES
    from dragoman.stores.store_inventory import find_obstacle, survey_stores

    policies, database = found.home / found.config.policy.folder, None
    try:
        if found.config.store.url is not None:
            with found.open_place() as place:
                assert not isinstance(place, Path)
                database = place.read_identity()
                said = f'the database at "{place.place}" answers; it needs its own backups'
                yield Finding("stores", "ok", said)
        losses = survey_stores(found.home, policies, database).losses
    except HubError as error:
        yield Finding("stores", "problem", str(error), "see: dragoman docs operations")
        return
    lost = {loss.file.name for loss in losses}
    for loss in losses:
        fix = f"restore it from a backup, or: dragoman stores accept-loss {loss.name}"
        yield Finding("stores", "problem", str(loss), fix)
    whole = 0
    for name in STORE_FILES:
        path = found.home / name
        if name in lost or not path.exists():
            continue
        if obstacle := find_obstacle(path):
            said, _, fix = obstacle.partition("; ")
            yield Finding("stores", "problem", said, fix)
            continue
        if damage := find_damage(path, DEEP_DAMAGE_SECONDS if found.deep else DAMAGE_SECONDS):
            said = f'"{path}" is damaged ({damage})'
            yield Finding("stores", "problem", said, describe_remedy(path))
        else:
            whole += 1
    if whole == sum((found.home / name).exists() for name in STORE_FILES) and whole:
        yield Finding("stores", "ok", f"{whole} databases are intact")
