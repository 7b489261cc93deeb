"""`doctor` on agents: those of the configuration, and those of others that the hub looks for."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.cli.base.output import clean
from dragoman.cli.doctor.findings import DoctorContext, Finding


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
