"""`policy`: the policies, whether they are right, and what they say.

The files are the truth: what looks at them or changes them needs no hub, works on a set that no hub
would start with, and a running hub takes a change up by itself. Who may call what depends on what
there is to call, so that is asked of a hub.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.base.errors import fail, fail_with, say
from dragoman.cli.base.hub_client import (
    HubProblem,
    HubUnavailable,
    find_running_hub,
    request_json,
    resolve_home,
)
from dragoman.cli.base.output import clean, home_option, json_option, print_json, print_table, style
from dragoman.cli.policy_queries import explain, propose, render_count, replay, what_can, who_can
from dragoman.core.errors import ConfigError, HubError

if TYPE_CHECKING:
    from dragoman.app.app import policy_folder

CONFIGURATION = 7
SECONDS = 30.0


@click.group()
def policy() -> None:
    """Who may call what, in Cedar: the files *.cedar in the home's folder `policies`.

    \b
    dragoman policy init                            write the default policies out, to edit them
    dragoman policy check                           is what I wrote right?
    dragoman policy explain key:ci github.search    may it, and why?
    dragoman policy who-can vercel_ops.deploy       everybody, and whether they may
    dragoman policy what-can key:ci                 everything, and whether it may
    dragoman policy replay --since 24h --draft new  what of yesterday would a draft have decided
                                                    differently?
    dragoman policy propose --since 7d              the least that would have done

    A running hub takes changes up within a second, all of them or none. `dragoman docs policies`
    teaches it in five minutes.
    """


# --- the files -----------------------------------------------------------------------------------


@policy.command(short_help="Write the default policies out, to edit them.")
@home_option
def init(home: str | None) -> None:
    """Write the default policies into the home's folder `policies`, to be edited there.

    \b
    dragoman policy init

    Nothing changes by that: they are what holds without such a folder. An existing folder is left
    as it is.
    """
    folder = _open_folder(home, None)
    try:
        written = folder.init()
    except HubError as error:
        fail_with(error)
    if not written:
        print(f"{folder.path} is there already and was left as it is")
        return
    print(f"wrote {', '.join(str(folder.path / name) for name in written)}")
    print("next: edit them or add a file beside them, then: dragoman policy check")


@policy.command("list", short_help="The files, and the policies in each.")
@home_option
@json_option
def list_policies(home: str | None, as_json: bool) -> None:
    """The files, the policies in each, and whether all of it can be put in force.

    \b
    dragoman policy list
    """
    folder = _open_folder(home, None)
    found = _validate(folder, home)
    running_set = _get_active(home)
    if as_json:
        print_json({"folder": str(folder.path), **found, "hub": running_set})
        return
    if not folder.exists:
        print(f"there is no {folder.path}: the default policies hold; see: dragoman policy init")
    rows = [
        (entry["name"], "on" if entry["enabled"] else "off", each["effect"], each["id"])
        for entry in found["files"]
        for each in entry["policies"] or [{"effect": "-", "id": "(none)"}]
    ]
    print_table(["FILE", "STATE", "EFFECT", "POLICY"], rows)
    _print_findings(found["findings"])
    if running_set is not None:
        print(f"in force: {running_set['snapshot']} ({running_set['mode']})")
        if running_set["problem"]:
            say(f"the hub goes on with what it had: {running_set['problem']}")


@policy.command(short_help="Put a file in force.")
@click.argument("name")
@home_option
def enable(name: str, home: str | None) -> None:
    """Put the policies of the file NAME in force: NAME.cedar.off becomes NAME.cedar.

    \b
    dragoman policy enable mine
    """
    _switch(name, home, True)


@policy.command(short_help="Take a file out of force.")
@click.argument("name")
@home_option
def disable(name: str, home: str | None) -> None:
    """Take the policies of the file NAME out of force: NAME.cedar becomes NAME.cedar.off.

    \b
    dragoman policy disable mine

    What they permit is denied from then on, what they forbid is perhaps permitted: see first, with
    `dragoman policy replay`, what would have come out differently.
    """
    _switch(name, home, False)


def _switch(name: str, home: str | None, on: bool) -> None:
    from dragoman.app.app import policy_folder

    folder = _open_folder(home, None)
    try:
        after = policy_folder.judge(folder.switched(name, on), _load_known(home))
        # A set that is broken anyway may be mended in several steps; a good one stays good.
        if not after["ok"] and (on or policy_folder.judge(folder.texts(), _load_known(home))["ok"]):
            _print_findings(after["findings"], to_stderr=True)
            word = "on" if on else "off"
            fail(f'"{name}" was not switched {word}: the set could not be used', CONFIGURATION)
        folder.switch(name, on)
    except HubError as error:
        fail_with(error)
    print(f"{folder.path / name}.cedar is {'in' if on else 'out of'} force")
    if after["ok"] and not after["policies"]:
        say("no policy is left, so nothing is permitted, to you neither; enable one to undo it")
    if not after["ok"]:
        _print_findings(after["findings"], to_stderr=True)
        say("the set still cannot be used, for these reasons")


# --- whether it is right -------------------------------------------------------------------------

folder_argument = click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False)
)


@policy.command(short_help="Everything that is wrong with the policies.")
@folder_argument
@home_option
@json_option
def check(folder: str | None, home: str | None, as_json: bool) -> None:
    """Say everything that is wrong with the policies in FOLDER, or in the home's folder.

    \b
    dragoman policy check
    dragoman policy check ./draft && cp draft/*.cedar ~/.dragoman/policies/

    Parses them, checks them against the schema, looks for what is legal but surely not meant (ids
    that are missing, twice or not ASCII, permits without any condition, servers and roles that are
    not there), and runs the golden decisions of *.toml. Names are looked up in the configuration,
    and where a hub runs, in what it has. Needs no hub. Exits with 7 where a hub would not take
    them.
    """
    where = _open_folder(home, folder)
    found = _validate(where, home)
    if as_json:
        print_json({"folder": str(where.path), **found})
        raise SystemExit(0 if found["ok"] else CONFIGURATION)
    _print_findings(found["findings"])
    if not found["ok"]:
        fail(f"the policies in {where.path} cannot be used", CONFIGURATION)
    of = str(where.path) if where.exists else f"the default set (there is no {where.path})"
    tests = render_count(found["tests"], "decision")
    print(f"ok: {render_count(found['policies'], 'policy')}, {tests}, {of}")
    for each in found["uncached"]:
        print(
            f'  "{each["id"]}" reads {", ".join(each["reads"])}: where it counts, '
            "each call is decided anew, which takes some 0.1 ms"
        )


@policy.command(short_help="Run the golden decisions.")
@folder_argument
@home_option
@json_option
def test(folder: str | None, home: str | None, as_json: bool) -> None:
    """Run the golden decisions of FOLDER, or of the home's folder: the [[tests]] of *.toml.

    \b
    dragoman policy test
    dragoman policy test examples/policies/first

    \b
    [[tests]]
    name = "the build may deploy"
    caller = "key:ci"
    skill = "vercel_ops.deploy"
    expect = "permit"

    A hub runs them too, before it takes a set up. Exits with 7 where one of them fails.
    """
    from dragoman.app.app import policy_folder

    where = _open_folder(home, folder)
    try:
        found = policy_folder.tested(where.texts())
    except HubError as error:
        fail_with(error)
    if as_json:
        print_json({"folder": str(where.path), **found})
        raise SystemExit(0 if found["ok"] else CONFIGURATION)
    for each in found["tests"]:
        mark = style("ok", fg="green") if each["passed"] else style("FAILED", fg="red")
        print(f"{mark}  {clean(each['name'])}")
        if not each["passed"]:
            print(f"    {clean(each['message'])}")
    _print_findings(found["findings"])
    if not found["tests"] and found["ok"]:
        print("no golden decisions; see: dragoman policy test --help")
    if not found["ok"]:
        failed = sum(not each["passed"] for each in found["tests"])
        why = f"{failed} of {len(found['tests'])} failed" if failed else "they cannot be run"
        fail(f"golden decisions of {where.path}: {why}", CONFIGURATION)


# --- small things --------------------------------------------------------------------------------


def _open_folder(home: str | None, given: str | None) -> policy_folder.Folder:
    from dragoman.app.app import policy_folder

    if given is not None:
        return policy_folder.Folder(Path(given))
    try:
        return policy_folder.folder_of(Path(resolve_home(home)))
    except HubError as error:
        fail_with(error)


def _load_known(home: str | None) -> Any:
    from dragoman.app.app import policy_folder

    try:
        return policy_folder.known_at(Path(resolve_home(home)), time.time())
    except ConfigError as error:  # the policies can be judged all the same
        say(f"the names in them are not looked up: {error}")
        return None


def _validate(folder: policy_folder.Folder, home: str | None) -> dict[str, Any]:
    """By the hub that runs, which knows what there is to call, or here."""
    from dragoman.app.app import policy_folder

    try:
        texts = folder.texts()
        daemon = find_running_hub(resolve_home(home))
        if daemon is not None:
            try:
                answer: dict[str, Any] = request_json(
                    daemon.socket, "POST", "/api/policies/validate", {"texts": texts}, SECONDS
                )
                return {**answer, "files": folder.files()}
            except (HubUnavailable, HubProblem) as error:
                say(f"the running hub was not asked ({error}); judged here")
        return {**policy_folder.judge(texts, _load_known(home)), "files": folder.files()}
    except HubError as error:
        fail_with(error)


def _get_active(home: str | None) -> dict[str, Any] | None:
    """What a running hub goes by; None where there is none, or it does not say."""
    daemon = find_running_hub(resolve_home(home))
    if daemon is None:
        return None
    try:
        found = request_json(daemon.socket, "GET", "/api/policies", None, SECONDS)
    except (HubUnavailable, HubProblem) as error:
        say(f"the running hub does not say what is in force: {error}")
        return None
    return {key: found[key] for key in ("snapshot", "mode", "problem")}


def _print_findings(findings: Sequence[Mapping[str, Any]], *, to_stderr: bool = False) -> None:
    for each in findings:
        where = f"{each['file']}:{each['line']}: " if each["line"] else f"{each['file']}: "
        where = where if each["file"] else ""
        word = "" if each["level"] == "error" else f"{each['level']}: "
        click.echo(f"{clean(where)} {word}{clean(each['message'])}".lstrip(), err=to_stderr)


for command in (explain, who_can, what_can, replay, propose):
    policy.add_command(command)
