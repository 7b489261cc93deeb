"""The shape of `config.toml`, made of each package's part. What is wrong is said with its line."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from dragoman.a2a.config import HUB, PATHS, A2aSettings, BridgeSettings
from dragoman.a2a.config import RENAMED_WIRES as RENAMED_WIRES
from dragoman.agents.config import AgentEntry
from dragoman.config_layers import (
    Given,
    Origins,
    Step,
    fields_of,
    list_settings,
    merge_layers,
    structs_in,
)
from dragoman.core.errors import ConfigError
from dragoman.core.tool_identity import fold_server_name
from dragoman.core.urls import render_arguments, render_origin
from dragoman.guards.config import BusSettings, Limits
from dragoman.mcp.config import (
    RENAMED_STYLES,
    McpSettings,
    ServerEntry,
)
from dragoman.mcp.config import StdioTransport as StdioTransport
from dragoman.mcp.config import parse_headers as parse_headers
from dragoman.policy.config import PolicySettings
from dragoman.stores.config import AuditSettings
from dragoman.web.config import ServerSettings

RESERVED = PATHS | {HUB}
"""What no agent can be called."""
TAKEN_PATHS = frozenset({"/mcp", "/sse", "/messages", "/api", "/metrics", "/healthz", "/readyz"})

Path_ = tuple[Step, ...]

RENAMED_VALUES: Sequence[tuple[tuple[str, ...], Mapping[str, str]]] = (
    (("mcp", "names"), RENAMED_STYLES),
    (("mcp", "names_for", "*"), RENAMED_STYLES),
    (("a2a", "external_agents", "*", "wire"), RENAMED_WIRES),
)
"""Settings with former values and their replacements; `*` stands for every entry."""


class LogSettings(Struct, frozen=True, kw_only=True):
    format: Annotated[
        Literal["text", "json"],
        Meta(description="How a record is written: a line of text, or a line of JSON."),
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least that is written; calls are information."),
    ] = "info"
    megabytes: Annotated[
        float,
        Meta(gt=0, le=100_000, description="Megabytes of hub.log after which a new one begins."),
    ] = 10
    files: Annotated[
        int,
        Meta(ge=1, le=1_000, description="Older files kept: hub.log.1 is the newest of them."),
    ] = 5


class Config(Struct, frozen=True, kw_only=True):
    api_key: Annotated[
        str | None,
        Meta(description="The key every caller must show; without one, loopback only."),
    ] = None
    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()
    mcp: McpSettings = McpSettings()
    limits: Limits = Limits()
    audit: AuditSettings = AuditSettings()
    mcp_servers: list[ServerEntry] = []
    a2a: A2aSettings = A2aSettings()
    bridge: BridgeSettings = BridgeSettings()
    policy: PolicySettings = PolicySettings()
    bus: BusSettings = BusSettings()
    agents: list[AgentEntry] = []


class Source:
    """The texts that a configuration was read from."""

    def __init__(self, text: str, name: str, raw: Mapping[str, Any], origins: Origins) -> None:
        """`raw` is all layers together."""
        self._text = text
        self._name = name
        self._raw = raw
        self._origins = origins
        self.warnings: list[str] = []
        """What still works and should be changed."""

    def where(self, at: Path_) -> str:
        """The variable or option that sets `at`, or the file and the line."""
        if origin := self._origins.find(at):
            return origin
        line = line_of(self._text, at)
        return f"{self._name}, line {line}" if line else self._name

    def origin(self, at: Path_) -> str:
        """Where the value at `at` comes from, "default" included."""
        here: Any = self._raw
        for step in at:
            try:
                here = here[step]
            except (KeyError, IndexError, TypeError):
                return "default"
        return self.where(at)


def load(file: Path, given: Sequence[Given] = ()) -> Config:
    """What the command line, the environment and the file say, in this order; defaults for the
    rest. There need not be a file."""
    return load_with_source(file, given)[0]


def load_with_source(file: Path, given: Sequence[Given] = ()) -> tuple[Config, Source]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    return _parse(text, str(file), os.environ, given)


def parse(text: str, name: str = "config.toml") -> Config:
    """What the text alone says."""
    return _parse(text, name, {}, ())[0]


def _parse(
    text: str, name: str, environ: Mapping[str, str], given: Sequence[Given]
) -> tuple[Config, Source]:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
    source = Source(text, name, raw, merge_layers(raw, Config, environ, given))
    for path, renamed in RENAMED_VALUES:
        _replace_renamed(raw, path, (), renamed, source)
    _refuse_unknown(raw, Config, (), source)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw, source)) from None
    _check_servers(config, source)
    _check_agents(config, source)
    _check_prefixes(config, source)
    _check_key(config, source)
    return config, source


def _replace_renamed(
    holder: Any, path: tuple[str, ...], at: Path_, renamed: Mapping[str, str], source: Source
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
                f'{source.where(here)}: the value "{value}" is now called "{renamed[value]}"; '
                "the old name still works, but please change it"
            )


def whereabouts(entry: ServerEntry) -> str:
    """How a server is reached, in one line and without secrets."""
    transport = entry.transport
    if isinstance(transport, StdioTransport):
        return " ".join([transport.command, *render_arguments(transport.args)])
    return render_origin(transport.url)


# --- what the shapes cannot say -----------------------------------------------------------------


def _check_name(kind: str, called: str, where: str, seen: dict[str, str], more: str = "") -> None:
    """Servers and agents are called in one namespace; `more` are further characters of a name."""
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9 _{re.escape(more)}-]*", called):
        also = "".join(f' "{letter}",' for letter in more)
        raise ConfigError(
            f'{where}: {kind} name "{called}" may hold letters, digits, '
            f'spaces,{also} "-" and "_" only, and begins with a letter or digit'
        )
    key = slug_from_name(called)
    if key in seen:
        raise ConfigError(
            f'{where}: {kind} "{called}" has the name of "{seen[key]}" '
            '(case, "-" and "_" make no difference); give it another name'
        )
    seen[key] = called


def _check_agents(config: Config, source: Source) -> None:
    seen: dict[str, str] = {}
    for server in config.mcp_servers:
        _check_name("server", server.name, source.where(("mcp_servers",)), seen)
    for index, agent in enumerate(config.agents):
        where = source.where(("agents", index, "name"))
        _check_name("agent", agent.name, where, seen)
        if agent.name in RESERVED:
            raise ConfigError(_reserved(where, agent.name))
    a2a = config.a2a
    for index, far in enumerate(a2a.external_agents):
        at: Path_ = ("a2a", "external_agents", index)
        where = source.where((*at, "name"))
        _check_name("agent", far.name, where, seen, "()")
        if far.name in RESERVED:
            raise ConfigError(_reserved(where, far.name))
        if not re.match(r"https?://[^/]", far.url):
            raise ConfigError(
                f'{source.where((*at, "url"))}: the url of agent "{far.name}" must begin '
                f'with http:// or https://, not "{render_origin(far.url)}"'
            )
        _check_headers(far.headers, f'{source.where((*at, "headers"))}: agent "{far.name}"')
    if not re.fullmatch(r"(/[A-Za-z0-9_.~-]+)+", a2a.listen_path) or a2a.listen_path in TAKEN_PATHS:
        raise ConfigError(
            f"{source.where(('a2a', 'listen_path'))}: listen_path must be a path of its own "
            f'such as "/a2a", not "{a2a.listen_path[:60]}"'
        )
    known = [agent.name for agent in config.agents]
    known += [far.name for far in a2a.external_agents]
    if a2a.default_agent is not None and a2a.default_agent not in known:
        raise ConfigError(
            f"{source.where(('a2a', 'default_agent'))}: there is no agent "
            f'"{a2a.default_agent}"; known: {", ".join(known) or "none"}'
        )


def _check_prefixes(config: Config, source: Source) -> None:
    """Refuses two targets whose tools would be listed under the same prefix in some style."""
    seen: dict[str, tuple[str, str | None]] = {}
    for path, called, prefix in _listed_targets(config):
        base = slug_from_name(called if prefix is None else prefix)
        styles = {f"{base}_", f"mcp_{base}_" if path[0] == "mcp_servers" else f"a2a_{base}_"}
        for listed in sorted(styles) if base else ():
            other, chosen = seen.setdefault(listed, (called, prefix))
            # A prefix that both were given is meant.
            if other != called and (prefix is None or prefix != chosen):
                raise ConfigError(
                    f'{source.where(path)}: tools of "{called}" and of "{other}" would both '
                    f'be listed as "{listed}…"; rename one of the two, or give it another prefix'
                )


def _listed_targets(config: Config) -> Iterator[tuple[Path_, str, str | None]]:
    for index, server in enumerate(config.mcp_servers):
        yield ("mcp_servers", index, "name"), server.name, server.prefix
    for index, agent in enumerate(config.a2a.external_agents):
        yield ("a2a", "external_agents", index, "name"), agent.name, None


def slug_from_name(name: str) -> str:
    """A name as lists have it: lower case, `_` for everything but letters and digits."""
    return re.sub("[^a-z0-9]+", "_", fold_server_name(name)).strip("_")


def find_overlaps(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of targets of which the first could list a tool as the second lists its own."""
    slugs = {slug_from_name(name): name for name in names}
    for one, name in slugs.items():
        parts = one.split("_")
        for length in range(1, len(parts)):
            if (shorter := "_".join(parts[:length])) in slugs:
                yield slugs[shorter], name


def _reserved(where: str, called: str) -> str:
    return (
        f'{where}: an agent cannot be called "{called}", which means something else in its '
        "address; give it another name"
    )


def _check_servers(config: Config, source: Source) -> None:
    seen: dict[str, str] = {}
    for index, entry in enumerate(config.mcp_servers):
        at: Path_ = ("mcp_servers", index, "name")
        _check_name("server", entry.name, source.where(at), seen)
        _check_env(entry, f"{source.where(('mcp_servers', index, 'env'))}")
        transport = entry.transport
        at = ("mcp_servers", index, "transport")
        if isinstance(transport, StdioTransport):
            if any("\0" in part for part in (transport.command, *transport.args)):
                raise ConfigError(
                    f'{source.where(at)}: the command of server "{entry.name}" has a NUL '
                    "character in it, which no program can be given"
                )
            if ".." in transport.command.replace("\\", "/").split("/"):
                raise ConfigError(
                    f"{source.where((*at, 'command'))}: the command of server "
                    f'"{entry.name}" has ".." in it; give the program\'s real path'
                )
        else:
            if not re.match(r"https?://[^/]", transport.url):
                raise ConfigError(
                    f'{source.where((*at, "url"))}: the url of server "{entry.name}" must '
                    f'begin with http:// or https://, not "{render_origin(transport.url)}"'
                )
            _check_headers(
                transport.headers, f'{source.where((*at, "headers"))}: server "{entry.name}"'
            )


def _check_env(entry: ServerEntry, where: str) -> None:
    for variable in entry.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise ConfigError(
                f'{where}: "{variable.partition("=")[0]}" in the env of server "{entry.name}" must '
                "be the name of a variable and nothing else; its value belongs into the "
                "environment or the env file"
            )


def _check_headers(headers: dict[str, str] | list[str], where: str) -> None:
    if isinstance(headers, list) and not all(":" in line for line in headers):
        raise ConfigError(f'{where}: each of headers must be "Name: value"')
    for header, value in parse_headers(headers):
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            raise ConfigError(
                f'{where}: "{header}" is no header name; write {{ "Name" = "value" }}'
            )
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise ConfigError(f'{where}: the value of header "{header}" has a control character')


def _check_key(config: Config, source: Source) -> None:
    if config.api_key is not None and len(config.api_key) < 16:
        raise ConfigError(
            f"{source.where(('api_key',))}: api_key is shorter than 16 characters and could "
            "be guessed; make one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
        )


# --- unknown keys, and where things stand -------------------------------------------------------


def _choose(structs: list[type[Struct]], value: Any) -> type[Struct] | None:
    if len(structs) < 2:
        return structs[0] if structs else None
    tag = value.get("type") if isinstance(value, dict) else None
    return next((struct for struct in structs if struct.__struct_config__.tag == tag), None)


def _refuse_unknown(
    raw: Mapping[str, Any], struct: type[Struct], at: Path_, source: Source
) -> None:
    fields = fields_of(struct)
    tag_field = struct.__struct_config__.tag_field
    for key, value in raw.items():
        if key == tag_field:
            continue
        if key not in fields:
            known = [*fields, *([tag_field] if tag_field else [])]
            raise ConfigError(_unknown(key, known, at, source, fields))
        structs = structs_in(fields[key])
        items = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            inner = _choose(structs, item)
            if inner is not None and isinstance(item, dict):
                place = (*at, key) if index is None else (*at, key, index)
                _refuse_unknown(item, inner, place, source)


def _unknown(
    key: str, known: list[str], at: Path_, source: Source, fields: Mapping[str, Any]
) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    table = f"in {_table(at)}" if at else "at the top of the file"
    hint = f'did you mean "{near[0]}"?' if near else f"known here: {', '.join(sorted(known))}"
    hint = _hint_below(key, at, fields) or hint
    return f'{source.where((*at, key))}: unknown key "{key}" {table}; {hint}'


def _hint_below(key: str, at: Path_, fields: Mapping[str, Any]) -> str:
    """Where a key belongs, or one that is nearly so called, if that is a table below this one."""
    if not at:
        return ""
    below = {
        inner: _table((*(step for step in at if isinstance(step, str)), name))
        for name, hint in fields.items()
        for struct in structs_in(hint)
        for inner in fields_of(struct)
    }
    if key in below:
        return f'"{key}" belongs below {below[key]}'
    near = difflib.get_close_matches(key, below, n=1, cutoff=0.8)
    return f'did you mean "{near[0]}", which belongs below {below[near[0]]}?' if near else ""


def _table(at: Path_) -> str:
    names = ".".join(str(step) for step in at if isinstance(step, str))
    return f"[[{names}]]" if at and isinstance(at[-1], int) else f"[{names}]"


def _explain(problem: str, raw: Any, source: Source) -> str:
    """msgspec's words in ours: `Expected `int`, got `str` - at `$.server.port``."""
    found = re.match(r"(.*?)(?: - at `\$(.*)`)?$", problem, re.DOTALL)
    words, path = (found.group(1), found.group(2) or "") if found else (problem, "")
    at: Path_ = tuple(
        int(step[1:-1]) if step.startswith("[") else step.lstrip(".")
        for step in re.findall(r"\.[A-Za-z0-9_-]+|\[\d+\]", path)
    )
    at = tuple(step for step in at if step != "")
    missing = re.match(r"Object missing required field `(.*)`", words)
    if missing:
        if missing.group(1) == "type":
            return f'{source.where(at)}: {_table(at)} needs a "type": "stdio", "http" or "sse"'
        return f'{source.where(at)}: {_table(at)} needs a "{missing.group(1)}"'
    if words.startswith("Invalid value '") and at and at[-1] == "type":
        return f'{source.where(at)}: type must be "stdio", "http" or "sse"'
    if at == ("mcp_servers",):
        return f"{source.where(at)}: each server begins with [[mcp_servers]], in two brackets"
    key = ".".join(str(step) for step in at if isinstance(step, str))
    if words.startswith("Invalid enum value"):
        choices = ", ".join(f'"{choice}"' for choice in _choices(Config, at))
        return f'{source.where(at)}: "{key}" is not right: choose one of {choices}'
    return f'{source.where(at)}: "{key}" is not right: {_demand(words)}'


def _choices(struct: type[Struct], at: Path_) -> list[str]:
    """What may stand there."""
    for step in at:
        if isinstance(step, int):
            continue
        hint = fields_of(struct).get(step)
        inner = structs_in(hint)
        if not inner:
            return list(_literals(hint))
        struct = inner[0]
    return []


def _literals(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    for arg in get_args(hint):
        yield from _literals(arg)


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list in [ ]",
    "object": "a table",
}
_BOUNDS = {">": "greater than", ">=": "of at least", "<": "less than", "<=": "of at most"}


def _demand(words: str) -> str:
    """What a value must be: `Expected `int` <= 65535` and its like, for those who write TOML."""
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


def line_of(text: str, at: Path_) -> int | None:
    """The line where `at` stands, or where the innermost table around it begins."""
    best: int | None = None
    depth = -1
    table: Path_ = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        here: Path_ | None = None
        if header := _HEADER.match(line):
            table = _header_path(header.group(2), header.group(1) == "[[", counts)
            here = table
        elif key := _KEY.match(line):
            here = (*table, *_names(key.group(1)))
        if here is not None and here == at[: len(here)] and len(here) > depth:
            best, depth = number, len(here)
    return best


def _names(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _header_path(dotted: str, is_array: bool, counts: dict[str, int]) -> Path_:
    path: list[Step] = []
    parts = _names(dotted)
    for position, part in enumerate(parts):
        path.append(part)
        key = ".".join(parts[: position + 1])
        if is_array and position == len(parts) - 1:
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            path.append(counts[key])
    return tuple(path)


# --- for the documentation ----------------------------------------------------------------------


def keys() -> list[tuple[str, str, str, str]]:
    """Every key with its type, default and meaning."""
    return list(list_settings(Config))


LIVE = (
    "mcp_servers",
    "mcp.stdio_expose",
    "mcp.names",
    "mcp.names_for",
    "limits.tool_timeout_secs",
    "limits.progress_timeout_secs",
    "limits.task_timeout_secs",
    "limits.result_chars",
    "limits.data_chars",
    "limits.kept_secs",
    "limits.kept_megabytes",
    "limits.calls_in_flight",
    "limits.chain_calls",
    "limits.chain_secs",
    "limits.target_calls",
    "policy.mode",
    "policy.additions",
    "audit.keep_days",
    "audit.max_entries",
)
"""What a running hub uses at once when it changes; all else from the next start on."""


def is_live(path: str) -> bool:
    """Whether a running hub takes up a change of this setting, written as in `keys`."""
    return any(path == one or path.startswith((f"{one}.", f"{one}[")) for one in LIVE)


def find_frozen_changes(old: Config, new: Config) -> list[str]:
    """The settings that differ and are used from the next start on: `section.key`."""
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


def read_env(data: bytes | None) -> dict[str, str]:
    """NAME=value lines; everything after the first "=" is the value, as it stands."""
    try:
        text = (data or b"").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the env file in the home is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value for name, sign, value in pairs if sign and name.strip()}
