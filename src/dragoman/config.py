"""The shape of `config.toml`, made of each package's part. What is wrong is said with its line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from dragoman.a2a.config import HUB, PATHS, A2aSettings, BridgeSettings
from dragoman.agents.config import AgentEntry
from dragoman.core.errors import ConfigError
from dragoman.core.urls import render_arguments, render_origin
from dragoman.guards.config import BusSettings, Limits
from dragoman.mcp.config import (
    McpSettings,
    ServerEntry,
    StdioTransport,
    header_pairs,
    namespace,
)
from dragoman.policy.config import PolicySettings
from dragoman.stores.config import AuditSettings
from dragoman.web.config import ServerSettings

RESERVED = PATHS | {HUB}
"""What no agent can be called."""
TAKEN_PATHS = frozenset({"/mcp", "/sse", "/messages", "/api", "/metrics", "/healthz", "/readyz"})

Step = str | int
Path_ = tuple[Step, ...]


class Config(Struct, frozen=True, kw_only=True):
    api_key: Annotated[
        str | None,
        Meta(description="The key every caller must show; without one, loopback only."),
    ] = None
    server: ServerSettings = ServerSettings()
    mcp: McpSettings = McpSettings()
    limits: Limits = Limits()
    audit: AuditSettings = AuditSettings()
    mcp_servers: list[ServerEntry] = []
    a2a: A2aSettings = A2aSettings()
    bridge: BridgeSettings = BridgeSettings()
    policy: PolicySettings = PolicySettings()
    bus: BusSettings = BusSettings()
    agents: list[AgentEntry] = []


def load(file: Path) -> Config:
    """What the file says; all defaults where there is no file."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    return parse(text, str(file))


def parse(text: str, name: str = "config.toml") -> Config:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
    _refuse_unknown(raw, Config, (), text, name)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw, text, name)) from None
    _check_servers(config, text, name)
    _check_agents(config, text, name)
    _check_prefixes(config, text, name)
    _check_key(config, text, name)
    return config


def with_port(config: Config, port: int) -> Config:
    server = msgspec.structs.replace(config.server, port=port)
    return msgspec.structs.replace(config, server=server)


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
    key = slug(called)
    if key in seen:
        raise ConfigError(
            f'{where}: {kind} "{called}" has the name of "{seen[key]}" '
            '(case, "-" and "_" make no difference); give it another name'
        )
    seen[key] = called


def _check_agents(config: Config, text: str, name: str) -> None:
    seen: dict[str, str] = {}
    for server in config.mcp_servers:
        _check_name("server", server.name, name, seen)
    for index, agent in enumerate(config.agents):
        where = _where(text, ("agents", index, "name"), name)
        _check_name("agent", agent.name, where, seen)
        if agent.name in RESERVED:
            raise ConfigError(_reserved(where, agent.name))
    a2a = config.a2a
    for index, far in enumerate(a2a.external_agents):
        at: Path_ = ("a2a", "external_agents", index)
        where = _where(text, (*at, "name"), name)
        _check_name("agent", far.name, where, seen, "()")
        if far.name in RESERVED:
            raise ConfigError(_reserved(where, far.name))
        if not re.match(r"https?://[^/]", far.url):
            raise ConfigError(
                f'{_where(text, (*at, "url"), name)}: the url of agent "{far.name}" must begin '
                f'with http:// or https://, not "{render_origin(far.url)}"'
            )
        _check_headers(far.headers, f'{_where(text, (*at, "headers"), name)}: agent "{far.name}"')
    if not re.fullmatch(r"(/[A-Za-z0-9_.~-]+)+", a2a.listen_path) or a2a.listen_path in TAKEN_PATHS:
        raise ConfigError(
            f"{_where(text, ('a2a', 'listen_path'), name)}: listen_path must be a path of its own "
            f'such as "/a2a", not "{a2a.listen_path[:60]}"'
        )
    known = [agent.name for agent in config.agents]
    known += [far.name for far in a2a.external_agents]
    if a2a.default_agent is not None and a2a.default_agent not in known:
        raise ConfigError(
            f"{_where(text, ('a2a', 'default_agent'), name)}: there is no agent "
            f'"{a2a.default_agent}"; known: {", ".join(known) or "none"}'
        )


def _check_prefixes(config: Config, text: str, name: str) -> None:
    """Refuses two targets whose tools would be listed under the same prefix in some style."""
    seen: dict[str, tuple[str, str | None]] = {}
    for path, called, prefix in _listed_targets(config):
        base = slug(called if prefix is None else prefix)
        styles = {f"{base}_", f"mcp_{base}_" if path[0] == "mcp_servers" else f"a2a_{base}_"}
        for listed in sorted(styles) if base else ():
            other, chosen = seen.setdefault(listed, (called, prefix))
            # A prefix that both were given is meant.
            if other != called and (prefix is None or prefix != chosen):
                raise ConfigError(
                    f'{_where(text, path, name)}: tools of "{called}" and of "{other}" would both '
                    f'be listed as "{listed}…"; rename one of the two, or give it another prefix'
                )


def _listed_targets(config: Config) -> Iterator[tuple[Path_, str, str | None]]:
    for index, server in enumerate(config.mcp_servers):
        yield ("mcp_servers", index, "name"), server.name, server.prefix
    for index, agent in enumerate(config.a2a.external_agents):
        yield ("a2a", "external_agents", index, "name"), agent.name, None


def slug(name: str) -> str:
    """A name as lists have it: lower case, `_` for everything but letters and digits."""
    return re.sub("[^a-z0-9]+", "_", namespace(name)).strip("_")


def find_overlaps(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of targets of which the first could list a tool as the second lists its own."""
    slugs = {slug(name): name for name in names}
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


def _check_servers(config: Config, text: str, name: str) -> None:
    seen: dict[str, str] = {}
    for index, entry in enumerate(config.mcp_servers):
        at: Path_ = ("mcp_servers", index, "name")
        _check_name("server", entry.name, _where(text, at, name), seen)
        _check_env(entry, f"{_where(text, ('mcp_servers', index, 'env'), name)}")
        transport = entry.transport
        at = ("mcp_servers", index, "transport")
        if isinstance(transport, StdioTransport):
            if any("\0" in part for part in (transport.command, *transport.args)):
                raise ConfigError(
                    f'{_where(text, at, name)}: the command of server "{entry.name}" has a NUL '
                    "character in it, which no program can be given"
                )
            if ".." in transport.command.replace("\\", "/").split("/"):
                raise ConfigError(
                    f"{_where(text, (*at, 'command'), name)}: the command of server "
                    f'"{entry.name}" has ".." in it; give the program\'s real path'
                )
        else:
            if not re.match(r"https?://[^/]", transport.url):
                raise ConfigError(
                    f'{_where(text, (*at, "url"), name)}: the url of server "{entry.name}" must '
                    f'begin with http:// or https://, not "{render_origin(transport.url)}"'
                )
            _check_headers(
                transport.headers, f'{_where(text, (*at, "headers"), name)}: server "{entry.name}"'
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
    for header, value in header_pairs(headers):
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            raise ConfigError(
                f'{where}: "{header}" is no header name; write {{ "Name" = "value" }}'
            )
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise ConfigError(f'{where}: the value of header "{header}" has a control character')


def _check_key(config: Config, text: str, name: str) -> None:
    if config.api_key is not None and len(config.api_key) < 16:
        raise ConfigError(
            f"{_where(text, ('api_key',), name)}: api_key is shorter than 16 characters and could "
            "be guessed; make one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
        )


# --- unknown keys, and where things stand -------------------------------------------------------


def _structs(hint: Any) -> list[type[Struct]]:
    """The struct types inside an annotation."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [struct for arg in get_args(hint) for struct in _structs(arg)]


def _fields(struct: type[Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _choose(structs: list[type[Struct]], value: Any) -> type[Struct] | None:
    if len(structs) < 2:
        return structs[0] if structs else None
    tag = value.get("type") if isinstance(value, dict) else None
    return next((struct for struct in structs if struct.__struct_config__.tag == tag), None)


def _refuse_unknown(
    raw: Mapping[str, Any], struct: type[Struct], at: Path_, text: str, name: str
) -> None:
    fields = _fields(struct)
    tag_field = struct.__struct_config__.tag_field
    for key, value in raw.items():
        if key == tag_field:
            continue
        if key not in fields:
            known = [*fields, *([tag_field] if tag_field else [])]
            raise ConfigError(_unknown(key, known, at, text, name))
        structs = _structs(fields[key])
        items = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            inner = _choose(structs, item)
            if inner is not None and isinstance(item, dict):
                place = (*at, key) if index is None else (*at, key, index)
                _refuse_unknown(item, inner, place, text, name)


def _unknown(key: str, known: list[str], at: Path_, text: str, name: str) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    table = f"in {_table(at)}" if at else "at the top of the file"
    hint = f'did you mean "{near[0]}"?' if near else f"known here: {', '.join(sorted(known))}"
    return f'{_where(text, (*at, key), name)}: unknown key "{key}" {table}; {hint}'


def _table(at: Path_) -> str:
    names = ".".join(str(step) for step in at if isinstance(step, str))
    return f"[[{names}]]" if at and isinstance(at[-1], int) else f"[{names}]"


def _explain(problem: str, raw: Any, text: str, name: str) -> str:
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
            return (
                f'{_where(text, at, name)}: {_table(at)} needs a "type": "stdio", "http" or "sse"'
            )
        return f'{_where(text, at, name)}: {_table(at)} needs a "{missing.group(1)}"'
    if words.startswith("Invalid value '") and at and at[-1] == "type":
        return f'{_where(text, at, name)}: type must be "stdio", "http" or "sse"'
    if at == ("mcp_servers",):
        return f"{_where(text, at, name)}: each server begins with [[mcp_servers]], in two brackets"
    key = ".".join(str(step) for step in at if isinstance(step, str))
    if words.startswith("Invalid enum value"):
        choices = ", ".join(f'"{choice}"' for choice in _choices(Config, at))
        return f'{_where(text, at, name)}: "{key}" is not right: choose one of {choices}'
    return f'{_where(text, at, name)}: "{key}" is not right: {_demand(words)}'


def _choices(struct: type[Struct], at: Path_) -> list[str]:
    """What may stand there."""
    for step in at:
        if isinstance(step, int):
            continue
        hint = _fields(struct).get(step)
        inner = _structs(hint)
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


def _where(text: str, at: Path_, name: str) -> str:
    line = line_of(text, at)
    return f"{name}, line {line}" if line else name


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
    return list(_keys(Config, ""))


def _keys(struct: type[Struct], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    hints = _fields(struct)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        inner = _structs(hint)
        path = f"{prefix}{field.name}"
        if not inner:
            yield path, _type_name(hint), _default(field), _meaning(hint)
            continue
        listed = "[]" if get_origin(_bare(hint)) is list else ""
        for choice in inner:
            tag = choice.__struct_config__.tag
            kind = f"({tag})" if isinstance(tag, str) else ""
            yield from _keys(choice, f"{path}{listed}{kind}.")


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _meaning(hint: Any) -> str:
    for arg in get_args(hint):
        if isinstance(arg, Meta) and arg.description:
            return arg.description
    return ""


def _type_name(hint: Any) -> str:
    bare = _bare(hint)
    text = bare.__name__ if isinstance(bare, type) and not get_args(bare) else str(bare)
    return text.replace("typing.", "").replace(" | None", "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return str(field.default_factory())
    if field.default is msgspec.NODEFAULT:
        return "required"
    return "none" if field.default is None else str(field.default)


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
