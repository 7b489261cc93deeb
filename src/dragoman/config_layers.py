"""The layers of the configuration: command line, environment, file. Knows no setting by name.

`DRAGOMAN_SERVER__PORT=8000` sets `[server] port`: two underscores separate the steps of a path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from dragoman.core.errors import ConfigError
from dragoman.core.nearest_names import find_nearest

Step = str | int
Path = tuple[Step, ...]

PREFIX = "DRAGOMAN_"
CREDENTIALS = "DRAGOMAN_AGENT_"
"""The prefix of variables with credentials of agents, which are not settings."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Override:
    """A setting from the command line."""

    path: Path
    value: Any
    option: str


@dataclass(slots=True)
class SettingOrigins:
    """The variables and options that set values; all others come from the file."""

    names: dict[Path, str] = field(default_factory=dict)

    def find(self, at: Path) -> str | None:
        """Finds the variable or option that set `at`, or something around it or below it."""
        for length in range(len(at), 0, -1):
            if at[:length] in self.names:
                return self.names[at[:length]]
        return next((name for path, name in self.names.items() if path[: len(at)] == at), None)


def merge_layers(
    raw: dict[str, Any], struct: type[Struct], environ: Mapping[str, str], given: Iterable[Override]
) -> SettingOrigins:
    """Merges the environment, then the command line, into the contents of the file."""
    origins = SettingOrigins()
    for name in sorted(list_variables(struct, environ), key=_sort_key):
        path, value = _read_variable(name, environ, struct, raw)
        _put(raw, path, value, f"environment variable {name}")
        origins.names[path] = f"environment variable {name}"
    for one in given:
        _put(raw, one.path, one.value, one.option)
        origins.names[one.path] = one.option
    return origins


def list_variables(struct: type[Struct], environ: Mapping[str, str]) -> list[str]:
    """Lists the variables that are settings. A name without a double underscore is one only if it
    is a top-level key."""
    tops = {
        PREFIX + name.upper()
        for name, hint in list_fields(struct).items()
        if not find_structs(hint) or is_list(hint)
    }
    ours = (name for name in environ if name.startswith(PREFIX))
    known = (name for name in ours if "__" in name or name in tops)
    return sorted(name for name in known if not name.startswith(CREDENTIALS))


def variable_from_path(path: str) -> str:
    """Returns the variable of a setting written as in `list_settings`; `N` stands for a number."""
    steps = []
    for part in path.split("."):
        name, listed, rest = part.partition("[]")
        steps.append(name.partition("(")[0])
        if listed:
            steps.append("n")
        assert not rest or rest.startswith("(")
    return PREFIX + "__".join(steps).upper()


def find_near_misses(struct: type[Struct], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Finds variables that are not settings but resemble one, each with the right name. Not an
    error: Kubernetes and Docker set `DRAGOMAN_SERVER_PORT` for a service called dragoman-server."""
    known = {variable_from_path(path) for path, *_ in list_settings(struct)}
    meant = {name.replace("__", "_"): name for name in sorted(known) if "__" in name}
    return [
        (name, meant[name])
        for name, value in sorted(environ.items())
        if name in meant and not value.startswith(("tcp://", "udp://"))
    ]


# --- variables ------------------------------------------------------------------------------------


def _sort_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts a list before its elements, and these by number."""
    steps = name.split("__")
    return [(0, int(step), "") if step.isdecimal() else (1, 0, step) for step in steps]


def _read_variable(
    name: str, environ: Mapping[str, str], struct: type[Struct], raw: dict[str, Any]
) -> tuple[Path, Any]:
    steps = name.removeprefix(PREFIX).split("__")
    path: list[Step] = []
    value: Any = raw
    hint: Any = struct
    for count, step in enumerate(steps, 1):
        structs, whole = find_structs(hint), PREFIX + "__".join(steps[: count - 1])
        if is_list(hint) and structs and not (path and isinstance(path[-1], int)):
            if not (step.isdecimal() and len(step) < 5):
                raise ConfigError(
                    f"environment variable {name}: {whole} is a list; write {whole}__0__…"
                )
            path.append(int(step))
            value = value[int(step)] if isinstance(value, list) and len(value) > int(step) else {}
            continue
        if not structs:
            raise ConfigError(
                f"environment variable {name}: {whole} is a single value, not a table"
            )
        tag = environ.get(PREFIX + "__".join([*steps[:-1], "TYPE"]))
        hint = _find_field(name, steps, count - 1, _choose_structs(structs, value, tag))
        path.append(step.lower())
        value = value.get(step.lower(), {}) if isinstance(value, dict) else {}
    if find_structs(hint) and not (is_list(hint) and not isinstance(path[-1], int)):
        raise ConfigError(f"environment variable {name} is a table; set {name}__… instead")
    return tuple(path), _parse_value(name, environ[name], hint)


def _choose_structs(structs: list[type[Struct]], value: Any, tag: str | None) -> list[type[Struct]]:
    """Returns the kind of table that the environment or the file names; without any, all."""
    if tag is None and isinstance(value, dict):
        tag = value.get("type")
    return [one for one in structs if one.__struct_config__.tag == tag] or structs


def _find_field(name: str, steps: list[str], at: int, structs: list[type[Struct]]) -> Any:
    known: dict[str, Any] = {}
    for struct in structs:
        known |= list_fields(struct)
        if tag_field := struct.__struct_config__.tag_field:
            known[tag_field] = str
    step = steps[at]
    if step.isupper() and step.lower() in known:
        return known[step.lower()]
    upper = [one.upper() for one in known]
    near = find_nearest(step.upper(), upper, cutoff=0.5)
    if near:
        hint = f"did you mean {PREFIX}{'__'.join([*steps[:at], near, *steps[at + 1 :]])}?"
    else:
        hint = f"known there: {', '.join(sorted(upper))}"
    raise ConfigError(f'environment variable {name}: unknown setting "{step.lower()}"; {hint}')


def _parse_value(name: str, text: str, hint: Any) -> Any:
    """Converts the text to the setting's type. Invalid text is kept: validation rejects it."""
    kinds = set(_list_kinds(hint))
    if kinds & {list, dict}:
        return _parse_container(name, text, kinds)
    if str in kinds:
        return text
    if bool in kinds:
        return _BOOLEANS.get(text.strip().lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text.strip())
            except ValueError:
                continue
    return text


def _parse_container(name: str, text: str, kinds: set[Any]) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(f"environment variable {name} is not valid JSON") from None
    if list in kinds and Struct not in kinds:
        return [part.strip() for part in text.split(",") if part.strip()]
    example = '[{"name": …}]' if list in kinds else '{"name": "value"}'
    raise ConfigError(f"environment variable {name} must be JSON such as {example}")


def _list_kinds(hint: Any) -> Iterator[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _list_kinds(get_args(hint)[0])
    elif origin is Literal:
        yield str
    elif origin in (list, dict):
        yield origin
        if find_structs(hint):
            yield Struct
    elif origin is not None:
        for arg in get_args(hint):
            yield from _list_kinds(arg)
    else:
        yield hint


def _put(raw: dict[str, Any], path: Path, value: Any, origin: str) -> None:
    """Sets a value. A number is the index of a list; the length of the list appends to it."""
    here: Any = raw
    for step, next_step in zip(path, [*path[1:], None], strict=True):
        empty: Any = value if next_step is None else [] if isinstance(next_step, int) else {}
        if isinstance(step, int):
            if not isinstance(here, list) or step > len(here):
                has = len(here) if isinstance(here, list) else 0
                raise ConfigError(f"{origin}: the list has {has} elements: the next index is {has}")
            if step == len(here):
                here.append(empty)
        elif not isinstance(here, dict):
            raise ConfigError(f"{origin}: the file has another value than a table around it")
        elif next_step is None or step not in here:
            here[step] = empty
        here = here[step]


# --- the tree of settings -------------------------------------------------------------------------


def find_structs(hint: Any) -> list[type[Struct]]:
    """Finds the struct types inside an annotation."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [struct for arg in get_args(hint) for struct in find_structs(arg)]


def list_fields(struct: type[Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def is_map(hint: Any) -> bool:
    """Whether a setting is a table whose keys are names that the user chooses."""
    return get_origin(_strip_annotation(hint)) is dict


def is_list(hint: Any) -> bool:
    return get_origin(_strip_annotation(hint)) is list


def list_settings(struct: type[Struct], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Lists every setting with its type, default and description."""
    hints = list_fields(struct)
    for one in msgspec.structs.fields(struct):
        hint = hints[one.name]
        inner = find_structs(hint)
        path = f"{prefix}{one.name}"
        if not inner:
            yield path, _render_type(hint), _render_default(one), _find_description(hint)
            continue
        listed = "[]" if is_list(hint) else ".NAME" if is_map(hint) else ""
        for choice in inner:
            tag = choice.__struct_config__.tag
            kind = f"({tag})" if isinstance(tag, str) else ""
            yield from list_settings(choice, f"{path}{listed}{kind}.")


def _strip_annotation(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _find_description(hint: Any) -> str:
    for arg in get_args(hint):
        if isinstance(arg, Meta) and arg.description:
            return arg.description
    return ""


def _render_type(hint: Any) -> str:
    bare = _strip_annotation(hint)
    text = bare.__name__ if isinstance(bare, type) and not get_args(bare) else str(bare)
    return text.replace("typing.", "").replace(" | None", "")


def _render_default(one: msgspec.structs.FieldInfo) -> str:
    if one.default_factory is not msgspec.NODEFAULT:
        return str(one.default_factory())
    if one.default is msgspec.NODEFAULT:
        return "required"
    return "none" if one.default is None else str(one.default)
