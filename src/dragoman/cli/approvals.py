"""`approvals`: shows what waits for the approval of a person, and decides it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.base.errors import FAILED, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_hub
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
    render_json,
    style,
)
from dragoman.cli.completion import complete_approvals

POLL_SECONDS = 0.5
TEMPORARY_SECONDS = 120.0
"""How long a hub that this command started is kept for the call that it makes."""
REFUSED = 4
_STATES = ("pending", "approved", "denied", "expired", "cancelled")
_COLOURS = {"pending": "yellow", "approved": "green", "denied": "red", "expired": "red"}
_comment = click.option(
    "--comment", metavar="TEXT", default="", help="For the requester and the audit log."
)


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def approvals(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show what waits for the approval of a person, and decide it.

    \b
    dragoman approvals                  what waits now
    dragoman approvals show 3f1c9a07    the requester, the reason and the arguments
    dragoman approvals approve 3f1c9a07 --comment "checked with Anna"
    dragoman approvals deny 3f1c9a07

    A policy whose permit has @approval("reason") lets a call pass only with an approval. An
    approved call is made once, with the rights that its requester has then.
    """
    if ctx.invoked_subcommand is None:
        _print_list(home, as_json, "pending", 50)


@approvals.command("list", short_help="List what waits, or was decided.")
@click.option("--state", type=click.Choice([*_STATES, "all"]), default="pending",
              show_default=True, help="Only requests in this state.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True,
              help="At most so many, the newest first.")  # fmt: skip
@common_options
def list_approvals(state: str, limit: int, home: str | None, as_json: bool) -> None:
    """List requests for approval that you may decide, or that are your own.

    \b
    dragoman approvals list
    dragoman approvals list --state all
    """
    _print_list(home, as_json, state, limit)


def _print_list(home: str | None, as_json: bool, state: str, limit: int) -> None:
    wanted = "" if state == "all" else f"&state={state}"
    with connect_hub(home) as hub:
        found = hub.get(f"/api/approvals?limit={limit}{wanted}")["approvals"]
    if as_json:
        return print_json(found)
    if not found:
        print("nothing waits for approval" if state == "pending" else "there are none")
        return
    rows = [
        [one["id"], one["title"], one["requester"], _render_state(one), one["reason"]]
        for one in found
    ]
    print_table(["ID", "CALL OR STEP", "REQUESTER", "STATE", "REASON"], rows)


@approvals.command(short_help="Show the requester, the reason and the arguments.")
@click.argument("id", shell_complete=complete_approvals)
@common_options
def show(id: str, home: str | None, as_json: bool) -> None:
    """Show the request ID: the decoded arguments, the requester, the reason and the time.

    \b
    dragoman approvals show 3f1c9a07
    """
    with connect_hub(home) as hub:
        found = _get(hub, id)
    if as_json:
        return print_json(found)
    _print_approval(found)
    if found["canDecide"]:
        print(f"\nto decide: dragoman approvals approve {clean(id)}, or deny {clean(id)}")


@approvals.command(short_help="Approve a request.")
@click.argument("id", shell_complete=complete_approvals)
@_comment
@common_options
def approve(id: str, comment: str, home: str | None, as_json: bool) -> None:
    """Approve the request ID. Its call is then made once; a second approval is an error.

    \b
    dragoman approvals approve 3f1c9a07
    dragoman approvals approve 3f1c9a07 --comment "checked with Anna"
    """
    with connect_hub(home) as hub:
        found = _decide(hub, id, "approve", comment)
        if hub.is_temporary:  # its end would interrupt the call
            found = _wait(hub, id, TEMPORARY_SECONDS)
    print_result(found, f"approved: {clean(found['title'])} for {clean(found['requester'])}",
                 as_json)  # fmt: skip


@approvals.command(short_help="Deny a request.")
@click.argument("id", shell_complete=complete_approvals)
@_comment
@common_options
def deny(id: str, comment: str, home: str | None, as_json: bool) -> None:
    """Deny the request ID. The same call is then refused until the request would have expired.

    \b
    dragoman approvals deny 3f1c9a07 --comment "not on a Friday"
    """
    with connect_hub(home) as hub:
        found = _decide(hub, id, "deny", comment)
    print_result(found, f"denied: {clean(found['title'])} for {clean(found['requester'])}", as_json)


@approvals.command(short_help="Wait for a decision, and for the call.")
@click.argument("id", shell_complete=complete_approvals)
@click.option("--timeout", type=click.FloatRange(0.1, 86_400), metavar="SECONDS", default=3_600.0,
              help="Stop waiting after this time [default: 3600].")  # fmt: skip
@common_options
def wait(id: str, timeout: float, home: str | None, as_json: bool) -> None:
    """Wait until the request ID is decided, and its call has ended.

    \b
    dragoman approvals wait 3f1c9a07 && dragoman call deploy target=prod

    Exit codes: 0 approved and done, 1 its call failed or nothing was decided in time, 4 denied or
    expired.
    """
    with connect_hub(home) as hub:
        found = _wait(hub, id, timeout)
    if as_json:
        print_json(found)
    else:
        print(f"{clean(found['title'])}: {_render_state(found)}")
    if found["state"] in ("denied", "expired", "cancelled"):
        raise SystemExit(REFUSED)
    if found["state"] == "pending" or found["outcome"] in ("failed", "interrupted"):
        raise SystemExit(FAILED)


def _wait(hub: HubClient, id: str, seconds: float) -> Any:
    until = time.monotonic() + seconds
    while True:
        found = _get(hub, id)
        # A step, and a call that its requester makes, have no call of the hub to wait for.
        is_open = found["state"] == "pending" or found["outcome"] == "running"
        is_due = found["state"] == "approved" and found["isParked"] and not found["outcome"]
        if not (is_open or is_due):
            return found
        if time.monotonic() > until:
            say(f"{id} is still {found['state']} after {seconds:g} s")
            return found
        time.sleep(POLL_SECONDS)


def _get(hub: HubClient, id: str) -> Any:
    return hub.get(f"/api/approvals/{quote(id, safe='')}")


def _decide(hub: HubClient, id: str, verb: str, comment: str) -> Any:
    if len(comment) > 1_000:
        fail("the comment is too long: at most 1000 characters", 2)
    body = {"comment": comment} if comment else {}
    return hub.send("POST", f"/api/approvals/{quote(id, safe='')}/{verb}", body)


def _print_approval(found: Any) -> None:
    for name, value in (
        ("id", found["id"]),
        ("step" if found["kind"] == "step" else "call", found["title"]),
        ("reason", found["reason"]),
        ("requester", _render_requester(found)),
        ("state", _render_state(found)),
        ("comment", found["comment"]),
        ("approvers", ", ".join(found["approvers"])),
        ("requested", found["requestedAt"]),
        ("expires", found["expiresAt"]),
        ("run", found["run"]),
        ("trace", found["trace"]),
        ("problem", found["problem"]),
    ):
        if value:
            print(f"{style(f'{name}:', bold=True)} {clean(value)}")
    print(f"{style('arguments:', bold=True)} {render_json(found['arguments'])}")
    if "result" in found:
        print(f"{style('result:', bold=True)} {render_json(found['result'])}")


def _render_requester(found: Any) -> str:
    callers = [one for one in found["callers"] if one != found["requester"]]
    behalf = ", ".join(callers) or found["behalf"] or ""
    return f"{found['requester']} for {behalf}" if behalf else str(found["requester"])


def _render_state(found: Any) -> str:
    state = str(found["state"])
    shown = style(state, fg=_COLOURS.get(state))
    if state == "pending":
        return f"{shown}, {_render_left(found['expiresAt'])} left"
    by = f" by {clean(found['decidedBy'])}" if found["decidedBy"] else ""
    return f"{shown}{by}" + (f", {found['outcome']}" if found["outcome"] else "")


def _render_left(expires: str) -> str:
    left = int((datetime.fromisoformat(expires) - datetime.now(UTC)).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if left >= 2 * size:
            return f"{left // size} {unit}"
    return f"{max(left, 0)} s"
