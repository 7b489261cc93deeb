"""The checks of `doctor` on each configured server: what its entry says, how the hub finds it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dragoman.cli.base.output import clean
from dragoman.cli.doctor.findings import DoctorContext, Finding
from dragoman.core.errors import HubError

MANY_RESTARTS = 3
_SCRIPT = re.compile(r"\.{1,2}/.*|[^-@/:][^:]*\.(?:py|js|mjs|cjs|ts|sh|rb|jar)")
_ADVICE = {
    "npx": "install Node.js (https://nodejs.org); a version manager such as nvm puts it on the "
    "PATH of your shell alone, so give the full path that `which npx` prints",
    "node": "install Node.js (https://nodejs.org), or give its full path",
    "uvx": "install uv (https://docs.astral.sh/uv/), or give the full path that `which uvx` prints",
    "docker": "install Docker, or Podman and write podman",
}


_HTTP_ADVICE = (
    (
        "requires OAuth",
        "give it a token that it takes otherwise, such as a personal access token: headers = "
        '{ Authorization = "Bearer ${NAME}" }; or put a program between that signs in for you: '
        'type = "stdio", command = "npx", args = ["-y", "mcp-remote", URL]',
    ),
    (
        "HTTP 401",
        'set what it wants under headers, for example { Authorization = "Bearer ${NAME}" }, with '
        "NAME=… in the env file; a token that is there may have expired",
    ),
    (
        "HTTP 403",
        "its credentials are known and may not do this: use others, or ask who gives them",
    ),
    ("HTTP 404", "correct the path of url: many servers serve MCP at /mcp, older ones at /sse"),
    ("HTTP 405", "correct url: there is something at this address that is no MCP endpoint"),
    ("HTTP 3", "give the address that it redirects to, or sign in: it may lead to a login page"),
    ("HTTP 429", "it has had too many requests; the hub tries again by itself"),
    ("HTTP 5", "the server itself fails: look at its own log; the hub tries again by itself"),
    ("a web page", "correct url: this is the address of a page, MCP is often at /mcp below it"),
    ("nothing listens", "start the server, or correct the port in url"),
    ("leads to no address", "correct the name in url, or see that this machine can resolve it"),
)
"""What to do, by what the reason says."""


def advise_http(reason: str) -> str:
    found = (advice for words, advice in _HTTP_ADVICE if words in reason)
    return next(found, "see that it runs, and that url and headers are right")


def check_servers(found: DoctorContext) -> Iterator[Finding]:
    for entry in found.config.mcp_servers if found.config else ():
        name = f"server {entry.name}"
        if not entry.enabled:
            yield Finding(name, "info", "it is switched off", "enabled = true in config.toml")
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
        if entry.has_user_home:
            said = (
                "it runs with your home folder, and so with the settings and credentials there "
                '(home = "user")'
            )
            yield Finding(name, "info", said)
    else:
        headers = transport.headers
        texts = list(headers.values()) if isinstance(headers, dict) else headers
        yield from _check_headers(found, texts, name)
    unset = [each for each in entry.env if found.find_variable(each) is None]
    if unset:
        said = f"{', '.join(unset)} is set neither in this environment nor in {found.home}/env"
        fix = f"add a line {unset[0]}=… to {found.home}/env"
        yield Finding(name, "warning", said, fix)
    limit = found.config.limits.tool_timeout_secs if found.config else entry.timeout_secs
    if entry.timeout_secs is not None and entry.timeout_secs > limit:
        said = (
            f"timeout_secs = {entry.timeout_secs:g} is never reached: every tool is stopped after "
            f"[limits] tool_timeout_secs = {limit:g}"
        )
        yield Finding(name, "warning", said, "raise the one or lower the other")


def _check_program(found: DoctorContext, transport: Any, name: str) -> Iterator[Finding]:
    command = os.path.expanduser(transport.command)
    program = shutil.which(command, path=found.find_variable("PATH") or os.defpath)
    if program is not None:
        yield Finding(name, "ok", f"{program} is there")
        return
    word = os.path.basename(command)
    said = f'the command "{transport.command}" was not found on the PATH'
    if "/" in command:
        said = f'there is no program "{transport.command}"'
    fix = _ADVICE.get(word, "install it, or give its full path")
    yield Finding(name, "problem", said, fix)


def _check_arguments(found: DoctorContext, entry: Any, name: str) -> Iterator[Finding]:
    transport = entry.transport
    word, args = os.path.basename(transport.command), transport.args
    if transport.cwd is not None:
        if not os.path.isdir(os.path.expanduser(transport.cwd)):
            said = f'its cwd "{transport.cwd}" is no folder'
            yield Finding(name, "problem", said, "make it, or correct cwd")
    else:
        relative = next((arg for arg in args if _SCRIPT.fullmatch(arg)), None)
        folder = found.home / "servers" / re.sub(r"[^A-Za-z0-9_-]", "_", entry.name) / "home"
        where = "a private home of its own"
        if entry.has_user_home:
            folder, where = Path.home(), "your home"
        if relative is not None and not (folder / relative).exists():
            said = f'"{relative}" is no full path, and this server starts in {where}'
            yield Finding(name, "problem", said, "write the full path, or set cwd")
    if word == "npx" and not {"-y", "--yes"} & set(args):
        said = "npx without -y asks before it installs, and nobody is there to answer"
        yield Finding(name, "warning", said, 'put "-y" first in args')
    if word in ("docker", "podman") and "run" in args:
        yield from _check_container(args, name)


def _check_container(args: Sequence[str], name: str) -> Iterator[Finding]:
    short = [arg for arg in args if re.fullmatch(r"-[a-zA-Z]+", arg)]
    if "--interactive" not in args and not any("i" in arg for arg in short):
        said = "docker run without -i closes the server's stdin"
        yield Finding(name, "problem", said, 'put "-i" after "run" in args')
    if "--tty" in args or any("t" in arg for arg in short):
        said = "docker run with -t mixes a terminal into the protocol"
        yield Finding(name, "problem", said, 'write "-i" instead of "-it" in args')


def _check_headers(found: DoctorContext, texts: Sequence[str], name: str) -> Iterator[Finding]:
    named = [each for text in texts for each in re.findall(r"\$\{([A-Za-z_]\w*)\}", text)]
    unset = [each for each in dict.fromkeys(named) if found.find_variable(each) is None]
    if unset:
        said = f"its headers need {', '.join(unset)}, which is set nowhere"
        fix = f"add a line {unset[0]}=… to {found.home}/env"
        yield Finding(name, "problem", said, fix)
    else:
        yield Finding(name, "ok", "its entry is complete")


def _check_state(found: DoctorContext, entry: Any, name: str, explained: bool) -> Iterator[Finding]:
    """What the running hub says of it; `explained`: why it fails was found already."""
    state = found.servers.get(entry.name)
    logs = f"see what it wrote: dragoman servers logs {entry.name}"
    if state is None:
        said = "the running hub does not know it"
        yield Finding(name, "warning", said, "see: dragoman status (config.toml may not be used)")
        return
    if state["state"] == "connected":
        words = f"connected, {state.get('protocol_version')}, {state['tools_count']} tools"
        yield Finding(name, "ok", words)
        for remark in state.get("remarks", []):
            yield Finding(name, "info", clean(remark))
    elif state["state"] == "failed" and not explained:
        here = hasattr(entry.transport, "command")
        fix = logs if here else advise_http(state["reason"])
        yield Finding(name, "problem", f"it is not connected: {clean(state['reason'])}", fix)
    elif state["state"] != "failed":
        yield Finding(name, "info", f"it is {state['state']}: {clean(state.get('reason', ''))}")
    for problem in state.get("problems", []):
        yield Finding(name, "warning", clean(problem), "tell those who make the server")
    if state.get("restarts", 0) > MANY_RESTARTS:
        said = f"it was lost and connected again {state['restarts']} times"
        yield Finding(name, "warning", said, logs)


def check_agents(found: DoctorContext) -> Iterator[Finding]:
    config = found.config
    if config is None:
        return
    if (config.agents or config.a2a.external_agents) and not config.a2a.enabled:
        said = "agents are configured, but A2A is off: only MCP clients see those of [[agents]]"
        yield Finding("a2a", "warning", said, "enabled = true under [a2a] in config.toml")
    state = found.agents
    for name, problem in state.get("failed", {}).items():
        fix = "put the module into the hub's home, or correct function"
        yield Finding(f"agent {name}", "problem", clean(problem), fix)
    for name in state.get("local", ()):
        yield Finding(f"agent {name}", "ok", "it is there")
    for far in state.get("remote", ()):
        who = clean(far["name"])
        name = f"agent {who}"
        if far["state"] == "healthy":
            yield Finding(name, "ok", f"found, speaks {clean(far['dialect'] or 'nothing yet')}")
        elif far["state"] == "degraded":
            said = f"it is degraded: {clean(far['reason'])}"
            yield Finding(name, "warning", said, f'dragoman agents show "{who}"')
        elif far.get("refused"):
            fix = "allow the reference as it says and restart the hub, or: dragoman agents remove"
            yield Finding(name, "problem", clean(far["reason"]), f'{fix} "{who}"')
        else:
            said = f"it is {far['state']}: {clean(far['reason'] or 'it is being looked for')}"
            fix = f'see that it runs and its url is right, then: dragoman agents refresh "{who}"'
            yield Finding(name, "problem" if far["reason"] else "info", said, fix)
        for odd in far["findings"]:
            yield Finding(name, "warning", clean(odd), "tell those who run the agent")


MAX_NAMED = 5
"""So many are named; of more, how many there are."""


def check_policies(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.app import policy_folder

    folder = policy_folder.Folder(found.home / found.config.policy.folder)
    if folder.path.exists() and not folder.exists:
        said = f"{folder.path} is no folder, so no hub starts"
        yield Finding("policies", "problem", said, "move it away, or correct [policy] folder")
        return
    if not folder.exists:
        yield Finding("policies", "ok", "those that come with the hub")
        return
    try:
        # A running hub knows more names, but says nothing of files that it has not taken up.
        judged = policy_folder.judge(
            folder.texts(), policy_folder.known_at(found.home, time.time())
        )
    except HubError as error:
        yield Finding("policies", "problem", str(error), "correct them: dragoman policy check")
        return
    errors = [each for each in judged["findings"] if each["level"] == "error"]
    for each in errors[:MAX_NAMED]:
        said = f"{_render_position(each)} {each['message']}"
        after = "the running hub goes on with what it had" if found.daemon else "no hub starts so"
        yield Finding("policies", "problem", f"{clean(said)}; {after}", "dragoman policy check")
    if errors:
        return
    for each in judged["findings"][:MAX_NAMED]:
        said = f"{_render_position(each)} {each['message']}"
        fix = "correct the name, or let it be if that is still to come"
        yield Finding("policies", "warning", clean(said), fix)
    if found.config.policy.mode == "shadow":
        said = "they are recorded and not enforced: [policy] mode is shadow"
        yield Finding("policies", "warning", said, 'mode = "enforce", once the audit looks right')
    if not judged["policies"]:
        said = f"{folder.path} has none, so nothing is permitted, to you neither"
        yield Finding("policies", "problem", said, "write some there: dragoman policy --help")
        return
    yield Finding("policies", "ok", f"{judged['policies']} in {folder.path} can be used")


def _render_position(finding: dict[str, Any]) -> str:
    line = f":{finding['line']}" if finding["line"] else ""
    return f"{finding['file']}{line}:" if finding["file"] else ""


def check_pins(found: DoctorContext) -> Iterator[Finding]:
    """Known only to a hub that runs."""
    waiting = [pin for pin in found.pins if pin["state"] == "held"]
    for pin in waiting[:MAX_NAMED]:
        name = clean(pin["name"])
        is_shown = pin["kind"] in ("resource", "template") and pin["approved_at"]
        done = "is shown as it was approved" if is_shown else "is neither listed nor called"
        said = f"{pin['kind']} {name} of {clean(pin['target'])} {done}"
        yield Finding("held", "warning", said, f'look, then decide: dragoman pins diff "{name}"')
    if len(waiting) > MAX_NAMED:
        said = f"{len(waiting) - MAX_NAMED} more are held"
        yield Finding("held", "warning", said, "dragoman pins list")
    added = [pin for pin in found.pins if pin["state"] == "new"]
    for target, count in Counter(str(pin["target"]) for pin in added).most_common(MAX_NAMED):
        first = next(clean(pin["name"]) for pin in added if pin["target"] == target)
        said = f"{clean(target)} has added {count} since it was first listed, such as {first}"
        fix = f'look at them: dragoman pins approve --target "{clean(target)}"'
        yield Finding("added", "info", said, fix)


def check_names(found: DoctorContext) -> Iterator[Finding]:
    """Targets whose tools could be listed under one name."""
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.app import policy_folder
    from dragoman.config import find_overlaps

    for one, other in list(find_overlaps(policy_folder.targets_at(found.home)))[:MAX_NAMED]:
        said = (
            f'a tool of "{one}" can be spelled as those of "{other}" are listed; each name stays '
            "with the tool that had it first"
        )
        yield Finding("names", "info", clean(said), "rename one of the two to tell them apart")


def check_target_keys(found: DoctorContext) -> Iterator[Finding]:
    """A key that was made for a server or agent which is not there knows no ring."""
    if found.config is None or not (found.home / "hub.db").exists():
        return
    from dragoman.app.app import KeyStore, policy_folder

    known = policy_folder.targets_at(found.home)
    store = KeyStore(found.home)
    try:
        records = store.list()
    finally:
        store.close()
    now = time.time()
    for record in records:
        if record.target and record.get_state(now) == "active" and record.target not in known:
            said = f'key "{record.name}" is for "{record.target}", and nothing here is called so'
            fix = f"dragoman keys revoke {record.name}, and make one for the right name"
            yield Finding("keys", "warning", clean(said), fix)
