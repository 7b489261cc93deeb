"""Writes the pages of docs/ that are made from the code: errors, events, and the table of settings.

`python -m tests.generate_docs` writes them; tests/test_docs.py fails while one is not up to date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dragoman.core import errors, events
from dragoman.core.errors import HubError
from dragoman.tools.tool_spec import ToolSpec

DOCS = Path(__file__).parent.parent / "docs"
KEYS_START, KEYS_END = "<!-- keys -->", "<!-- /keys -->"


def _said(thing: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |" for row in lines
    )


# --- errors


def _tree(root: type[HubError], depth: int = 0) -> list[tuple[int, type[HubError]]]:
    found = [(depth, root)]
    for child in root.__subclasses__():
        if child.__module__ == root.__module__:  # as `errors.list_leaves`
            found += _tree(child, depth + 1)
    return found


def _seen_by_mcp(error: type[HubError]) -> str:
    from dragoman.mcp.protocol.errors import TABLE
    from dragoman.mcp.protocol.revisions import LATEST, NAMES, R2024, R2607

    row = errors.find_row(TABLE, error)
    codes = f"error {row.legacy}; {row.modern} from {NAMES[R2607]} on"
    if row.legacy == row.modern:
        codes = f"error {row.legacy}"
    if row.result_since > LATEST:
        return codes
    if row.result_since == R2024:
        return "a result with `isError`"
    return f"{codes}; a result with `isError` from {NAMES[row.result_since]} on"


def errors_page() -> str:
    from dragoman.cli.base.errors import TABLE as exit_codes
    from dragoman.web.errors import TABLE as statuses

    leaves = errors.list_leaves()
    rows = []
    for depth, error in _tree(HubError)[1:]:
        name = f"{'&nbsp;' * 4 * (depth - 1)}`{error.__name__}`"
        if error in leaves:
            seen = (
                _seen_by_mcp(error),
                *(str(errors.find_row(table, error)) for table in (statuses, exit_codes)),
            )
        else:
            seen = ("", "", "")
        rows.append((name, _said(error), *seen))
    return f"""# Errors

Every failure that the hub itself reports is one of these. With `TargetFailed`, something left the
hub and failed there; it may or may not have been done. With all others, nothing left.

{_table(("error", "what it means", "an MCP client gets", "HTTP status", "exit code"), rows)}

This page is made from the code by `make docs`.
"""


# --- events


def events_page() -> str:
    parts = []
    for event in vars(events).values():  # not `__subclasses__`: slots make each class twice
        if isinstance(event, type) and issubclass(event, events.Event) and event != events.Event:
            own = inspect.get_annotations(event)
            fields = [(f"`{name}`", f"`{kind}`") for name, kind in own.items()]
            table = _table(("field", "type"), fields)
            parts.append(f"## {event.__name__}\n\n{_said(event)}\n\n{table}\n")
    return f"""# Events

What the hub announces on its bus. Observers look, and a failing one affects no call; gates may
refuse, and one that fails refuses.

{chr(10).join(parts)}
This page is made from the code by `make docs`.
"""


# --- settings


def keys() -> list[tuple[str, str, str, str]]:
    """Every setting: dotted path, type, default, meaning."""
    from dragoman import config

    return config.list_keys()


def keys_table() -> str:
    from dragoman.config import is_live
    from dragoman.config_layers import variable_from_path

    toml = {"True": "true", "False": "false"}
    rows = [
        (
            f"`{path}`",
            f"`{kind}`",
            f"`{toml.get(default, default)}`",
            "yes" if is_live(path) else "",
            meaning,
            f"`{variable_from_path(path)}`",
        )
        for path, kind, default, meaning in keys()
    ]
    return _table(("key", "type", "default", "live", "meaning", "environment"), rows)


def configuration_page() -> str:
    """The page as it stands, with the table between its markers made anew."""
    file = DOCS / "configuration.md"
    if file.exists():
        page = file.read_text(encoding="utf-8")
    else:
        page = f"# Configuration\n\n{KEYS_START}\n{KEYS_END}\n"
    pattern = re.compile(f"{re.escape(KEYS_START)}.*?{re.escape(KEYS_END)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"docs/configuration.md needs {KEYS_START} and {KEYS_END}, once each")
    return pattern.sub(lambda _: f"{KEYS_START}\n{keys_table()}\n{KEYS_END}", page)


# --- manifests of agents

FIELDS_START, FIELDS_END = "<!-- fields -->", "<!-- /fields -->"
PROFILES_START, PROFILES_END = "<!-- profiles -->", "<!-- /profiles -->"


def fields_table() -> str:
    """Every field of a manifest that has a description; fallback models have those of `model`."""
    from dragoman.agents.manifest import Manifest
    from dragoman.config_layers import list_settings

    toml = {"True": "true", "False": "false", "": '""'}
    rows = []
    for path, kind, default, meaning in list_settings(Manifest):
        if not meaning or path.startswith("fallback_models[]."):
            continue
        if path == "name":
            default = "the folder"
        if bounded := re.match(r"Optional\[Annotated\[(\w+),", kind):
            kind = bounded[1]
        shown = kind.replace("Literal[", "").replace("]", "") if "Literal" in kind else kind
        rows.append((f"`{path}`", f"`{shown}`", f"`{toml.get(default, default)}`", meaning))
    same = "Models for when the first one cannot answer, in order; each has the fields of `model`."
    rows.insert(
        next(at for at, row in enumerate(rows) if row[0] == "`capabilities.tools`"),
        ("`fallback_models[]`", "`list`", "`[]`", same),
    )
    return _table(("field", "type", "default", "meaning"), rows)


def profiles_table() -> str:
    from dragoman.agents.manifest import PROFILES

    rows = [
        (f"`{name}`", ", ".join(f"`{tool}`" for tool in tools) or "none")
        for name, tools in PROFILES.items()
        if name
    ]
    return _table(("profile", "tools"), rows)


def agents_page() -> str:
    """The page as it stands, with its tables made anew."""
    page = (DOCS / "agents.md").read_text(encoding="utf-8")
    for start, end, table in (
        (FIELDS_START, FIELDS_END, fields_table()),
        (PROFILES_START, PROFILES_END, profiles_table()),
    ):
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"docs/agents.md needs {start} and {end}, once each")
        page = pattern.sub(f"{start}\n{table}\n{end}".replace("\\", r"\\"), page)
    return page


# --- built-in tools


def _render_argument(schema: Mapping[str, Any]) -> str:
    kinds = schema.get("type") or " or ".join(one["type"] for one in schema["anyOf"])
    return ", ".join(schema["enum"]) if "enum" in schema else str(kinds)


def _tool_part(spec: ToolSpec) -> str:
    facts = [
        ("reads only" if spec.read_only else "changes data" if spec.destructive else "adds data"),
        *(["exchanges data with other systems"] if spec.open_world else []),
        *([f"its results are labelled {', '.join(sorted(spec.sources))}"] if spec.sources else []),
        *([f"a sink of kind {', '.join(sorted(spec.sinks))}"] if spec.sinks else []),
    ]
    first, _, rest = spec.description.partition("\n")
    code = f"\n\n```text\n{rest}\n```" if rest else ""
    rows = [
        (
            f"`{name}`",
            _render_argument(schema),
            "yes" if name in spec.required else "",
            schema.get("description", ""),
        )
        for name, schema in spec.properties.items()
    ]
    table = f"\n\n{_table(('argument', 'type', 'required', 'meaning'), rows)}" if rows else ""
    names = ", ".join(f"`{name}`" for name in spec.fallback_names)
    return (
        f"### {spec.name}\n\n{first}{code}{table}\n\n"
        f"{'; '.join(facts).capitalize()}. Other names: {names}."
    )


def tools_page() -> str:
    from dragoman.tools.all_specs import FAMILIES, SPECS

    parts = []
    for family, specs in FAMILIES.items():
        parts.append("\n\n".join([f"## {family}", *map(_tool_part, specs)]))
    return f"""# Built-in tools

The hub has {len(SPECS)} tools of its own, for its agents. Their canonical names begin with
`builtin.`; they are listed as here. An agent has those that its manifest grants, and the grants
also say how far each reaches: `shell` for commands, `network` for hosts, `agents` for other agents,
`memory_read` and `memory_write` for keys. Nothing is granted by default. `[tools]` has the limits.

Other principals have none of them, and cannot tell them from unknown names, unless the operator
opens some with `[tools] clients` and a policy permits the call. `[tools.client_grants]` says how
far these reach for clients. See [configuration](configuration.md).

Files stay inside the workspace: a path is opened one folder at a time from the workspace's own
descriptor, no symbolic link is followed, and files are replaced in one step. Commands run as an
argument list that a pattern must match word by word; no shell reads them. `"*"`, `"git *"` and the
like are [any command in effect](agents.md#grants), inside the sandbox. Pages are fetched
through the guarded HTTP client, and each redirect is checked again; with the extra `web` they
become Markdown without menus, else plain text. [Taint labels](taint.md) go with what is stored in
files, memory, tasks and schedules, and come back with it.

A schedule keeps the principals for whom its agent has created it, with their roles and scopes. A
run has the rights of its agent, and never more than each of them had then or has now; if a key has
been revoked or has expired, the run is refused, which the audit log and the schedule record.

The other names are those of similar tools elsewhere; each can be called as long as no other tool
has that name, and is never listed.

{(chr(10) * 2).join(parts)}

This page is made from the code by `make docs`.
"""


# --- workflows


def workflow_schema() -> str:
    import json

    from dragoman.workflows.schema import build_schema

    return json.dumps(build_schema(), indent=2) + "\n"


PAGES = {
    "workflow.schema.json": workflow_schema,
    "agents.md": agents_page,
    "built-in-tools.md": tools_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "configuration.md": configuration_page,
}


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
