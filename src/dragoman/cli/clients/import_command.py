"""`dragoman import`: imports the MCP servers of other clients into the hub's `config.toml`.

Values may be secrets, so they go to `<home>/env`, a private file of NAME=value lines, and
`config.toml` refers to them by name. Existing content of both files stays byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from dragoman.cli.base.errors import CommandFailed, UnreadableFile, say
from dragoman.cli.base.files import decode_text, read_bytes, replace_file
from dragoman.cli.base.hub_client import connect_running
from dragoman.cli.base.output import clean, common_options
from dragoman.cli.base.token_costs import render_heavy_list
from dragoman.cli.base.toml_edit import append_toml, parse_toml
from dragoman.cli.clients.edit import parse_document
from dragoman.cli.clients.import_move import MoveResult, move_servers
from dragoman.cli.clients.import_move import undo_move as put_back
from dragoman.cli.clients.import_plan import (
    FoundServer,
    ServerPlan,
    SkipServer,
    get_object,
    plan_server,
)
from dragoman.cli.clients.install import build_unknown_client_error
from dragoman.cli.clients.known_clients import CLIENTS, KnownClient, find_config_file, find_servers
from dragoman.cli.completion import complete_clients
from dragoman.cli.configure import FIRST_CONFIG, list_servers, remove_server
from dragoman.config import read_env
from dragoman.core.errors import ConfigError
from dragoman.home import HomeUnusable, find_home, prepare


def read_servers(client: KnownClient, path: Path, source: str) -> list[FoundServer]:
    if client.format == "yaml" or path.suffix in (".yaml", ".yml"):
        raise UnreadableFile(f'"{path}" is YAML, which is not supported; add its servers by hand')
    data = read_bytes(path)
    if data is None:
        return []
    try:
        document = parse_document("toml" if path.suffix == ".toml" else client.format, data)
    except UnreadableFile as error:
        raise UnreadableFile(f'cannot read "{path}": {error}') from None
    keys, servers = find_servers(document, client)
    places = {name: (keys, entry) for name, entry in servers.items()}
    if client.name == "claude-code" and isinstance(document, dict):
        # `claude mcp add` without a scope stores a server under the current folder.
        try:
            folder = str(Path.cwd())
            here = get_object(get_object(document, "projects"), folder)
            local = ("projects", folder, "mcpServers")
            theirs = get_object(here, "mcpServers").items()
            places = {**{name: (local, entry) for name, entry in theirs}, **places}
        except SkipServer:
            pass
    return [
        FoundServer(name, entry, client, source, path=path, keys=below)
        for name, (below, entry) in places.items()
    ]


def find_client_servers(client: KnownClient) -> list[FoundServer]:
    path = find_config_file(client)
    if path is None or (client.format == "yaml" and not path.exists()):
        return []
    if client.name == "continue":
        files = sorted(path.parent.glob("*.json")) if path.parent.is_dir() else []
        return [found for file in files for found in read_servers(client, file, client.title)]
    return read_servers(client, path, client.title)


def find_file_servers(path: Path) -> list[FoundServer]:
    """Reads a file as that of the client whose path or keys it has."""
    absolute = str(path.absolute())
    places = {place: c for c in CLIENTS.values() for place in c.project}
    placed = [place for place in places if absolute.endswith(f"/{place}")]
    found: list[FoundServer] = []
    for client in [*(places[place] for place in placed), *CLIENTS.values()]:
        if (client.format == "toml") == (path.suffix == ".toml") and client.format != "yaml":
            found = found or read_servers(client, path, str(path))
    if not found:
        raise UnreadableFile(f'"{path}" has no MCP servers under any key that a known client uses')
    base = Path(absolute.removesuffix(placed[0]) if placed else path.absolute().parent)
    return [replace(server, base=base) for server in found]


def _normalize_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


@dataclass(slots=True)
class ImportJob:
    """One import: planned first, then printed, then written together."""

    home: Path
    plans: list[ServerPlan] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    config: bytes | None = None
    env: bytes | None = None
    present: list[tuple[FoundServer, str]] = field(default_factory=list)
    """Servers that `config.toml` already has with the same transport, with their names there."""
    added: list[tuple[FoundServer, str]] = field(default_factory=list)
    replaces: str | None = None
    """The name of the server in `config.toml` to replace."""

    @property
    def config_path(self) -> Path:
        return self.home / "config.toml"

    @property
    def env_path(self) -> Path:
        return self.home / "env"

    def plan_servers(self, found: list[FoundServer]) -> None:
        self.config, self.env = read_bytes(self.config_path), read_bytes(self.env_path)
        try:
            document = parse_toml(decode_text(self.config or b"")[1])
        except UnreadableFile as error:
            raise CommandFailed(
                f'cannot read "{self.config_path}": {error}. Nothing was changed; correct the file.'
            ) from None
        known = list_servers(document)
        names = [str(server.get("name")) for server in known]
        taken = {_normalize_name(name): "config.toml" for name in names if name != self.replaces}
        values = read_env(self.env)
        for server in found:
            try:
                plan = plan_server(server)
                self._note_present(server, plan, known)
                self._check_conflicts(plan, taken, values)
            except SkipServer as reason:
                skipped = {"name": clean(server.name), "from": server.source}
                self.skipped.append({**skipped, "reason": clean(reason)})
                continue
            taken[_normalize_name(plan.name)] = plan.source
            values |= plan.values
            self.plans.append(plan)
            self.added.append((server, plan.name))

    def _note_present(
        self, server: FoundServer, plan: ServerPlan, known: list[dict[str, Any]]
    ) -> None:
        for entry in known:
            same = _drop_defaults(entry.get("transport")) == _drop_defaults(plan.transport)
            if same and _normalize_name(str(entry.get("name"))) == _normalize_name(plan.name):
                self.present.append((server, str(entry["name"])))

    def _check_conflicts(
        self, plan: ServerPlan, taken: dict[str, str], values: dict[str, str]
    ) -> None:
        holder = taken.get(_normalize_name(plan.name))
        if holder is not None:
            raise SkipServer(f"a server of this name is already in {holder}")
        for name, value in plan.values.items():
            if values.get(name, value) != value:
                raise SkipServer(
                    f"{name} already has another value in {self.env_path}; use one value for both, "
                    "or rename this server's variable by hand"
                )

    def write(self) -> Path | None:
        """Writes env first: a server without its secret would fail, an unused secret does not."""
        if not self.plans:
            return None
        prepare(str(self.home))
        mark, text = decode_text(self.config if self.config is not None else FIRST_CONFIG.encode())
        if self.replaces is not None:
            text = remove_server(text, self.replaces)
        new = text
        for plan in self.plans:
            new = append_toml(new, plan.render_block())
        old = parse_toml(text)
        blocks = parse_toml("\n".join(plan.render_block() for plan in self.plans))["mcp_servers"]
        try:
            listed = old.get("mcp_servers", [])
            expected = old | {"mcp_servers": [*listed, *blocks] if isinstance(listed, list) else 0}
            same = repr(parse_toml(new)) == repr(expected)
        except UnreadableFile:
            same = False
        if not same:
            raise CommandFailed(
                f'cannot add to mcp_servers in "{self.config_path}"; nothing was changed. Write '
                "each server as a [[mcp_servers]] table, or use --print."
            )
        self._write_env()
        return replace_file(self.config_path, (mark + new).encode(), self.config)

    def _write_env(self) -> None:
        known = read_env(self.env)
        fresh = {n: v for plan in self.plans for n, v in plan.values.items() if n not in known}
        if not fresh:
            return
        old = self.env or b""
        gap = b"" if not old or old.endswith(b"\n") else b"\n"
        lines = "".join(f"{name}={value}\n" for name, value in fresh.items())
        if self.env is not None and os.name == "posix":
            os.chmod(self.env_path, 0o600)
        replace_file(self.env_path, old + gap + lines.encode(), self.env, backup=False)


def _drop_defaults(transport: Any) -> Any:
    """Removes fields with default values, for a comparison."""
    if not isinstance(transport, dict):
        return transport
    return {key: value for key, value in transport.items() if value not in ([], {}, False, None)}


def _find_servers(source: str | None, job: ImportJob) -> list[FoundServer]:
    if source is not None and source not in CLIENTS:
        if not Path(source).exists():
            if "/" in source or "." in source:
                raise click.UsageError(f'file not found: "{source}"')
            raise build_unknown_client_error(source, " or file")
        return find_file_servers(Path(source))
    if source is not None:
        found = find_client_servers(CLIENTS[source])
        if not found:
            path = find_config_file(CLIENTS[source])
            raise CommandFailed(
                f"{CLIENTS[source].title} has no MCP servers in {path}; nothing to import"
            )
        return found
    everything: list[FoundServer] = []
    for client in CLIENTS.values():
        try:
            everything += find_client_servers(client)
        except UnreadableFile as error:
            job.problems.append(f"{client.title}: {error}")
    return everything


def _select_servers(found: list[FoundServer], only: str) -> list[FoundServer]:
    wanted = {
        _normalize_name(name.strip()): name.strip() for name in only.split(",") if name.strip()
    }
    chosen = [server for server in found if _normalize_name(server.name) in wanted]
    missing = wanted.keys() - {_normalize_name(server.name) for server in chosen}
    if missing or not wanted:
        names = ", ".join(dict.fromkeys(server.name for server in found)) or "none"
        what = ", ".join(wanted[name] for name in missing) or "(nothing)"
        raise CommandFailed(f"--only {what}: unknown server; found: {names}")
    return chosen


def _build_answer(job: ImportJob, done: bool, backup: Path | None) -> dict[str, Any]:
    brief = [plan.summarize() for plan in job.plans]
    after = "dragoman servers" if done else "dragoman import --all"
    return {
        "added": brief if done else [],
        "found": brief,
        "skipped": job.skipped,
        "problems": job.problems,
        "config": str(job.config_path),
        "env_file": str(job.env_path),
        "backup": str(backup) if backup else None,
        "next": after if job.plans else None,
    }


def _print_plans(job: ImportJob, mark: str = "") -> None:
    for problem in job.problems:
        click.echo(f"{mark}Cannot read {clean(problem)}")
    for skip in job.skipped:
        words = f'Skipped "{skip["name"]}" from {skip["from"]}: {skip["reason"]}.'
        click.echo(f"{mark}{clean(words)}")
    for plan in [] if mark else job.plans:
        brief = plan.summarize()
        click.echo(f"{brief['name']:<24} {brief['type']:<6} {brief['where']}  from {plan.source}")
        for note in brief["notes"]:
            click.echo(f"  note: {note}")
    if not mark and any(plan.settings.get("home") == "user" for plan in job.plans):
        click.echo(
            "Imported programs use your home folder and its settings, as before; set home = "
            '"private" in config.toml to give one a private folder.'
        )


def _print_summary(job: ImportJob, backup: Path | None) -> None:
    kept = f" (backup: {backup.name})" if backup else ""
    names = ", ".join(plan.name for plan in job.plans)
    click.echo(f"Added {len(job.plans)} to {job.config_path}{kept}: {names}.")
    if any(plan.values for plan in job.plans):
        click.echo(f"Their secrets are in {job.env_path}, readable only by you.")
    click.echo("Check their state with: dragoman servers")


def _print_config(job: ImportJob) -> None:
    _print_plans(job, "# ")
    click.echo(f"# Add this to {job.config_path}:")
    for plan in job.plans:
        notes = "".join(f"# {note}\n" for note in plan.summarize()["notes"])
        click.echo(f"\n{notes}{plan.render_block()}", nl=False)
    names = dict.fromkeys(name for plan in job.plans for name in plan.values)
    if names:
        click.echo(f"\n# Add these values to {job.env_path}: {', '.join(names)}")


def _confirm(job: ImportJob) -> bool:
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            return click.confirm(f"Add these to {job.config_path}?", default=True)
        except click.Abort:
            click.echo()  # end the line of the question
            raise
    return False


@click.command("import")
@click.argument("source", metavar="[CLIENT|FILE]", required=False, shell_complete=complete_clients)
@click.option("--print", "printed", is_flag=True, help="Print what would be added; change nothing.")
@click.option("--all", "everything", is_flag=True, help="Add all servers without asking.")
@click.option("--only", metavar="NAME,…", help="Only these servers.")
@click.option("--move", "moves", is_flag=True,
              help="Then remove connected servers from the other file.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Undo the last --move, of CLIENT or FILE if given.")
@common_options
@click.pass_context
def import_command(
    ctx: click.Context, /, source: str | None, home: str | None, as_json: bool, **options: Any
) -> None:
    """Import the MCP servers that other clients already have.

    \b
    dragoman import                    from all known clients, after confirmation
    dragoman import cursor             from Cursor
    dragoman import .vscode/mcp.json   from a file
    dragoman import cursor --print     only print the result
    dragoman import cursor --move      also remove the servers from Cursor's file
    dragoman import cursor --undo      put moved servers back

    Imports from one CLIENT (`dragoman install` lists them), from a FILE in any of their formats, or
    by default from all known clients after confirmation (--all: without asking).

    Servers are added to config.toml in the hub's home. Values of variables and headers may be
    secrets: they are stored in the file "env" beside it, and config.toml refers to them by name.
    Existing content is never changed: a server whose name or variable conflicts is reported and
    skipped.

    --move waits until the hub is connected to each server, including those imported earlier, and
    removes them from their original file. Everything else in that file stays unchanged, a backup is
    kept beside it, and --undo puts the servers back.

    Exit codes: 0 done or nothing to do, 1 failed, 2 invalid usage.
    """
    if options["undo"]:
        return _undo(source, home, as_json)
    only, printed = options["only"], options["printed"]
    try:
        job = ImportJob(Path(find_home(home)))
        found = _find_servers(source, job)
        job.plan_servers(_select_servers(found, only) if only is not None else found)
        if not as_json and not printed:
            _print_plans(job)
        explicit = options["everything"] or source is not None or only is not None
        done = not printed and bool(job.plans) and (explicit or (not as_json and _confirm(job)))
        backup = job.write() if done else None
        wanted = [*job.added, *job.present] if options["moves"] and (done or not job.plans) else []
        moved = move_servers(job.home, wanted) if wanted and not printed else None
    except (click.ClickException, UnreadableFile, HomeUnusable, ConfigError, OSError) as error:
        message = str(error).rstrip(".") + "."
        failure = error if isinstance(error, click.ClickException) else CommandFailed(message)
        if not as_json:
            raise failure from None
        click.echo(json.dumps({"error": failure.message}))
        ctx.exit(failure.exit_code)
    if as_json:
        more = moved.build_json() if moved is not None else {}
        click.echo(json.dumps({**_build_answer(job, done, backup), **more}, indent=2))
    elif printed:
        _print_config(job)
    elif done:
        _print_summary(job, backup)
    elif job.plans:
        click.echo("Nothing was changed; run again with --all to add these.")
    else:
        found_none = not job.skipped and not job.problems
        where = f"the files of the {len(CLIENTS)} known clients have no MCP servers"
        click.echo(
            f"Nothing to import: {where}. Give a FILE, or see: dragoman servers add --help"
            if found_none
            else "Nothing new to import; nothing was changed."
        )
    if moved is not None and not as_json:
        _print_moves(moved)
    if (
        not as_json
        and not printed
        and (remark := render_heavy_list(connect_running(str(job.home))))
    ):
        say(remark)


def _print_moves(moved: MoveResult) -> None:
    for one in moved.moved:
        kept = f" (backup: {Path(one.backup).name})" if one.backup else ""
        click.echo(f"Removed from {one.path}{kept}: {', '.join(map(clean, one.names))}.")
    for name, why in moved.left.items():
        click.echo(f'"{clean(name)}" was not moved: {clean(why)}.')
    if moved.moved:
        click.echo("Put them back with: dragoman import --undo")
        click.echo("Restart the client; if it does not have the hub yet: dragoman install CLIENT")


def _undo(source: str | None, home: str | None, as_json: bool) -> None:
    client = CLIENTS.get(source or "")
    path = find_config_file(client) if client else Path(source).absolute() if source else None
    try:
        back = put_back(Path(find_home(home)), path)
    except (UnreadableFile, HomeUnusable) as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        click.echo(json.dumps({"restored": back.names, "file": back.path}, indent=2))
        return
    click.echo(f"Restored in {back.path}: {', '.join(map(clean, back.names))}.")
    click.echo("The hub still has them; remove them with: dragoman servers remove NAME")
