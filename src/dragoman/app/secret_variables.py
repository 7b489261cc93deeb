"""Which variables of the hub's environment are secrets that it has read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from dragoman.agents.skills.skill_book import FOLDER
from dragoman.config import Config, parse_headers
from dragoman.config_layers import CREDENTIALS, PREFIX
from dragoman.core.environment import read_environment, withhold_variables
from dragoman.core.secret_references import find_embedded_variables
from dragoman.processes.child_process import COMMON_VARIABLES, USER_VARIABLES

PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
_ORDINARY = COMMON_VARIABLES | USER_VARIABLES | {"PATH", "HOME"}
_SECRET_SETTINGS = (
    "API_KEY", "__HEADERS", "REDIS__URL", "STORE__URL", "CLUSTER__SECRET",
)  # fmt: skip


def list_secret_variables(
    config: Config, variables: Iterable[str], skills: Iterable[str] = ()
) -> list[str]:
    """Returns those of `variables` that the configuration takes secrets from, and those that the
    programs of skills get, named by `skills`.

    The list is empty if the hub runs Python code of the operator (agents, plug-ins): that code may
    read the same variables, and it shares the hub's memory in any case.
    """
    if config.agents or config.bus.plugins:
        return []
    named = {*_list_named(config), *(name for name in skills if not _is_ordinary(name))}
    globs = list(_list_allowed(config))
    return [
        name
        for name in variables
        if name in named
        or _is_secret_setting(name)
        or (not _is_ordinary(name) and any(fnmatchcase(name, glob) for glob in globs))
    ]


def _list_allowed(config: Config) -> Iterator[str]:
    """Globs of the variables that agents registered by the API may use."""
    for glob in config.secrets.allow:
        kind, _, name = glob.partition(":")
        if kind == "env":
            yield name


def withhold_secrets(config: Config, skills: Iterable[str]) -> None:
    """Takes the secrets out of the environment of the process; the hub still reads them."""
    withhold_variables(list_secret_variables(config, read_environment(), skills))


def list_skill_variables(home: Path) -> set[str]:
    """The names of the variables that the skills of a home get."""
    if not (home / FOLDER).exists():
        return set()
    from dragoman.agents.skills.installation import SkillStore

    return SkillStore(home).list_variables()


def _list_named(config: Config) -> Iterator[str]:
    yield from config.bridge.credential_env
    for agent in config.a2a.external_agents:
        for _, value in parse_headers(agent.headers):
            yield from find_embedded_variables(value)
    for server in config.mcp_servers:
        yield from (name for name in server.env_names if not _is_ordinary(name))
        for _, value in parse_headers(getattr(server.transport, "headers", {})):
            yield from find_embedded_variables(value)
    for value in (*config.tools.search_headers.values(), *config.otel.headers.values()):
        yield from find_embedded_variables(value)
    references = [agent.token for agent in config.a2a.external_agents]
    references += [one for server in config.mcp_servers for one in server.env_references.values()]
    for client in (config.auth.introspection, config.auth.server.oidc):
        references += [client.client_secret] if client is not None else []
    references += [config.api_key, config.cluster.secret]
    references += [config.store.url, config.redis.url]
    for reference in references:
        if reference is not None and reference.startswith("env:"):
            yield reference.removeprefix("env:")


def _is_ordinary(name: str) -> bool:
    """Whether libraries in the hub may depend on it; proxies are settings, not secrets."""
    return name in _ORDINARY or name.upper() in PROXIES or name.startswith("LC_")


def _is_secret_setting(name: str) -> bool:
    if not name.startswith(PREFIX):
        return False
    return name.startswith(CREDENTIALS) or any(part in name for part in _SECRET_SETTINGS)
