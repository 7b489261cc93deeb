"""`pins`: reviews, approves and rejects definitions that changed since they were approved."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.hub_client import FIRST_START_SECONDS, HubClient, connect_hub
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
)
from dragoman.cli.base.prompt import confirm, yes_option
from dragoman.cli.completion import complete_quarantined, complete_targets
from dragoman.cli.pin_diffs import print_diff, print_diffs

LOOK_SECONDS = 2.0
PENDING = ("held", "new", "minor")
"""States that wait for a decision."""


@click.group()
def pins() -> None:
    """Review definitions of tools, prompts, skills and cards that changed since their approval.

    A server can change the definition of a tool after you have reviewed it. The hub pins every
    definition when it first sees it and quarantines a changed one: it is neither listed nor
    callable until you approve it. Key order and white space do not count as changes.

    \b
    dragoman pins list                       list quarantined definitions
    dragoman pins diff files.read_file       show what changed since the approval
    dragoman pins approve files.read_file    approve the definition as it is now
    dragoman pins reject files.read_file     keep it quarantined

    Per server and agent in config.toml: pin = "first" (default: the first definition seen counts as
    approved), "strict" (nothing is offered before you approve it) or "off".
    """


@pins.command("list", short_help="List quarantined definitions.")
@click.option("--all", "everything", is_flag=True, help="Include approved definitions.")
@common_options
def list_pins(everything: bool, home: str | None, as_json: bool) -> None:
    """List definitions that are quarantined (changed, not yet approved or rejected), new, or
    offered with minor changes.

    \b
    dragoman pins list
    dragoman pins list --all --json
    """
    with _connect(home) as hub:
        states = ("all",) if everything else PENDING
        found = [pin for state in states for pin in hub.get(f"/api/pins?state={state}")["pins"]]
    if as_json:
        print_json(found)
    elif not found:
        print("nothing is pinned yet" if everything else "nothing is quarantined")
    else:
        rows = [_build_row(pin) for pin in found]
        print_table(["NAME", "KIND", "TARGET", "STATE", "REMARKS"], rows, whole=True)


@pins.command(short_help="Show what changed since the approval.")
@click.argument("name", shell_complete=complete_quarantined)
@common_options
def diff(name: str, home: str | None, as_json: bool) -> None:
    """Show the diff between the quarantined and the approved definition of NAME.

    Of a server, show the changes of all its definitions; equal ones are shown once.

    \b
    dragoman pins diff files.read_file
    dragoman pins diff files                     all of the server files
    dragoman pins diff weather                   the card of an agent
    dragoman pins diff prompt:files.read_file    if a tool has the same name
    """
    with _connect(home) as hub:
        if _is_server(hub, name):
            pending = _list_pending(hub, name)
            return print_json(pending) if as_json else _print_pending(name, pending)
        found = _get_diff(hub, name)
    if as_json:
        return print_json(found)
    print_diff(found)
    if found["digest"]:
        print(
            f"\nto approve exactly this: dragoman pins approve {clean(name)} "
            f"--digest {clean(found['digest'])[:16]}"
        )


@pins.command(short_help="Approve definitions as they are now.")
@click.argument("names", nargs=-1, shell_complete=complete_quarantined)
@click.option("--target", metavar="NAME", shell_complete=complete_targets,
              help="All pending definitions of one server or agent.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="All pending definitions.")
@click.option("--digest", metavar="HEX", help="Only if its digest begins with HEX.")
@yes_option
@common_options
def approve(
    names: tuple[str, ...], digest: str | None, home: str | None, as_json: bool, **options: Any
) -> None:
    """Approve quarantined and new definitions as they are now: by NAMES, by target, or all.

    The name of a server stands for all its pending definitions, such as those of a new release.

    The definitions are shown first, and on a terminal you are asked: a server may have changed them
    again since you reviewed them. --digest makes sure of the version without a question.

    \b
    dragoman pins approve files.read_file
    dragoman pins approve files.read_file --digest 3f1c9a07b2d4e811
    dragoman pins approve files              all of the server files
    dragoman pins approve --target files
    dragoman pins approve --all
    """
    target = options["target"]
    if bool(names) + (target is not None) + options["everything"] != 1:
        fail("nothing to approve: give names, --target NAME or --all", USAGE)
    if digest is not None and len(names) != 1:
        fail("--digest needs exactly one name", USAGE)
    with _connect(home) as hub:
        asks = must_confirm(options["yes"] or digest is not None, as_json)
        if names:
            servers = [name for name in names if digest is None and _is_server(hub, name)]
            shown = [_get_diff(hub, name) for name in names if name not in servers]
            _review(shown, as_json, asks)
            done = [line for found in shown for line in _approve(hub, found, digest)]
            for server in servers:
                done += show_and_approve(hub, server, as_json, asks)
        else:
            done = show_and_approve(hub, target, as_json, asks)
    text = f"approved: {clean(', '.join(done))}" if done else "nothing was approved"
    print_result({"approved": done}, text, as_json)


def must_confirm(yes: bool, as_json: bool) -> bool:
    """Whether to ask the user at the terminal before an approval."""
    return not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def _review(pins: list[Any], quiet: bool, asks: bool) -> None:
    """Prints the definitions; with `asks`, ends the command unless the user approves them."""
    if not quiet:
        print_diffs(pins)
    if pins and asks:
        confirm("Approve this?" if len(pins) == 1 else f"Approve these {len(pins)}?")


def show_and_approve(hub: HubClient, target: str | None, quiet: bool, asks: bool) -> list[str]:
    """Prints and approves the pending definitions of a target, or of all if None.

    Approves exactly the printed digests; with `asks`, only after the user agreed.
    """
    found = _list_pending(hub, target)
    taken = [pin for pin in found if pin["offered"] or pin["state"] == "new"]
    _review(taken, quiet, asks)
    digests = {f"{pin['kind']}:{pin['name']}": pin["digest"] for pin in taken}
    body: dict[str, Any] = {"target": target} if target is not None else {"all": True}
    answer = hub.send("POST", "/api/pins/approve", {**body, "digests": digests})
    for name in answer.get("skipped", ()):
        say(f"{name} was skipped: the quarantined definition is not the one offered now")
    done: list[str] = answer["approved"]
    return done


@pins.command(short_help="Keep a definition quarantined.")
@click.argument("name", shell_complete=complete_quarantined)
@common_options
def reject(name: str, home: str | None, as_json: bool) -> None:
    """Keep the definition of NAME quarantined, also when the server sends it again.

    \b
    dragoman pins reject files.read_file

    The approved definition is offered again as soon as the server returns to it.
    """
    with _connect(home) as hub:
        done = hub.send("POST", "/api/pins/reject", {"name": name})
    names = clean(", ".join(done["rejected"]))
    print_result(done, f"rejected: {names}; it stays quarantined", as_json)


@pins.command(short_help="Forget the pins of a server or agent.")
@click.argument("target", shell_complete=complete_targets)
@common_options
def forget(target: str, home: str | None, as_json: bool) -> None:
    """Forget all pins of TARGET, a server or agent, as if it were seen for the first time.

    \b
    dragoman pins forget files

    With pin = "strict" all its definitions then wait for approval; with "first" they are approved
    as they are, changes included.
    """
    with _connect(home) as hub:
        done = hub.send("POST", "/api/pins/forget", {"target": target})
    print_result(done, f"{len(done['forgotten'])} pins of {clean(target)} forgotten", as_json)


@contextmanager
def _connect(home: str | None) -> Iterator[HubClient]:
    """Connects to a hub and waits until its servers have reported their definitions."""
    with connect_hub(home) as hub:
        hub.wait_until_connected(FIRST_START_SECONDS if hub.is_temporary else LOOK_SECONDS)
        yield hub


def _list_pending(hub: HubClient, target: str | None) -> list[Any]:
    """Lists what waits for a decision, with diffs, of a target or of all if None."""
    of = f"&target={quote(target, safe='')}" if target is not None else ""
    return [
        pin
        for state in PENDING
        for pin in hub.get(f"/api/pins?state={state}&diff=1{of}")["pins"]
        if pin["state"] in PENDING and (pin["state"] != "minor" or pin["offered"])
    ]


def _is_server(hub: HubClient, name: str) -> bool:
    """Whether it names a server, and not a definition or the card of an agent."""
    pins = hub.get(f"/api/pins?state=all&target={quote(name, safe='')}")["pins"]
    return bool(pins) and all(pin["name"] != name for pin in pins)


def _print_pending(server: str, pins: list[Any]) -> None:
    if not pins:
        print(f"nothing of {clean(server)} is quarantined")
        return
    print_diffs(pins)
    print(f"to approve all of this after a question: dragoman pins approve {clean(server)}")


def _get_diff(hub: HubClient, name: str) -> Any:
    return hub.get(f"/api/pins/diff?name={quote(name, safe='')}")


def _approve(hub: HubClient, found: Any, digest: str | None) -> list[str]:
    """Approves exactly the definition that was printed."""
    body = {"name": f"{found['kind']}:{found['name']}", "digest": digest or found["digest"]}
    done: list[str] = hub.send("POST", "/api/pins/approve", body)["approved"]
    return done


def _build_row(pin: Any) -> tuple[Any, ...]:
    if pin["state"] == "new":
        words = f"added {_render_day(pin['approved_at'])}; offered, not yet reviewed"
    elif pin["state"] == "minor":
        words = (
            f"minor changes {_render_day(pin['held_since'])} ({_describe_minor(pin['minor'])}); "
            f"offered as approved {_render_day(pin['approved_at'])}"
        )
    elif pin["rejected_by"]:
        words = f"rejected by {pin['rejected_by']}, {_render_day(pin['rejected_at'])}"
    elif pin["held_since"] and pin["approved_at"]:
        words = (
            f"changed {_render_day(pin['held_since'])}; approved {_render_day(pin['approved_at'])}"
        )
    elif pin["held_since"]:
        words = f"since {_render_day(pin['held_since'])}; never approved"
    else:
        words = f"by {pin['approved_by']}, {_render_day(pin['approved_at'])}"
    if pin["held_since"] and not pin["offered"] and pin["state"] != "minor":
        words += "; not offered now"
    return pin["name"], pin["kind"], pin["target"], pin["state"], words


def _describe_minor(changes: Any) -> str:
    return clean(", ".join(sorted({str(one).partition(".")[0] for one in changes})))


def _render_day(when: Any) -> str:
    return str(when or "")[:10]
