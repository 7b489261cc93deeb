"""How a server is shown: its state, its entry, what it offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.cli.base.output import clean, print_table

_COUNTED = (
    ("tools_count", "tool"),
    ("prompts_count", "prompt"),
    ("resources_count", "resource"),
    ("templates_count", "resource template"),
)


def describe_offers(state: Mapping[str, Any]) -> str:
    counts = [(state.get(key, 0), noun) for key, noun in _COUNTED]
    return ", ".join(
        f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count or noun == "tool"
    )


def describe_revision(state: Mapping[str, Any]) -> str:
    return str(state.get("protocol_version") or state.get("era") or "-")


def print_connected(state: Mapping[str, Any]) -> None:
    print(
        f'server "{clean(state["name"])}" is connected: {describe_revision(state)}, '
        f"{describe_offers(state)}"
    )
    _print_remarks(state)
    if state.get("tools"):
        print_table(["NAME", "DESCRIPTION"], _build_tool_rows(state))


def print_server(entry: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """One server whole: how it is reached, how it is, what it offers."""
    transport = dict(entry.get("transport", {}))
    kind = transport.pop("type", "-")
    info = state.get("server_info") or {}
    reason = f": {state['reason']}" if state.get("reason") else ""
    rows = [
        ("state", f"{state['state']}{reason}"),
        ("speaks", f"{describe_revision(state)}, over {kind}"),
        ("calls itself", f"{info.get('name', '-')} {info.get('version', '')}" if info else ""),
        *(
            (key, _render_value(value))
            for key, value in transport.items()
            if value not in (None, [], {})
        ),
        *(
            (key, _render_value(value))
            for key, value in entry.items()
            if key not in ("name", "transport")
        ),
        ("offers", describe_offers(state) if state.get("tools_count") is not None else ""),
        ("restarts", state["restarts"] if state.get("restarts") else ""),
    ]
    print(clean(state["name"]))
    for name, value in rows:
        if value != "":
            print(f"  {name:<13} {clean(value)}")
    _print_remarks(state)
    if state.get("tools"):
        print()
        print_table(["NAME", "DESCRIPTION"], _build_tool_rows(state))


def _print_remarks(state: Mapping[str, Any]) -> None:
    for remark in (*state.get("problems", ()), *state.get("remarks", ())):
        print(f"  {'remark':<13} {clean(remark)}")


def _build_tool_rows(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(tool["name"], tool["description"]) for tool in state["tools"]]


def _render_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
