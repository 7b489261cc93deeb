"""`pins`: what is held because it has changed since it was approved."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.base.errors import USAGE, fail
from dragoman.cli.base.hub_client import HubClient, connect_hub
from dragoman.cli.base.output import clean, home_option, json_option, print_json, print_table, style
from dragoman.cli.base.prompt import confirm
from dragoman.cli.completion import complete_quarantined, complete_targets
from dragoman.core.safe_text import escape_controls

LOOK_SECONDS = 2.0
yes_option = click.option("--yes", is_flag=True, help="Approve without asking.")


@click.group()
def pins() -> None:
    """Tools, prompts, skills and cards that have changed since they were approved.

    A server can change what a tool says of itself after you have looked at it. The hub pins every
    definition when it first sees it; one that comes back changed is held: not listed, not callable,
    until you approve it. Keys in another order and white space are no change.

    \b
    dragoman pins list                       what is held
    dragoman pins diff files.read_file       how it differs from what was approved
    dragoman pins approve files.read_file    offer it again, as it is now
    dragoman pins reject files.read_file     no; and the same whenever it comes again

    Per server and agent, in config.toml: pin = "first" (the default: the first sight counts as
    approved), "strict" (nothing is offered before you approve it), "off".
    """


@pins.command("list", short_help="What is held.")
@click.option("--all", "everything", is_flag=True, help="Those that are approved as well.")
@home_option
@json_option
def list_pins(everything: bool, home: str | None, as_json: bool) -> None:
    """What is held: changed, not approved yet, or rejected; and what was added and is offered.

    \b
    dragoman pins list
    dragoman pins list --all --json
    """
    with _connect(home) as hub:
        states = ("all",) if everything else ("held", "new")
        found = [pin for state in states for pin in hub.get(f"/api/pins?state={state}")["pins"]]
    if as_json:
        print_json(found)
    elif not found:
        print("nothing is pinned yet" if everything else "nothing is held")
    else:
        print_table(
            ["NAME", "KIND", "OF", "STATE", "REMARKS"],
            [_build_row(pin) for pin in found],
            whole=True,
        )


@pins.command(short_help="How what is held differs from what was approved.")
@click.argument("name", shell_complete=complete_quarantined)
@home_option
@json_option
def diff(name: str, home: str | None, as_json: bool) -> None:
    """How what is held under NAME differs from what was approved, member by member.

    \b
    dragoman pins diff files.read_file
    dragoman pins diff weather                   the card of an agent
    dragoman pins diff prompt:files.read_file    where a tool is called the same
    """
    with _connect(home) as hub:
        found = _get_diff(hub, name)
    if as_json:
        print_json(found)
        return
    _print_diff(found)
    if found["digest"]:
        print(
            f"\napprove exactly this: dragoman pins approve {clean(name)} "
            f"--digest {clean(found['digest'])[:16]}"
        )


@pins.command(short_help="Offer what is held again, as it is now.")
@click.argument("names", nargs=-1, shell_complete=complete_quarantined)
@click.option(
    "--target",
    metavar="NAME",
    shell_complete=complete_targets,
    help="All that waits of one server or agent.",
)
@click.option("--all", "everything", is_flag=True, help="All that waits.")
@click.option("--digest", metavar="HEX", help="Only if that is how its digest begins.")
@yes_option
@home_option
@json_option
def approve(
    names: tuple[str, ...],
    target: str | None,
    everything: bool,
    digest: str | None,
    yes: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Offer what is held again, as it is now: all NAMES, or all of a target. Of what was added, say
    that you have looked at it.

    What is approved is shown first, and on a terminal you are asked: what a server says by the time
    you type may not be what you have looked at. --digest makes sure of that without a question.

    \b
    dragoman pins approve files.read_file
    dragoman pins approve files.read_file --digest 3f1c9a07b2d4e811
    dragoman pins approve --target files
    dragoman pins approve --all
    """
    if bool(names) + (target is not None) + everything != 1:
        fail("say what to approve: names, or --target NAME, or --all", USAGE)
    if digest is not None and len(names) != 1:
        fail("--digest is of one name", USAGE)
    with _connect(home) as hub:
        asks = must_confirm(yes or digest is not None, as_json)
        if names:
            shown = [_print_pin(hub, name, as_json) for name in names]
            if asks:
                confirm(_build_question(len(shown)))
            done = [line for found in shown for line in _approve(hub, found, digest)]
        else:
            done = show_and_approve(hub, target, as_json, asks)
    if as_json:
        print_json({"approved": done})
    else:
        print(f"approved: {clean(', '.join(done))}" if done else "nothing was approved")


def must_confirm(yes: bool, as_json: bool) -> bool:
    """Whether the person at the terminal is asked before something is approved."""
    return not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def _build_question(count: int) -> str:
    return "Approve this?" if count == 1 else f"Approve these {count}?"


def show_and_approve(hub: HubClient, target: str | None, quiet: bool, asks: bool) -> list[str]:
    """Approves what waits of a target, or (None) of all, and is offered now. What is shown is what
    is approved; with `asks`, if the person at the terminal agrees."""
    of = f"&target={quote(target, safe='')}" if target is not None else ""
    found = [
        pin
        for state in ("held", "new")
        for pin in hub.get(f"/api/pins?state={state}&diff=1{of}")["pins"]
        if pin["state"] in ("held", "new")
    ]
    taken = [pin for pin in found if pin["offered"] or pin["state"] == "new"]
    for pin in taken if not quiet else ():
        _print_diff(pin)
        print()
    if taken and asks:
        confirm(_build_question(len(taken)))
    digests = {f"{pin['kind']}:{pin['name']}": pin["digest"] for pin in taken}
    body: dict[str, Any] = {"target": target} if target is not None else {"all": True}
    answer = hub.send("POST", "/api/pins/approve", {**body, "digests": digests})
    for name in answer.get("skipped", ()):
        words = f"{clean(name)} is skipped: what is held of it is not what is offered now"
        print(words, file=sys.stderr)
    done: list[str] = answer["approved"]
    return done


@pins.command(short_help="Keep what is held held.")
@click.argument("name", shell_complete=complete_quarantined)
@home_option
@json_option
def reject(name: str, home: str | None, as_json: bool) -> None:
    """Keep what is held under NAME held, and the same whenever it comes again.

    \b
    dragoman pins reject files.read_file

    What was approved before is offered as soon as the server goes back to it.
    """
    with _connect(home) as hub:
        done = hub.send("POST", "/api/pins/reject", {"name": name})
    if as_json:
        print_json(done)
    else:
        print(f"rejected: {clean(', '.join(done['rejected']))}; it stays held")


@pins.command(short_help="Forget all pins of a server or agent.")
@click.argument("target", shell_complete=complete_targets)
@home_option
@json_option
def forget(target: str, home: str | None, as_json: bool) -> None:
    """Forget all pins of TARGET, a server or agent: what it offers then is seen for the first time.

    \b
    dragoman pins forget files

    With pin = "strict" everything of it waits for approval then; with "first" it is approved as it
    is, changes included.
    """
    with _connect(home) as hub:
        done = hub.send("POST", "/api/pins/forget", {"target": target})
    if as_json:
        print_json(done)
    else:
        print(f"{len(done['forgotten'])} pins of {clean(target)} are forgotten")


@contextmanager
def _connect(home: str | None) -> Iterator[HubClient]:
    """What a server offers is seen when it is connected."""
    with connect_hub(home) as hub:
        if hub.is_temporary:
            hub.wait_until_connected()
        else:
            hub.wait_until_connected(LOOK_SECONDS)
        yield hub


def _get_diff(hub: HubClient, name: str) -> Any:
    return hub.get(f"/api/pins/diff?name={quote(name, safe='')}")


def _print_pin(hub: HubClient, name: str, quiet: bool) -> Any:
    found = _get_diff(hub, name)
    if not quiet:
        _print_diff(found)
        print()
    return found


def _approve(hub: HubClient, found: Any, digest: str | None) -> list[str]:
    """What was shown is what is approved, or nothing is."""
    body = {"name": f"{found['kind']}:{found['name']}", "digest": digest or found["digest"]}
    done: list[str] = hub.send("POST", "/api/pins/approve", body)["approved"]
    return done


def _print_diff(found: Any) -> None:
    print(clean(found["summary"]))
    if found["diff"]:
        print()
    colours = {"-": "red", "+": "green", "!": "yellow"}
    for line in str(found["diff"]).split("\n") if found["diff"] else ():
        safe = escape_controls(line)
        sign = safe.strip()[:1]
        indented = safe.startswith("  ")
        print(style(safe, fg=colours[sign]) if indented and sign in colours else safe)


def _build_row(pin: Any) -> tuple[Any, ...]:
    if pin["state"] == "new":
        words = f"added {_render_day(pin['approved_at'])}; offered, and nobody has looked at it"
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
    if pin["held_since"] and not pin["offered"]:
        words += "; not offered now"
    return pin["name"], pin["kind"], pin["target"], pin["state"], words


def _render_day(when: Any) -> str:
    return str(when or "")[:10]
