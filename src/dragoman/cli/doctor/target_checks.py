"""Checks of servers, agents, policies, pins and the keys of servers and agents."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.cli.base.output import clean
from dragoman.cli.base.token_costs import find_heavy_list
from dragoman.cli.doctor.findings import DoctorContext, Finding
from dragoman.core.errors import HubError
from dragoman.core.package_runners import explain_unpinned, find_unpinned_package
from dragoman.core.secret_references import find_embedded_variables
from dragoman.processes.bubblewrap import NoBubblewrap, find_bubblewrap

MANY_RESTARTS = 3
_SCRIPT = re.compile(r"\.{1,2}/.*|[^-@/:][^:]*\.(?:py|js|mjs|cjs|ts|sh|rb|jar)")
_ADVICE = {
    "npx": "install Node.js (https://nodejs.org); a version manager such as nvm adds it only to "
    "the PATH of your shell, so give the full path that `which npx` prints",
    "node": "install Node.js (https://nodejs.org), or give its full path",
    "uvx": "install uv (https://docs.astral.sh/uv/), or give the full path that `which uvx` prints",
    "docker": "install Docker, or use Podman and write podman",
}


_HTTP_ADVICE = (
    (
        "HTTP 401",
        'set credentials under headers, for example { Authorization = "Bearer ${NAME}" }, with '
        "NAME=… in the env file; an existing token may have expired",
    ),
    ("HTTP 403", "the credentials lack permission: use others, or ask who issues them"),
    ("HTTP 404", "correct the path of url: many servers serve MCP at /mcp, older ones at /sse"),
    ("HTTP 405", "correct url: this address is not an MCP endpoint"),
    ("HTTP 3", "use the address that it redirects to; it may be a login page, which needs a token"),
    ("HTTP 429", "too many requests; the hub retries automatically"),
    ("HTTP 5", "the server failed: check its log; the hub retries automatically"),
    ("a web page", "correct url: this is a web page; MCP is often served at /mcp below it"),
    ("nothing listens", "start the server, or correct the port in url"),
    (
        "leads to no address",
        "correct the host in url, or make sure that this machine can resolve it",
    ),
)
"""The fix for each text in a reason."""


def advise_http(reason: str) -> str:
    found = (advice for words, advice in _HTTP_ADVICE if words in reason)
    return next(found, "make sure that it is running and that url and headers are correct")


def check_servers(found: DoctorContext) -> Iterator[Finding]:
    for entry in found.config.mcp_servers if found.config else ():
        name = f"server {entry.name}"
        if not entry.enabled:
            yield Finding(name, "info", "disabled", f'dragoman servers enable "{entry.name}"')
            continue
        findings = list(_check_entry(found, entry, name))
        is_wrong = any(finding.level == "problem" for finding in findings)
        if found.daemon is not None and not found.hub_problem:
            findings += _check_state(found, entry, name, is_wrong)
        if all(finding.level == "ok" for finding in findings):
            words = "; ".join(finding.said for finding in findings)
            yield Finding(name, "ok", words)
        else:
            yield from (finding for finding in findings if finding.level != "ok")


def _check_entry(found: DoctorContext, entry: Any, name: str) -> Iterator[Finding]:
    transport = entry.transport
    if hasattr(transport, "command"):
        yield from _check_program(found, transport, name)
        yield from _check_arguments(found, entry, name)
        yield from _check_sandbox(entry, name)
        if entry.has_user_home:
            said = 'it can use the settings and credentials in your home folder (home = "user")'
            yield Finding(name, "info", said)
    else:
        headers = transport.headers
        texts = list(headers.values()) if isinstance(headers, dict) else headers
        yield from _check_headers(found, texts, name)
    wanted = [each for each in entry.env_names if each not in entry.env_references]
    wanted += [
        one.removeprefix("env:") for one in entry.env_references.values() if one[:4] == "env:"
    ]
    unset = [each for each in wanted if found.find_variable(each) is None]
    if unset:
        said = f"{', '.join(unset)} is not set in this environment or in {found.home}/env"
        fix = f"add the line {unset[0]}=… to {found.home}/env"
        yield Finding(name, "warning", said, fix)
    limit = found.config.limits.tool_timeout_secs if found.config else entry.timeout_secs
    if entry.timeout_secs is not None and entry.timeout_secs > limit:
        said = (
            f"timeout_secs = {entry.timeout_secs:g} has no effect: [limits] tool_timeout_secs = "
            f"{limit:g} is shorter"
        )
        yield Finding(name, "warning", said, "raise the one or lower the other")


def _check_sandbox(entry: Any, name: str) -> Iterator[Finding]:
    if entry.sandbox == "off":
        yield Finding(name, "ok", "no sandbox")
        return
    try:
        find_bubblewrap()
    except NoBubblewrap as error:
        if entry.sandbox == "strict":
            said = f'it does not start, since its sandbox is "strict": {error}'
            yield Finding(name, "problem", said, "see: dragoman docs sandbox")
        else:
            said = f'it runs without its sandbox "net": {error}'
            yield Finding(name, "warning", said, "see: dragoman docs sandbox")
        return
    package = find_unpinned_package(entry.transport.command, entry.transport.args)
    if package is not None and entry.sandbox == "strict":
        said, fix = explain_unpinned(entry.transport.command, package)
        yield Finding(name, "problem", f'it does not start in the sandbox "strict": {said}', fix)
    else:
        yield Finding(name, "ok", f'in the sandbox "{entry.sandbox}"')


def _check_program(found: DoctorContext, transport: Any, name: str) -> Iterator[Finding]:
    command = os.path.expanduser(transport.command)
    program = shutil.which(command, path=found.find_variable("PATH") or os.defpath)
    if program is not None:
        yield Finding(name, "ok", f"{program} found")
        return
    word = os.path.basename(command)
    said = f'the command "{transport.command}" was not found on the PATH'
    if "/" in command:
        said = f'the program "{transport.command}" does not exist'
    fix = _ADVICE.get(word, "install it, or give its full path")
    yield Finding(name, "problem", said, fix)


def _check_arguments(found: DoctorContext, entry: Any, name: str) -> Iterator[Finding]:
    transport = entry.transport
    word, args = os.path.basename(transport.command), transport.args
    if transport.cwd is not None:
        if not os.path.isdir(os.path.expanduser(transport.cwd)):
            said = f'its cwd "{transport.cwd}" is not a folder'
            yield Finding(name, "problem", said, "create it, or correct cwd")
    else:
        relative = next((arg for arg in args if _SCRIPT.fullmatch(arg)), None)
        folder = found.home / "servers" / re.sub(r"[^A-Za-z0-9_-]", "_", entry.name) / "home"
        where = "its private home"
        if entry.has_user_home:
            folder, where = Path.home(), "your home folder"
        if relative is not None and not (folder / relative).exists():
            said = f'"{relative}" is a relative path and does not exist in {where}, where it starts'
            yield Finding(name, "problem", said, "write the full path, or set cwd")
    if word == "npx" and not {"-y", "--yes"} & set(args):
        said = "npx without -y asks before it installs, and the server cannot answer"
        yield Finding(name, "warning", said, 'put "-y" first in args')
    if (package := find_unpinned_package(transport.command, args)) is not None:
        said, fix = explain_unpinned(transport.command, package)
        yield Finding(name, "warning", said, fix)
    if word in ("docker", "podman") and "run" in args:
        yield from _check_container(args, name)


def _check_container(args: Sequence[str], name: str) -> Iterator[Finding]:
    short = [arg for arg in args if re.fullmatch(r"-[a-zA-Z]+", arg)]
    if "--interactive" not in args and not any("i" in arg for arg in short):
        said = "docker run without -i closes the server's stdin"
        yield Finding(name, "problem", said, 'put "-i" after "run" in args')
    if "--tty" in args or any("t" in arg for arg in short):
        said = "docker run with -t corrupts the protocol with terminal output"
        yield Finding(name, "problem", said, 'write "-i" instead of "-it" in args')


def _check_headers(found: DoctorContext, texts: Sequence[str], name: str) -> Iterator[Finding]:
    named = [each for text in texts for each in find_embedded_variables(text)]
    unset = [each for each in dict.fromkeys(named) if found.find_variable(each) is None]
    if unset:
        said = f"its headers use {', '.join(unset)}, which is not set"
        fix = f"add the line {unset[0]}=… to {found.home}/env"
        yield Finding(name, "problem", said, fix)
    else:
        yield Finding(name, "ok", "its entry is complete")


def _check_state(found: DoctorContext, entry: Any, name: str, explained: bool) -> Iterator[Finding]:
    """Checks the state in the running hub; `explained` if a check already found the cause."""
    state = found.servers.get(entry.name)
    logs = f"check its stderr: dragoman servers logs {entry.name}"
    if state is None:
        said = "unknown to the running hub, which may have rejected config.toml"
        yield Finding(name, "warning", said, "see: dragoman status")
        return
    if state["state"] == "connected":
        words = f"connected, {state.get('protocol_version')}, {state['tools_count']} tools"
        yield Finding(name, "ok", words)
        for remark in state.get("remarks", []):
            yield Finding(name, "info", clean(remark))
    elif state["state"] == "needs_login":
        said = f"not connected: {clean(state['reason'])}"
        yield Finding(name, "problem", said, f'dragoman servers login "{entry.name}"')
    elif state["state"] == "failed" and not explained:
        here = hasattr(entry.transport, "command")
        fix = logs if here else advise_http(state["reason"])
        yield Finding(name, "problem", f"not connected: {clean(state['reason'])}", fix)
    elif state["state"] != "failed":
        yield Finding(name, "info", f"{state['state']}: {clean(state.get('reason', ''))}")
    for problem in state.get("problems", []):
        yield Finding(name, "warning", clean(problem), "report it to the authors of the server")
    if state.get("restarts", 0) > MANY_RESTARTS:
        said = f"it had to be restarted {state['restarts']} times"
        yield Finding(name, "warning", said, logs)


def check_agents(found: DoctorContext) -> Iterator[Finding]:
    config = found.config
    if config is None:
        return
    if (config.agents or config.a2a.external_agents) and not config.a2a.enabled:
        said = "agents are configured, but A2A is off: only MCP clients see those of [[agents]]"
        yield Finding("a2a", "warning", said, "set enabled = true under [a2a] in config.toml")
    state = found.agents
    for name, problem in state.get("failed", {}).items():
        fix = "put the module into the hub's home, or correct its function setting"
        yield Finding(f"agent {name}", "problem", clean(problem), fix)
    for name in state.get("local", ()):
        yield Finding(f"agent {name}", "ok", "loaded")
    for agent in state.get("remote", ()):
        who = clean(agent["name"])
        name = f"agent {who}"
        if agent["state"] == "healthy":
            yield Finding(name, "ok", f"healthy, {clean(agent['dialect'] or 'dialect unknown')}")
        elif agent["state"] == "degraded":
            said = f"degraded: {clean(agent['reason'])}"
            yield Finding(name, "warning", said, f'dragoman agents show "{who}"')
        elif agent.get("refused"):
            fix = (
                "permit the reference as described and restart the hub, or: dragoman agents remove"
            )
            yield Finding(name, "problem", clean(agent["reason"]), f'{fix} "{who}"')
        else:
            said = f"{agent['state']}: {clean(agent['reason'] or 'not checked yet')}"
            fix = f'check that it runs and its url is correct: dragoman agents refresh "{who}"'
            yield Finding(name, "problem" if agent["reason"] else "info", said, fix)
        for finding in agent["findings"]:
            yield Finding(name, "warning", clean(finding), "report it to the operator of the agent")


MAX_NAMED = 5
"""How many are named; further ones are counted."""


def check_skills(found: DoctorContext) -> Iterator[Finding]:
    from dragoman.agents.skills.installation import SkillStore

    store = SkillStore(found.home)
    for name in store.list_names():
        skill = store.read(name)
        if skill.problem:
            fix = f"dragoman skills show {name}, then approve, add or remove it"
            yield Finding(f"skill {name}", "warning", f"not used: {clean(skill.problem)}", fix)
        else:
            yield Finding(f"skill {name}", "ok", f"pinned ({skill.digest[:19]}…)")


def check_policies(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.policy_admin.known_ids import load_known_ids
    from dragoman.policy.folder import PolicyFolder, build_report

    folder = PolicyFolder(found.home / found.config.policy.folder)
    if folder.path.exists() and not folder.exists:
        said = f"{folder.path} is not a folder; the hub does not start"
        yield Finding("policies", "problem", said, "move it away, or correct [policy] folder")
        return
    if not folder.exists:
        yield Finding("policies", "ok", "the default policies apply")
        return
    try:
        # A running hub knows more names, but does not report files that it has not applied.
        judged = build_report(folder.read_texts(), load_known_ids(found.home, time.time()))
    except HubError as error:
        yield Finding("policies", "problem", str(error), "correct them: dragoman policy check")
        return
    errors = [each for each in judged["findings"] if each["level"] == "error"]
    for each in errors[:MAX_NAMED]:
        said = f"{_render_position(each)} {each['message']}"
        after = "the hub keeps its old policies" if found.daemon else "the hub does not start"
        yield Finding("policies", "problem", f"{clean(said)}; {after}", "dragoman policy check")
    if errors:
        return
    for each in judged["findings"][:MAX_NAMED]:
        said = f"{_render_position(each)} {each['message']}"
        fix = "correct the name, or ignore this if it will be added later"
        yield Finding("policies", "warning", clean(said), fix)
    if found.config.policy.mode == "shadow":
        said = 'decisions are recorded but not enforced: [policy] mode = "shadow"'
        yield Finding(
            "policies", "warning", said, 'set mode = "enforce" when the audit looks right'
        )
    if not judged["policies"]:
        said = f"{folder.path} has no policies, so every call is denied, yours too"
        yield Finding("policies", "problem", said, "add policies: dragoman policy --help")
        return
    yield Finding("policies", "ok", f"{judged['policies']} valid in {folder.path}")


def _render_position(finding: dict[str, Any]) -> str:
    line = f":{finding['line']}" if finding["line"] else ""
    return f"{finding['file']}{line}:" if finding["file"] else ""


def check_pins(found: DoctorContext) -> Iterator[Finding]:
    """Checks for quarantined and new definitions, which only a running hub knows."""
    waiting = [pin for pin in found.pins if pin["state"] == "held"]
    for pin in waiting[:MAX_NAMED]:
        name = clean(pin["name"])
        is_shown = pin["kind"] in ("resource", "template") and pin["approved_at"]
        done = "is listed as approved" if is_shown else "is quarantined"
        said = f"{pin['kind']} {name} of {clean(pin['target'])} {done}"
        yield Finding("held", "warning", said, f'review it: dragoman pins diff "{name}"')
    if len(waiting) > MAX_NAMED:
        said = f"{len(waiting) - MAX_NAMED} more are quarantined"
        yield Finding("held", "warning", said, "dragoman pins list")
    added = [pin for pin in found.pins if pin["state"] == "new"]
    for target, count in Counter(str(pin["target"]) for pin in added).most_common(MAX_NAMED):
        first = next(clean(pin["name"]) for pin in added if pin["target"] == target)
        said = f"{clean(target)} added {count} since it was first listed, such as {first}"
        fix = f'review them: dragoman pins approve --target "{clean(target)}"'
        yield Finding("added", "info", said, fix)
    yield from _check_minor_changes(found)


def _check_minor_changes(found: DoctorContext) -> Iterator[Finding]:
    """Names each server once whose definitions alternate between its starts, or have minor
    changes since they were approved."""
    varying: dict[str, list[str]] = {}
    changed: dict[str, list[str]] = {}
    for pin in found.pins:
        if pin["state"] == "minor":
            is_order = all(str(one).startswith("order.") for one in pin["minor"])
            group = varying if is_order else changed
            group.setdefault(str(pin["target"]), []).append(clean(pin["name"]))
    for target, names in list(varying.items())[:MAX_NAMED]:
        said = (
            f"{len(names)} definitions of {clean(target)}, such as {names[0]}, differ between "
            "starts of the server, in the order of a list or series; they are offered as approved"
        )
        yield Finding("varying", "info", said, "report it to the server's authors")
    for target, names in list(changed.items())[:MAX_NAMED]:
        said = (
            f"{len(names)} definitions of {clean(target)}, such as {names[0]}, have minor changes; "
            "they are offered as approved"
        )
        fix = f'review them: dragoman pins approve --target "{clean(target)}"'
        yield Finding("changed", "info", said, fix)


def check_names(found: DoctorContext) -> Iterator[Finding]:
    """Checks for targets whose tools could get the same listed name."""
    if found.config is None or not found.home.is_dir() or found.store_problem:
        return
    from dragoman.app.policy_admin.known_ids import list_targets
    from dragoman.config import find_overlaps

    for one, other in list(find_overlaps(list_targets(found.home)))[:MAX_NAMED]:
        said = (
            f'tools of "{one}" and "{other}" can have the same listed name; the name belongs to '
            "the tool that had it first"
        )
        yield Finding("names", "info", clean(said), "rename one of the two")


def check_list_costs(found: DoctorContext) -> Iterator[Finding]:
    """Checks how much of a model's context the list of tools takes."""
    heavy = find_heavy_list(found.views) if found.views is not None else None
    if heavy is not None:
        yield Finding("tokens", "warning", *heavy)


def check_target_keys(found: DoctorContext) -> Iterator[Finding]:
    """Checks for keys of unknown servers and agents: loop detection does not work for them."""
    if found.config is None:
        return
    from dragoman.app.policy_admin.known_ids import list_targets
    from dragoman.app.store_place import has_store
    from dragoman.stores.keys import KeyStore

    with found.open_place() as place:
        if not has_store(place, "hub.db"):
            return
        with closing(KeyStore(place)) as store:
            records = store.list()
    known = list_targets(found.home)
    now = time.time()
    for record in records:
        if record.target and record.get_state(now) == "active" and record.target not in known:
            said = f'key "{record.name}" is for the unknown server or agent "{record.target}"'
            fix = f"dragoman keys revoke {record.name}, and create one for the right name"
            yield Finding("keys", "warning", clean(said), fix)


def check_seals(found: DoctorContext) -> Iterator[Finding]:
    """Checks for rows of a shared database that no hub of the cluster has written."""
    with found.open_place() as place:
        if isinstance(place, Path):
            return
        if not place.seals.is_active:
            said = "rows of the database have no seals: a writer of it can make an owner's key"
            fix = "set [cluster] secret; see: dragoman docs security"
            yield Finding("seals", "info", said, fix)
            return
        from dragoman.stores.row_seals import RESEAL
        from dragoman.stores.seal_database import list_refused

        for noun, id in list_refused(place):
            said = f'{noun} "{id}" is refused: it was not written by this cluster as it is'
            fix = f"remove it and find out who wrote it; if you trust all that is there: {RESEAL}"
            yield Finding("seals", "problem", clean(said), fix)


def check_scopes(found: DoctorContext) -> Iterator[Finding]:
    """Checks for keys that lack a scope for what the policies permit, and for servers whose
    processes the policies permit to call."""
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.scope_reports import build_engine, find_lost_scopes, list_callers
    from dragoman.app.store_place import has_store
    from dragoman.policy.loader import load_policies
    from dragoman.stores.keys import KeyStore

    try:
        engine = build_engine(load_policies(found.home / found.config.policy.folder))
    except HubError:
        return  # `check_policies` says why
    with found.open_place() as place:
        if has_store(place, "hub.db"):
            with closing(KeyStore(place)) as store:
                records = store.list()
            for lost in find_lost_scopes(records, engine):
                yield Finding("scopes", "warning", clean(str(lost)), clean(lost.fix))
    callers = list_callers([server.name for server in found.config.mcp_servers], engine)
    if callers:
        said = f"the policies permit processes of servers to call others: {', '.join(callers)}"
        fix = 'name those that need it; see "Servers that call" in: dragoman docs policies'
        yield Finding("policies", "warning", clean(said), fix)
