"""`skills`: adds, lists, shows, approves and removes skills. Works without a hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
    style,
)
from dragoman.cli.base.prompt import confirm, yes_option
from dragoman.core.errors import HubError

if TYPE_CHECKING:
    from dragoman.agents.skills.installation import InstalledSkill, SkillStore
    from dragoman.agents.skills.scan import SkillFinding

_COLOURS = {"critical": "red", "warning": "yellow", "info": "blue"}


@click.group()
def skills() -> None:
    """Manage skills: folders with a manifest whose program gives tools, or a text for agents.

    \b
    dragoman skills add ./weather       copy a skill into the hub's home and use it
    dragoman skills list                list the skills
    dragoman skills show weather        show its tools, findings and files
    dragoman skills remove weather

    A skill is pinned by a digest over its files; if they change, the hub does not use it until you
    approve it. Its program runs in a sandbox, without your environment. A running hub notices
    changes at once. See `dragoman docs skills`.
    """


@skills.command(short_help="Copy a skill into the hub's home.")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Its name in the hub; default: as its manifest says.")
@click.option("--env", "env", metavar="NAME", multiple=True,
              help="A variable of the hub that its program gets; repeatable.")  # fmt: skip
@click.option("--sandbox", type=click.Choice(["strict", "net", "off"]),
              help="Its sandbox; default: net, or strict if it needs no network.")  # fmt: skip
@yes_option
@common_options
def add(
    path: Path,
    name: str | None,
    env: tuple[str, ...],
    sandbox: str | None,
    yes: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Copy the skill in the folder PATH into the hub's home, or replace it by a new version.

    \b
    dragoman skills add ./weather
    dragoman skills add ./weather --env WEATHER_KEY --name forecasts

    PATH has a skill.toml, or a SKILL.md with a front matter. Its texts and demands are scanned;
    findings are advice, and critical ones need your consent or --yes. The files in PATH are copied:
    changes there take effect when you add it again.
    """
    from dragoman.agents.skills.manifest import read_manifest
    from dragoman.agents.skills.scan import scan_skill

    place = Path(resolve_home(home))
    manifest = read_manifest(path)
    called, store = name or manifest.name, _open_store(place)
    _check_free(place, store, called)
    findings = scan_skill(manifest)
    if not as_json:
        _print_findings(findings)
    _confirm(f'add skill "{called}"', findings, yes)
    was_there = called in store.list_names()
    skill = store.install(path, called, env=env, sandbox=sandbox or "")
    _require_usable(skill)
    _report("replaced" if was_there else "added", skill, as_json)


def _check_free(place: Path, store: SkillStore, name: str) -> None:
    skills_beside = [one for one in store.list_names() if one != name]
    if other := _find_claimant(name, [*_list_others(place, store), *skills_beside]):
        fail(f'the name "{name}" is taken by "{other}"; choose another with --name', USAGE)


def _list_others(place: Path, store: SkillStore) -> list[str]:
    """Lists servers and agents, which share names with skills."""
    from dragoman.app.policy_admin.known_ids import list_targets

    names = list_targets(place) if (place / "config.toml").exists() else store.list_names()
    for own in store.list_names():
        names.remove(own)
    return names


def _find_claimant(name: str, others: list[str]) -> str:
    from dragoman.config import slug_from_name

    slug = slug_from_name(name)
    return next((other for other in others if slug_from_name(other) == slug), "")


@skills.command("list", short_help="List the skills.")
@common_options
def list_skills(home: str | None, as_json: bool) -> None:
    """List the skills of the hub's home, and why some are not used.

    \b
    dragoman skills list
    dragoman skills list --json
    """
    place = Path(resolve_home(home))
    store = _open_store(place)
    others = _list_others(place, store)
    found = [_describe(store.read(name), others) for name in store.list_names()]
    if as_json:
        return print_json(found)
    if not found:
        say("there are no skills; add one with: dragoman skills add PATH")
        return
    print_table(
        ["SKILL", "VERSION", "RUNTIME", "SANDBOX", "TOOLS", "STATE"],
        [
            [
                one["name"],
                one.get("version") or "-",
                one.get("runtime") or "-",
                one["sandbox"] or "-",
                len(one["tools"]) or "-",
                one["problem"] or one["state"],
            ]
            for one in found
        ],
        whole=True,
    )


@skills.command(short_help="Show a skill.")
@click.argument("name")
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show the tools of skill NAME, what the scan found, its digest and its files.

    \b
    dragoman skills show weather
    """
    place = Path(resolve_home(home))
    store = _open_store(place)
    skill = store.read(name)
    found = {
        **_describe(skill, _list_others(place, store)),
        "files": [stamp[0] for stamp in skill.stamps],
    }
    if as_json:
        return print_json(found)
    title = f"{clean(name)} {clean(found.get('version', ''))}".strip()
    print(style(title, bold=True))
    for text in (found.get("description"), found["problem"] and f"not used: {found['problem']}"):
        if text:
            print(clean(text))
    for label in ("runtime", "sandbox", "env", "requires", "license", "source", "added", "digest"):
        value = found.get(label)
        if value:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            print(f"  {label}: {clean(shown)}")
    for tool in found["tools"]:
        print(f"  tool {clean(tool['name'])}: {clean(tool['description'])}")
    for finding in found["findings"]:
        print(f"  {finding['level']}: {clean(finding['words'])}")
    for file in found["files"]:
        print(f"  file {clean(file)}")


@skills.command(short_help="Approve the files of a skill as they are now.")
@click.argument("name")
@yes_option
@common_options
def approve(name: str, yes: bool, home: str | None, as_json: bool) -> None:
    """Approve the files of skill NAME as they are now in the hub's home, after they have changed.

    \b
    dragoman skills approve weather
    """
    from dragoman.agents.skills.installation import compute_digest
    from dragoman.agents.skills.manifest import read_manifest
    from dragoman.agents.skills.scan import scan_skill

    store = _open_store(Path(resolve_home(home)))
    before = store.read(name)
    digest = compute_digest(before.folder)
    findings = scan_skill(read_manifest(before.folder))
    if digest == before.record.digest:
        return print_result({"approved": name, "digest": digest}, "nothing has changed", as_json)
    if not as_json:
        print(f"the files of {name} in {before.folder} have changed")
        _print_findings(findings)
    if not yes:
        confirm(f'approve skill "{name}" as it is now?')
    _report("approved", store.approve(name, digest), as_json)


@skills.command(short_help="Remove a skill.")
@click.argument("name")
@common_options
def remove(name: str, home: str | None, as_json: bool) -> None:
    """Remove skill NAME from the hub's home. What its program has stored stays in programs/NAME.

    \b
    dragoman skills remove weather
    """
    _open_store(Path(resolve_home(home))).remove(name)
    print_result({"removed": name}, f'removed skill "{name}"', as_json)


def _open_store(place: Path) -> SkillStore:
    from dragoman.agents.skills.installation import SkillStore

    return SkillStore(place)


def _describe(skill: InstalledSkill, others: list[str]) -> dict[str, Any]:
    """`others` are the names of servers and agents."""
    from dragoman.agents.skills.describe import describe_skill

    problem = skill.problem
    if other := _find_claimant(skill.name, others):
        problem = f'its name is that of "{other}"; add it again with --name'
    return describe_skill(skill, problem)


def _print_findings(findings: list[SkillFinding]) -> None:
    for level, words in findings:
        say(f"{style(level, sys.stderr, fg=_COLOURS[level])}: {clean(words)}")


def _confirm(what: str, findings: list[SkillFinding], yes: bool) -> None:
    """Findings are advice; critical ones need consent."""
    critical = [words for level, words in findings if level == "critical"]
    if critical and not yes:
        confirm(f"{what} despite {len(critical)} critical findings?")


def _require_usable(skill: InstalledSkill) -> None:
    if skill.problem:
        raise HubError(skill.problem)


def _report(done: str, skill: InstalledSkill, as_json: bool) -> None:
    described = _describe(skill, [])
    tools = ", ".join(f"{skill.name}.{one['name']}" for one in described["tools"])
    offers = f"its tools: {clean(tools)}" if tools else "a text for the prompts of agents"
    print_result(
        {done: skill.name, "skill": described}, f'{done} skill "{skill.name}": {offers}', as_json
    )
