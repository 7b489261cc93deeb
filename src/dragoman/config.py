"""The structure of `config.toml`, from each package's part. Errors name the line and the fix."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from dragoman.a2a.config import HUB, PATHS, A2aSettings, BridgeSettings, ExternalAgent
from dragoman.a2a.config import RENAMED_WIRES as RENAMED_WIRES
from dragoman.agents.config import AgentEntry, ModelPrice
from dragoman.config_layers import (
    Override,
    SettingOrigins,
    Step,
    find_structs,
    is_map,
    list_fields,
    list_settings,
    merge_layers,
)
from dragoman.core.environment import read_environment
from dragoman.core.errors import ConfigError
from dragoman.core.nearest_names import find_nearest
from dragoman.core.secret_references import is_reference
from dragoman.core.shared_settings import check_advertise, check_database_url, parse_listen
from dragoman.core.tool_identity import BUILTIN, WORKFLOW, fold_server_name
from dragoman.core.urls import render_arguments, render_origin
from dragoman.guards.config import ApprovalSettings, BusSettings, Limits, TaintSettings
from dragoman.mcp.config import RENAMED_STYLES, McpSettings, ServerEntry, ViewEntry
from dragoman.mcp.config import StdioTransport as StdioTransport
from dragoman.mcp.config import parse_headers as parse_headers
from dragoman.oauth.authority.config import AuthServerSettings
from dragoman.oauth.config import GRANTS_BY_PERSONS, OAuthHubSettings
from dragoman.oauth.server.config import (
    ClaimRules,
    IntrospectionSettings,
    JwtSettings,
)
from dragoman.oauth.server.config import find_issuer_name as find_issuer_name
from dragoman.policy.config import PolicySettings
from dragoman.routing.config import RoutingSettings
from dragoman.stores.config import AuditSettings, ClusterSettings, RedisSettings, StoreSettings
from dragoman.telemetry.config import OtelSettings
from dragoman.tools.config import ToolSettings
from dragoman.web.config import ServerSettings
from dragoman.web.console.config import ConsoleSettings
from dragoman.workflows.config import WorkflowSettings

RESERVED = PATHS | {HUB, BUILTIN, WORKFLOW}
"""Names that no agent can have."""
TAKEN_PATHS = frozenset(
    {"/mcp", "/sse", "/messages", "/api", "/metrics", "/healthz", "/readyz", "/oauth", "/console"}
)

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

SettingPath = tuple[Step, ...]

RENAMED_VALUES: Sequence[tuple[tuple[str, ...], Mapping[str, str]]] = (
    (("mcp", "names"), RENAMED_STYLES),
    (("mcp", "names_for", "*"), RENAMED_STYLES),
    (("a2a", "external_agents", "*", "wire"), RENAMED_WIRES),
)
"""Settings with former values and their replacements; `*` stands for every entry."""
RETIRED: Mapping[tuple[str, str], str] = {
    ("workflows", "database"): (
        "runs are stored where [store] url stores everything else. Remove it; to keep the runs, "
        "run: dragoman store copy URL, with the address of that database, whose runs stay, and "
        "then set [store] url to it"
    ),
}
"""Settings that are gone, and what to do."""


class LogSettings(Struct, frozen=True, kw_only=True):
    format: Annotated[
        Literal["text", "json"],
        Meta(description="The format of a record: a line of text, or a line of JSON."),
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The lowest level that is written; a call is logged at info."),
    ] = "info"
    megabytes: Annotated[
        float,
        Meta(
            gt=0,
            le=100_000,
            description="Size of hub.log, in megabytes, at which a new file begins.",
        ),
    ] = 10
    files: Annotated[
        int, Meta(ge=1, le=1_000, description="Older files kept: hub.log.1 is the newest of them.")
    ] = 5


class AuthSettings(Struct, frozen=True, kw_only=True):
    """`[auth]`: who may call the hub, besides the keys."""

    required_scopes: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!#-\[\]-~]+$")]],
        Meta(
            max_length=64,
            description="Scopes that every access token must have; keys do not need them.",
        ),
    ] = []
    jwt: JwtSettings = JwtSettings()
    introspection: IntrospectionSettings | None = None
    server: AuthServerSettings = AuthServerSettings()


class SecretSettings(Struct, frozen=True, kw_only=True):
    allow: Annotated[
        list[Annotated[str, Meta(pattern="^(env|file|keyring):.+$", max_length=500)]],
        Meta(
            max_length=1_000,
            description="Globs of the references to secrets that agents, servers and workflows "
            'written by the API may use, besides those of [bridge]: "env:GITHUB_*", '
            '"file:tokens/*", "keyring:dragoman/*".',
        ),
    ] = []
    cache_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds for which a secret of keyring: and exec: is used before it is "
            "read again.",
        ),
    ] = 300
    command_secs: Annotated[
        float, Meta(gt=0, le=300, description="Seconds that the command of exec: may take.")
    ] = 10


class Config(Struct, frozen=True, kw_only=True):
    api_key: Annotated[
        str | None,
        Meta(
            description="The key that every client must send, or a reference to it (env:NAME, "
            "file:PATH, keyring:SERVICE/NAME, exec:COMMAND); without one, loopback only."
        ),
    ] = None
    server: ServerSettings = ServerSettings()
    console: ConsoleSettings = ConsoleSettings()
    auth: AuthSettings = AuthSettings()
    log: LogSettings = LogSettings()
    secrets: SecretSettings = SecretSettings()
    mcp: McpSettings = McpSettings()
    limits: Limits = Limits()
    taint: TaintSettings = TaintSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    prices: Annotated[
        dict[str, ModelPrice],
        Meta(description="The prices of models whose provider does not report the cost, by name."),
    ] = {}
    store: StoreSettings = StoreSettings()
    audit: AuditSettings = AuditSettings()
    cluster: ClusterSettings = ClusterSettings()
    mcp_servers: list[ServerEntry] = []
    views: list[ViewEntry] = []
    a2a: A2aSettings = A2aSettings()
    bridge: BridgeSettings = BridgeSettings()
    routing: RoutingSettings = RoutingSettings()
    workflows: WorkflowSettings = WorkflowSettings()
    policy: PolicySettings = PolicySettings()
    bus: BusSettings = BusSettings()
    agents: list[AgentEntry] = []
    tools: ToolSettings = ToolSettings()
    oauth: OAuthHubSettings = OAuthHubSettings()
    redis: RedisSettings = RedisSettings()
    otel: OtelSettings = OtelSettings()


class ConfigSource:
    """Where the values of a configuration come from."""

    def __init__(
        self, text: str, name: str, raw: Mapping[str, Any], origins: SettingOrigins
    ) -> None:
        """`raw` has all layers merged."""
        self._text = text
        self._name = name
        self._raw = raw
        self._origins = origins
        self.warnings: list[str] = []
        """Deprecated values that are in use."""

    def locate(self, at: SettingPath) -> str:
        """Returns the variable or option that sets `at`, or the file and the line."""
        if origin := self._origins.find(at):
            return origin
        line = find_line(self._text, at)
        return f"{self._name}, line {line}" if line else self._name

    def find_origin(self, at: SettingPath) -> str:
        """Returns where the value at `at` comes from; "default" if it is not set."""
        here: Any = self._raw
        for step in at:
            try:
                here = here[step]
            except (KeyError, IndexError, TypeError):
                return "default"
        return self.locate(at)


def load(file: Path, given: Sequence[Override] = ()) -> Config:
    """Loads the configuration from the command line, the environment and the file, in this order of
    precedence. The file may be missing."""
    return load_with_source(file, given)[0]


def load_with_source(file: Path, given: Sequence[Override] = ()) -> tuple[Config, ConfigSource]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    return _parse(text, str(file), read_environment(), given)


def parse(text: str, name: str = "config.toml") -> Config:
    """Parses a text without the environment."""
    return _parse(text, name, {}, ())[0]


def _parse(
    text: str, name: str, environ: Mapping[str, str], given: Sequence[Override]
) -> tuple[Config, ConfigSource]:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
    _refuse_retired(raw, name, environ)
    source = ConfigSource(text, name, raw, merge_layers(raw, Config, environ, given))
    for path, renamed in RENAMED_VALUES:
        _replace_renamed(raw, path, (), renamed, source)
    _refuse_unknown(raw, Config, (), source)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), source)) from None
    _check_agents(config, source, _check_servers(config, source))
    _check_prefixes(config, source)
    _check_views(config, source)
    _check_key(config, source)
    _check_auth_server(config, source)
    _check_issuers(config.auth, source)
    _check_shared(config, source)
    if config.tools.search_url is not None:
        where = source.locate(("tools", "search_url"))
        _check_url(config.tools.search_url, "web_search", where)
    return config, source


def _refuse_retired(raw: Mapping[str, Any], name: str, environ: Mapping[str, str]) -> None:
    for (section, key), remedy in RETIRED.items():
        table, variable = raw.get(section), f"DRAGOMAN_{section}__{key}".upper()
        where = name if isinstance(table, dict) and key in table else ""
        if where := where or (variable if variable in environ else ""):
            raise ConfigError(f"{where}: [{section}] {key} is not a setting any more: {remedy}")


def _replace_renamed(
    holder: Any,
    path: tuple[str, ...],
    at: SettingPath,
    renamed: Mapping[str, str],
    source: ConfigSource,
) -> None:
    """Replaces the former values at `path` below `holder` and notes a warning for each."""
    step, rest = path[0], path[1:]
    if isinstance(holder, dict):
        keys: Iterable[Step] = list(holder) if step == "*" else [step] if step in holder else []
    else:
        keys = range(len(holder)) if step == "*" and isinstance(holder, list) else []
    for key in keys:
        value, here = holder[key], (*at, key)
        if rest:
            _replace_renamed(value, rest, here, renamed, source)
        elif isinstance(value, str) and value in renamed:
            holder[key] = renamed[value]
            source.warnings.append(
                f'{source.locate(here)}: the value "{value}" is now called "{renamed[value]}"; '
                "the old name still works, but please change it"
            )


def describe_transport(entry: ServerEntry) -> str:
    """Describes the transport of a server in one line, without secrets."""
    transport = entry.transport
    if isinstance(transport, StdioTransport):
        return " ".join([transport.command, *render_arguments(transport.args)])
    return render_origin(transport.url)


_OWNERS = {
    BUILTIN: "the built-in tools",
    HUB: "the hub's own tools",
    WORKFLOW: "the hub's workflows",
}
"""The targets whose names are reserved."""


# --- checks beyond the types --------------------------------------------------------------------


def _check_name(kind: str, called: str, where: str, seen: dict[str, str], more: str = "") -> None:
    """Servers and agents share a namespace. `more` are further characters that a name may have."""
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9 _{re.escape(more)}-]*", called):
        also = "".join(f' "{letter}",' for letter in more)
        raise ConfigError(
            f'{where}: invalid {kind} name "{called}": use letters, digits, '
            f'spaces,{also} "-" and "_", beginning with a letter or digit'
        )
    key = slug_from_name(called)
    if key in _OWNERS:
        owner = _OWNERS[key]
        raise ConfigError(
            f'{where}: the name "{called}" is reserved for {owner}; give the {kind} another name'
        )
    if key in seen:
        raise ConfigError(
            f'{where}: the name of {kind} "{called}" already exists: "{seen[key]}" '
            '(case, "-" and "_" are ignored); give it another name'
        )
    seen[key] = called


def _check_agent_name(called: str, where: str, seen: dict[str, str], more: str = "") -> None:
    _check_name("agent", called, where, seen, more)
    if called in RESERVED:
        raise ConfigError(
            f'{where}: the agent name "{called}" is reserved: it has another meaning in an '
            "address; give it another name"
        )


def _check_url(url: str, what: str, where: str) -> None:
    if not re.match(r"https?://[^/]", url):
        raise ConfigError(
            f"{where}: the url of {what} must begin with http:// or https://, "
            f'not "{render_origin(url)}"'
        )


def _check_agents(config: Config, source: ConfigSource, seen: dict[str, str]) -> None:
    """Checks the agents; `seen` has the names of servers."""
    for index, agent in enumerate(config.agents):
        _check_agent_name(agent.name, source.locate(("agents", index, "name")), seen)
    a2a = config.a2a
    for index, external in enumerate(a2a.external_agents):
        at: SettingPath = ("a2a", "external_agents", index)
        _check_agent_name(external.name, source.locate((*at, "name")), seen, "()")
        what = f'agent "{external.name}"'
        _check_url(external.url, what, source.locate((*at, "url")))
        _check_headers(external.headers, f"{source.locate((*at, 'headers'))}: {what}")
        has_token = external.token is not None or _has_authorization(external.headers)
        _check_login(external, has_token, what, source.locate((*at, "oauth")))
    if a2a.grpc_ports and a2a.grpc_port is None:
        raise ConfigError(
            f"{source.locate(('a2a', 'grpc_ports'))}: grpc_ports needs grpc_port, the port where "
            "all agents answer; set it too"
        )
    if not re.fullmatch(r"(/[A-Za-z0-9_.~-]+)+", a2a.listen_path) or a2a.listen_path in TAKEN_PATHS:
        raise ConfigError(
            f"{source.locate(('a2a', 'listen_path'))}: listen_path must be a path of its own "
            f'such as "/a2a", not "{a2a.listen_path[:60]}"'
        )


def _check_prefixes(config: Config, source: ConfigSource) -> None:
    """Refuses two targets whose tools would be listed under the same prefix in some style."""
    seen: dict[str, tuple[str, str | None]] = {}
    for path, called, prefix in _list_targets(config):
        base = slug_from_name(called if prefix is None else prefix)
        styles = {f"{base}_", f"mcp_{base}_" if path[0] == "mcp_servers" else f"a2a_{base}_"}
        for listed in sorted(styles) if base else ():
            other, chosen = seen.setdefault(listed, (called, prefix))
            # A prefix that is set for both is intended.
            if other != called and (prefix is None or prefix != chosen):
                raise ConfigError(
                    f'{source.locate(path)}: tools of "{called}" and of "{other}" would both '
                    f'be listed as "{listed}…"; rename one of the two, or give it another prefix'
                )


def _list_targets(config: Config) -> Iterator[tuple[SettingPath, str, str | None]]:
    for index, server in enumerate(config.mcp_servers):
        yield ("mcp_servers", index, "name"), server.name, server.prefix
    for index, agent in enumerate(config.a2a.external_agents):
        yield ("a2a", "external_agents", index, "name"), agent.name, None


def slug_from_name(name: str) -> str:
    """Folds a name for lists: lower case, `_` for everything but letters and digits."""
    return re.sub("[^a-z0-9]+", "_", fold_server_name(name)).strip("_")


def find_overlaps(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Finds pairs of targets where the first could list a tool under a name of the second."""
    slugs = {slug_from_name(name): name for name in names}
    for one, name in slugs.items():
        parts = one.split("_")
        for length in range(1, len(parts)):
            if (shorter := "_".join(parts[:length])) in slugs:
                yield slugs[shorter], name


def _check_servers(config: Config, source: ConfigSource) -> dict[str, str]:
    """Checks the servers; returns their names by slug."""
    seen: dict[str, str] = {}
    for index, entry in enumerate(config.mcp_servers):
        at: SettingPath = ("mcp_servers", index, "name")
        _check_name("server", entry.name, source.locate(at), seen)
        _check_env(entry, f"{source.locate(('mcp_servers', index, 'env'))}")
        _check_sandbox(entry, f"{source.locate(('mcp_servers', index, 'sandbox'))}")
        transport = entry.transport
        at = ("mcp_servers", index, "transport")
        if isinstance(transport, StdioTransport):
            if any("\0" in part for part in (transport.command, *transport.args)):
                raise ConfigError(
                    f'{source.locate(at)}: the command of server "{entry.name}" contains a '
                    "NUL character"
                )
            where = source.locate(("mcp_servers", index, "oauth"))
            _check_login(entry, False, f'server "{entry.name}"', where)
            if ".." in transport.command.replace("\\", "/").split("/"):
                raise ConfigError(
                    f"{source.locate((*at, 'command'))}: the command of server "
                    f'"{entry.name}" contains ".."; use the absolute path of the program'
                )
        else:
            what = f'server "{entry.name}"'
            _check_url(transport.url, what, source.locate((*at, "url")))
            _check_headers(transport.headers, f"{source.locate((*at, 'headers'))}: {what}")
            where = source.locate(("mcp_servers", index, "oauth"))
            _check_login(entry, _has_authorization(transport.headers), what, where)
    return seen


def _has_authorization(headers: dict[str, str] | list[str]) -> bool:
    return any(name.lower() == "authorization" for name, _ in parse_headers(headers))


def _check_login(
    entry: ServerEntry | ExternalAgent, has_token: bool, what: str, where: str
) -> None:
    """A fixed token and a login exclude each other; so do programs of this machine and logins."""
    is_program = isinstance(entry, ServerEntry) and isinstance(entry.transport, StdioTransport)
    if entry.oauth is None and entry.credentials == "shared":
        return
    if is_program:
        raise ConfigError(
            f"{where}: {what} is a program, which gets its credentials in env; remove oauth and "
            "credentials"
        )
    grant = entry.oauth.grant if entry.oauth is not None else "authorization_code"
    if entry.credentials == "user" and grant not in GRANTS_BY_PERSONS:
        raise ConfigError(
            f'{where}: {what} has grant = "{grant}", which is one login for all '
            'callers; remove credentials = "user"'
        )
    if has_token:
        raise ConfigError(
            f"{where}: {what} has a fixed Authorization header or token and a login (oauth, or "
            'credentials = "user"); remove one of them'
        )


def _check_sandbox(entry: ServerEntry, where: str) -> None:
    if entry.sandbox != "off" and not isinstance(entry.transport, StdioTransport):
        raise ConfigError(
            f'{where}: server "{entry.name}" is no program of this machine; remove sandbox'
        )
    if entry.sandbox == "strict" and entry.has_user_home:
        raise ConfigError(
            f'{where}: server "{entry.name}" has sandbox = "strict" and the home of the user; '
            'choose sandbox = "net" or home = "private"'
        )
    for path in entry.sandbox_paths:
        if not path.startswith(("/", "~/")) or "\0" in path:
            raise ConfigError(
                f'{where}: the sandbox_paths of server "{entry.name}" must be absolute, not '
                f'"{path[:80]}"'
            )


def _check_env(entry: ServerEntry, where: str) -> None:
    for variable in entry.env:
        name, given, reference = variable.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or (
            given and not is_reference(reference)
        ):
            raise ConfigError(
                f'{where}: "{name}" in the env of server "{entry.name}" must be the name of a '
                "variable only, or NAME=REFERENCE with env:, file:, keyring: or exec:; put its "
                "value into the environment or the env file"
            )


def _check_headers(headers: dict[str, str] | list[str], where: str) -> None:
    if isinstance(headers, list) and not all(":" in line for line in headers):
        raise ConfigError(f'{where}: each of headers must be "Name: value"')
    for header, value in parse_headers(headers):
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            raise ConfigError(
                f'{where}: invalid header name "{header}"; write {{ "Name" = "value" }}'
            )
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise ConfigError(
                f'{where}: the value of header "{header}" contains a control character'
            )


def _check_views(config: Config, source: ConfigSource) -> None:
    known: set[str] = set()
    for index, view in enumerate(config.views):
        at: SettingPath = ("views", index)
        if view.name in known:
            raise ConfigError(
                f'{source.locate((*at, "name"))}: there are two views "{view.name}"; give one of '
                "them another name"
            )
        known.add(view.name)
        twice = [name for name, count in Counter(view.rename.values()).items() if count > 1]
        if reserved := {"find_tools", "call_tool"} & set(view.rename.values()):
            raise ConfigError(
                f'{source.locate((*at, "rename"))}: the name "{min(reserved)}" is reserved for the '
                "search of views; choose another one"
            )
        if twice:
            raise ConfigError(
                f'{source.locate((*at, "rename"))}: two tools of view "{view.name}" would be '
                f'called "{twice[0]}"'
            )
    for client, name in config.mcp.views_for.items():
        check_view_name(name, config, source.locate(("mcp", "views_for", client)))


def check_view_name(name: str, config: Config, where: str) -> None:
    """Raises `ConfigError` unless the configuration has a view of that name."""
    names = [view.name for view in config.views]
    if name in names:
        return
    near = find_nearest(name, names)
    hint = f'did you mean "{near}"?' if near else f"known: {', '.join(names) or 'none'}"
    raise ConfigError(f'{where}: there is no view "{name[:100]}" in [[views]]; {hint}')


def _check_key(config: Config, source: ConfigSource) -> None:
    if config.api_key is not None and not is_reference(config.api_key):
        check_api_key(config.api_key, f"{source.locate(('api_key',))}: ")


def check_api_key(key: str, where: str = "") -> None:
    if len(key) < 16:
        raise ConfigError(
            f"{where}api_key is too short: it has less than 16 characters and could be guessed; "
            "create one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
        )


def _check_auth_server(config: Config, source: ConfigSource) -> None:
    """Passwords and tokens must not cross a network in the clear, and the issuer is the hub's URL
    without a path."""
    settings, server = config.auth.server, config.server
    if not settings.enabled:
        return
    url = server.public_url
    if url is None:
        if fold_host(server.host) not in LOOPBACK:
            raise ConfigError(
                f"{source.locate(('auth', 'server', 'enabled'))}: users sign in over https: set "
                '[server] public_url = "https://…" to the URL of the proxy in front of the hub'
            )
        return
    parts = urlsplit(url)
    where = source.locate(("server", "public_url"))
    if parts.scheme != "https" and (
        parts.scheme != "http" or fold_host(parts.hostname or "") not in LOOPBACK
    ):
        raise ConfigError(
            f"{where}: users of [auth.server] sign in over https: public_url must begin with "
            "https://, except on loopback"
        )
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            f"{where}: with [auth.server] public_url has a host and a port only, without a path"
        )


def fold_host(host: str) -> str:
    return host.strip("[]").lower()


def _check_shared(config: Config, source: ConfigSource) -> None:
    """Checks the settings of hubs that share a database, as far as they are not references."""
    url, cluster = config.store.url, config.cluster
    checks: list[tuple[SettingPath, Callable[[], object]]] = [
        (("cluster", "listen"), lambda: parse_listen(cluster.listen)),
        (("cluster", "advertise"), lambda: check_advertise(cluster.advertise)),
    ]
    if url is not None and not is_reference(url):
        checks.append((("store", "url"), lambda: check_database_url(url)))
    for at, check in checks:
        try:
            check()
        except ConfigError as error:
            raise ConfigError(f"{source.locate(at)}: {error}") from None


def holds_secrets(config: Config) -> bool:
    """Whether the file holds secrets itself, and not only references to them."""
    urls = config.store.url, config.redis.url
    found = [config.cluster.secret, *filter(_has_password, urls)]
    literal = any(one is not None and not is_reference(one) for one in found)
    return literal or config.api_key is not None


def _has_password(url: str | None) -> bool:
    return url is not None and re.search(r"://[^/]*:[^/]*@|password=", url) is not None


def _check_issuers(auth: AuthSettings, source: ConfigSource) -> None:
    """Checks the identity providers: tokens of two of them must never name the same user."""
    names: dict[str, str] = {}
    issuers: set[str] = set()
    listed: list[tuple[SettingPath, ClaimRules]] = [
        (("auth", "jwt", "issuers", index), rules) for index, rules in enumerate(auth.jwt.issuers)
    ]
    if auth.introspection is not None:
        listed.append((("auth", "introspection"), auth.introspection))
    for at, rules in listed:
        for key in ("issuer", "jwks_url", "url"):
            if (url := getattr(rules, key, None)) is not None:
                _check_issuer_url(url, rules.allow_private, key, source.locate((*at, key)))
        name = find_issuer_name(rules)
        where = source.locate((*at, "name"))
        if name in names or rules.issuer in issuers:
            raise ConfigError(
                f'{where}: two issuers are called "{name}", or are the same; give each a `name`'
            )
        names[name] = where
        issuers.add(rules.issuer)
        if (rules.org_claim is not None) != bool(rules.orgs):
            raise ConfigError(
                f"{source.locate((*at, 'org_claim'))}: org_claim needs orgs, the list of accepted "
                "orgs, and orgs needs org_claim: an issuer must not choose any org it likes"
            )
        orgs = rules.orgs.values() if isinstance(rules.orgs, dict) else rules.orgs
        if any("/" in org for org in orgs):
            raise ConfigError(
                f"{source.locate((*at, 'orgs'))}: the name of an org must not contain a slash"
            )
        if rules.owner_roles and rules.roles_claim is None:
            raise ConfigError(
                f"{source.locate((*at, 'owner_roles'))}: owner_roles needs roles_claim"
            )


def _check_issuer_url(url: str, allow_private: bool, key: str, where: str) -> None:
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and (is_local or allow_private)):
        raise ConfigError(
            f"{where}: {key} must begin with https://; http:// is accepted on this machine only, "
            "or with allow_private = true"
        )
    if not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ConfigError(f"{where}: {key} must be a URL without user, query and fragment")


# --- unknown keys, and their lines --------------------------------------------------------------


def _choose_struct(structs: list[type[Struct]], value: Any) -> type[Struct] | None:
    if len(structs) < 2:
        return structs[0] if structs else None
    tag = value.get("type") if isinstance(value, dict) else None
    return next((struct for struct in structs if struct.__struct_config__.tag == tag), None)


def _refuse_unknown(
    raw: Mapping[str, Any], struct: type[Struct], at: SettingPath, source: ConfigSource
) -> None:
    fields = list_fields(struct)
    tag_field = struct.__struct_config__.tag_field
    for key, value in raw.items():
        if key == tag_field:
            continue
        if key not in fields:
            known = [*fields, *([tag_field] if tag_field else [])]
            raise ConfigError(_render_unknown(key, known, at, source, fields))
        structs = find_structs(fields[key])
        items: list[tuple[Any, Any]] = [(None, value)]
        if isinstance(value, list):
            items = list(enumerate(value))
        elif isinstance(value, dict) and is_map(fields[key]):
            items = list(value.items())
        for index, item in items:
            inner = _choose_struct(structs, item)
            if inner is not None and isinstance(item, dict):
                place = (*at, key) if index is None else (*at, key, index)
                _refuse_unknown(item, inner, place, source)


def _render_unknown(
    key: str, known: list[str], at: SettingPath, source: ConfigSource, fields: Mapping[str, Any]
) -> str:
    near = find_nearest(key, known, cutoff=0.5)
    table = f"in {_render_table(at)}" if at else "at the top of the file"
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(sorted(known))}"
    hint = _hint_below(key, at, fields) or hint
    return f'{source.locate((*at, key))}: unknown key "{key}" {table}; {hint}'


def _hint_below(key: str, at: SettingPath, fields: Mapping[str, Any]) -> str:
    """Names the table below this one that has the key, or a similar one."""
    if not at:
        return ""
    below = {
        inner: _render_table((*(step for step in at if isinstance(step, str)), name))
        for name, hint in fields.items()
        for struct in find_structs(hint)
        for inner in list_fields(struct)
    }
    if key in below:
        return f'"{key}" belongs below {below[key]}'
    near = find_nearest(key, below, cutoff=0.8)
    return f'did you mean "{near}", which belongs below {below[near]}?' if near else ""


def _render_table(at: SettingPath) -> str:
    names = ".".join(str(step) for step in at if isinstance(step, str))
    return f"[[{names}]]" if at and isinstance(at[-1], int) else f"[{names}]"


def _explain(problem: str, source: ConfigSource) -> str:
    """Rewords an error of msgspec: `Expected `int`, got `str` - at `$.server.port``."""
    found = re.match(r"(.*?)(?: - at `\$(.*)`)?$", problem, re.DOTALL)
    words, path = (found.group(1), found.group(2) or "") if found else (problem, "")
    at: SettingPath = tuple(
        int(step[1:-1]) if step.startswith("[") else step.lstrip(".")
        for step in re.findall(r"\.[A-Za-z0-9_-]+|\[\d+\]", path)
    )
    missing = re.match(r"Object missing required field `(.*)`", words)
    if missing:
        if missing.group(1) == "type":
            return (
                f'{source.locate(at)}: {_render_table(at)} needs a "type": "stdio", "http" or "sse"'
            )
        return f'{source.locate(at)}: {_render_table(at)} needs a "{missing.group(1)}"'
    if words.startswith("Invalid value '") and at and at[-1] == "type":
        return f'{source.locate(at)}: type must be "stdio", "http" or "sse"'
    if at == ("mcp_servers",):
        return f"{source.locate(at)}: each server begins with [[mcp_servers]], in two brackets"
    key = ".".join(str(step) for step in at if isinstance(step, str))
    if words.startswith("Invalid enum value"):
        choices = ", ".join(f'"{choice}"' for choice in _list_choices(Config, at))
        return f'{source.locate(at)}: invalid value of "{key}": choose one of {choices}'
    return f'{source.locate(at)}: invalid value of "{key}": {_render_demand(words)}'


def _list_choices(struct: type[Struct], at: SettingPath) -> list[str]:
    """Lists the values that a setting may have."""
    for step in at:
        if isinstance(step, int):
            continue
        hint = list_fields(struct).get(step)
        inner = find_structs(hint)
        if not inner:
            return list(_list_literals(hint))
        struct = inner[0]
    return []


def _list_literals(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    for arg in get_args(hint):
        yield from _list_literals(arg)


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list in [ ]",
    "object": "a table",
}
_BOUNDS = {">": "greater than", ">=": "of at least", "<": "less than", "<=": "of at most"}


def _render_demand(words: str) -> str:
    """Rewords msgspec's demand on a value, such as `Expected `int` <= 65535`, in terms of TOML."""
    found = re.match(
        r"Expected `([^`]+)`( of length)?(?: ([<>]=?) (\S+))?(?:, got `(.+)`)?$", words
    )
    if not found:
        return f"{words[0].lower()}{words[1:]}".replace("`", "")
    types, length, sign, bound, got = found.groups()
    if length and (sign, bound) == (">=", "1"):
        return "it must not be empty"
    kinds = [_TYPES.get(one, one) for one in types.split(" | ") if one != "null"]
    must = f"it must be {' or '.join(kinds)}"
    if sign:
        bound = bound.removesuffix(".0")
        must += f" {_BOUNDS[sign]} {bound}" + (" characters" if length else "")
    return must + (f", not {_TYPES.get(got, got)}" if got else "")


_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)


def find_line(text: str, at: SettingPath) -> int | None:
    """Finds the line of `at`, or of the innermost table around it."""
    best: int | None = None
    depth = -1
    table: SettingPath = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        here: SettingPath | None = None
        if header := _HEADER.match(line):
            table = _parse_header(header.group(2), header.group(1) == "[[", counts)
            here = table
        elif key := _KEY.match(line):
            here = (*table, *_split_names(key.group(1)))
        if here is not None and here == at[: len(here)] and len(here) > depth:
            best, depth = number, len(here)
    return best


def _split_names(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _parse_header(dotted: str, is_array: bool, counts: dict[str, int]) -> SettingPath:
    path: list[Step] = []
    parts = _split_names(dotted)
    for position, part in enumerate(parts):
        path.append(part)
        key = ".".join(parts[: position + 1])
        if is_array and position == len(parts) - 1:
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            path.append(counts[key])
    return tuple(path)


# --- for the documentation ----------------------------------------------------------------------


def list_keys() -> list[tuple[str, str, str, str]]:
    """Lists every key with its type, default and description."""
    return list(list_settings(Config))


LIVE = (
    "mcp_servers",
    "auth.required_scopes",
    "auth.jwt",
    "auth.introspection",
    "mcp.stdio_expose",
    "mcp.names",
    "mcp.names_for",
    "mcp.tool_limits",
    "mcp.views_for",
    "secrets.cache_secs",
    "secrets.command_secs",
    "views",
    "limits.tool_timeout_secs",
    "limits.progress_timeout_secs",
    "limits.task_timeout_secs",
    "limits.result_chars",
    "limits.data_chars",
    "limits.kept_secs",
    "limits.kept_megabytes",
    "limits.calls_in_flight",
    "limits.overload_delay_secs",
    "limits.chain_calls",
    "limits.chain_secs",
    "limits.target_calls",
    "limits.loop",
    "limits.rate",
    "limits.budget",
    "prices",
    "taint",
    "approvals",
    "policy.mode",
    "policy.additions",
    "audit.keep_days",
    "audit.max_entries",
)
"""Settings whose change takes effect at once; all others need a restart."""


def is_live(path: str) -> bool:
    """Whether a change of this setting, written as in `list_keys`, takes effect at once."""
    return any(path == one or path.startswith((f"{one}.", f"{one}[")) for one in LIVE)


def find_frozen_changes(old: Config, new: Config) -> list[str]:
    """Lists the changed settings that need a restart, as `section.key`."""
    found = []
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after or is_live(name):
            continue
        if not isinstance(before, Struct):
            found.append(name)
            continue
        paths = [
            f"{name}.{key}"
            for key in before.__struct_fields__
            if getattr(before, key) != getattr(after, key)
        ]
        found += [path for path in paths if not is_live(path)]
    return found


# --- the env file beside it ---------------------------------------------------------------------


def load_variables(home: Path) -> dict[str, str]:
    """Returns the environment, and from the home's `env` file what is not in it."""
    try:
        data = (home / "env").read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise ConfigError(f"{home / 'env'} cannot be read: {error.strerror}") from None
    return {**read_env(data), **read_environment()}


def read_env(data: bytes | None) -> dict[str, str]:
    """Parses NAME=value lines. The value is everything after the first "=", verbatim."""
    try:
        text = (data or b"").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the env file in the home is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value for name, sign, value in pairs if sign and name.strip()}
