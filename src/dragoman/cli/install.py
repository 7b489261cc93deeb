"""`dragoman install`: puts the hub into a client's configuration file, and takes it out again.

The text is edited where the entry goes and left byte for byte elsewhere; what comes out is parsed
and must be the old content and exactly our entry, or nothing is written. Which clients there are,
and how their files are read, is in `clients`.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from dragoman.cli.clients import (
    CLIENTS,
    Client,
    Node,
    Unreadable,
    config_file,
    decode,
    entry_for,
    is_hub,
    parse,
    parse_jsonc,
    read_bytes,
    servers_at,
)

KEPT_BACKUPS = 5
CANNOT_EDIT = 8
"""Exit code: the client's file is in a format that is not edited; the text to add was printed."""


class Failed(click.ClickException):
    """What was asked, what stopped it, what to do; exit code 1."""


# --- JSON ---------------------------------------------------------------------------------------


def _newline(text: str) -> str:
    if "\r\n" in text:
        return "\r\n"
    return "\r" if "\r" in text and "\n" not in text else "\n"


def _broken(text: str) -> bool:
    return "\n" in text or "\r" in text


def _line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _indent(text: str, at: int) -> str:
    """The white space that begins the line where `at` stands."""
    line = text[_line_start(text, at) :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _render(value: Any, indent: str, unit: str, newline: str) -> str:
    """Objects over several lines, everything else on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + unit
    members = (
        f"{inner}{json.dumps(key, ensure_ascii=False)}: {_render(item, inner, unit, newline)}"
        for key, item in value.items()
    )
    return f"{{{newline}{f',{newline}'.join(members)}{newline}{indent}}}"


_COMMENTS_HERE = re.compile(r"(?:[ \t]*(?:/\*.*?\*/|//[^\r\n]*))*", re.DOTALL)


def _insert(text: str, root: Node, into: Node, key: str, value: Any) -> str:
    newline, unit = _newline(text), _unit(text, root)
    if _is_inline(text, into) or (not into.members and _is_inline(text, root)):
        member = json.dumps({key: value}, ensure_ascii=False)[1:-1]
        if not into.members:
            return text[: into.start + 1] + member + text[into.start + 1 :]
        end = into.members[-1].node.end
        return f"{text[:end]}, {member}{text[end:]}"
    if into.members:
        last = into.members[-1]
        indent = _indent(text, into.members[0].start)
        member = f"{json.dumps(key)}: {_render(value, indent, unit, newline)}"
        end = last.node.end if last.comma is None else last.comma + 1
        found = _COMMENTS_HERE.match(text, end)  # a comment stays with the line it is on
        after = found.end() if found else end
        comma, trailing = (",", "") if last.comma is None else ("", ",")
        return (
            f"{text[:end]}{comma}{text[end:after]}{newline}{indent}{member}{trailing}{text[after:]}"
        )
    base = _indent(text, into.start)
    indent = base + unit
    inside = text[into.start + 1 : into.end - 1]
    after = into.start + 1 + len(inside.rstrip(" \t\r\n"))
    close = "" if _broken(text[after : into.end - 1]) else newline + base
    member = f"{json.dumps(key)}: {_render(value, indent, unit, newline)}"
    return f"{text[:after]}{newline}{indent}{member}{close}{text[after:]}"


def _is_inline(text: str, node: Node) -> bool:
    return bool(node.members) and not _broken(text[node.start : node.members[0].start])


def _unit(text: str, root: Node) -> str:
    if root.members and not _is_inline(text, root):
        return _indent(text, root.members[0].start).removeprefix(_indent(text, root.start)) or "  "
    return "  "


def _cut(text: str, node: Node, index: int) -> str:
    """The text without the member: with its line, and with the one comma too many."""
    member = node.members[index]
    begin, end, comma = member.start, member.node.end, member.comma
    if comma is None and index:
        comma = node.members[index - 1].comma
    if comma is not None and comma >= end and not text[end:comma].strip():
        end = comma + 1
    gap = text[: member.start].rstrip(" \t")
    follows = re.match(r"[ \t]*(?=[\r\n]|$)", text[end:])
    if _broken(gap[-1:]):
        above = gap.removesuffix("\n").removesuffix("\r")
        # After a // comment the line must still end somewhere.
        if follows or "//" not in above[_line_start(above, len(above)) :]:
            begin, end = len(above), end + (follows.end() if follows else 0)
    elif index:
        begin = len(gap)
    elif comma is not None:
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    if comma is None or begin <= comma < end:
        return text[:begin] + text[end:]
    if comma < begin:
        return text[:comma] + text[comma + 1 : begin] + text[end:]
    return text[:begin] + text[end:comma] + text[comma + 1 :]


def _find(node: Node, key: str) -> int | None:
    """The last member of this name: the one that a reader goes by."""
    return next((i for i, m in reversed(list(enumerate(node.members))) if m.key == key), None)


def _json_with(text: str, keys: tuple[str, ...], name: str, entry: Any) -> str:
    root = parse_jsonc(text)
    if root is None:
        newline = _newline(text)
        document: Any = {name: entry}
        for key in reversed(keys):
            document = {key: document}
        gap = "" if not text or _broken(text[-1]) else newline
        return f"{text}{gap}{_render(document, '', '  ', newline)}{newline}"
    node, path = root, "the document"
    for position, key in enumerate((*keys, name)):
        if not isinstance(node.value, dict):
            raise Unreadable(f"{path} is no object ({{…}}), so no server can be put into it")
        index = _find(node, key)
        if index is None:
            for missing in reversed((*keys, name)[position + 1 :]):
                entry = {missing: entry}
            return _insert(text, root, node, key, entry)
        node, path = node.members[index].node, f'"{key}"'
    indent = _indent(text, node.start)
    value = _render(entry, indent, _unit(text, root), _newline(text))
    return text[: node.start] + value + text[node.end :]


def _json_without(text: str, keys: tuple[str, ...], name: str) -> str:
    node = parse_jsonc(text)
    for key in keys:
        index = _find(node, key) if node else None
        node = node.members[index].node if node and index is not None else None
    index = _find(node, name) if node else None
    return text if node is None or index is None else _cut(text, node, index)


# --- TOML ---------------------------------------------------------------------------------------


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, int | float):
        return repr(value)
    raise Unreadable(f"{value!r} is no value that is written here; edit it by hand")


def append_toml(text: str, block: str) -> str:
    """The text, an empty line, and the block, in the text's own line ends."""
    newline = _newline(text)
    gap = "" if not text else newline if _broken(text[-1]) else newline * 2
    return f"{text}{gap}{block.replace(chr(10), newline)}"


def _toml_with(text: str, keys: tuple[str, ...], name: str, entry: Any) -> str:
    lines = [f"{key} = {toml_value(value)}" for key, value in entry.items()]
    header = ".".join((*keys, name))
    return append_toml(_toml_without(text, keys, name), "\n".join([f"[{header}]", *lines]) + "\n")


def _toml_without(text: str, keys: tuple[str, ...], name: str) -> str:
    """Without the table of that name and those below it.

    A line of a multi-line string can look like a header; then the comparison afterwards refuses.
    """
    path = r"\s*\.\s*".join(
        rf"""(?:{re.escape(k)}|"{re.escape(k)}"|'{re.escape(k)}')""" for k in (*keys, name)
    )
    ours = re.compile(rf"\s*\[\s*{path}\s*(?:\.[^\]]*)?\]\s*(?:#.*)?$")
    kept: list[str] = []
    held: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        is_header = re.match(r"\s*\[", line) is not None
        if is_header:
            was, inside = inside, bool(ours.match(line))
            kept += [] if inside else held
            held = []
            if inside and not was and kept and not kept[-1].strip():
                kept.pop()
        if not inside:
            kept.append(line)
        elif not line.strip() or line.lstrip().startswith("#"):
            held.append(line)  # what stands before the next table belongs to that one
        else:
            held = []
    return "".join(kept + [line for line in held if line.strip()])


# --- the change, checked ------------------------------------------------------------------------


def with_entry(client: Client, data: bytes | None, name: str, entry: dict[str, Any]) -> bytes:
    """The file with exactly this entry added, or changed."""
    mark, text = decode(data or b"")
    old = parse(client.format, data or b"")
    keys, _ = servers_at(old, client)
    edit = _toml_with if client.format == "toml" else _json_with
    new = edit(text, keys, name, entry)
    expected = copy.deepcopy(old)
    inner = expected
    for key in keys:
        inner = inner.setdefault(key, {})
    if client.format == "toml":
        inner.pop(name, None)
    inner[name] = entry
    return _checked(client, mark + new, expected)


def without_entry(client: Client, data: bytes, name: str) -> bytes:
    """The file with exactly this entry taken out."""
    mark, text = decode(data)
    expected = copy.deepcopy(parse(client.format, data))
    keys, found = servers_at(expected, client)
    found.pop(name)
    edit = _toml_without if client.format == "toml" else _json_without
    return _checked(client, mark + edit(text, keys, name), expected)


def _checked(client: Client, text: str, expected: Any) -> bytes:
    try:
        data = text.encode()
        same = repr(parse(client.format, data)) == repr(expected)
    except (Unreadable, UnicodeEncodeError):
        same = False
    if not same:
        raise Unreadable("it is laid out in a way that cannot be edited safely")
    return data


def undone(client: Client, path: Path, data: bytes, name: str) -> bytes | None:
    """The bytes of before the installation, where a backup proves them; else `without_entry`.

    None: there was no file before.
    """
    entry = servers_at(parse(client.format, data), client)[1][name]
    for backup in reversed(backups(path)):
        try:
            before = read_bytes(backup)
        except Unreadable:
            continue
        if before is not None and _leads_to(client, before, name, entry, data):
            return before
    if _leads_to(client, None, name, entry, data):
        return None
    return without_entry(client, data, name)


def _leads_to(client: Client, before: bytes | None, name: str, entry: Any, data: bytes) -> bool:
    try:
        if before and name in servers_at(parse(client.format, before), client)[1]:
            return False
        return with_entry(client, before, name, entry) == data
    except Unreadable:
        return False


# --- files --------------------------------------------------------------------------------------


def backups(path: Path) -> list[Path]:
    """Our backups of a file, oldest first."""
    target = Path(os.path.realpath(path))
    ours = re.compile(re.escape(target.name) + r"\.bak-\d{8}T\d{6}\.\d{6}Z")
    try:
        return sorted(p for p in target.parent.iterdir() if ours.fullmatch(p.name))
    except OSError:
        return []


def write(
    path: Path, data: bytes | None, before: bytes | None, *, mode: int = 0o600, backup: bool = True
) -> Path | None:
    """Puts `data` (None: nothing) in place of `before`, in one step. Returns the backup.

    A link is followed; mode and owner stay. `mode` is for a file that is new. What changed since
    it was read is left alone, and so is what nobody may write.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        found = target.stat() if before is not None else None
        if found and (not found.st_mode & 0o222 or not os.access(target, os.W_OK)):
            raise Failed(f'"{target}" is read-only; make it writable, or add the entry by hand')
        saved = None
        if before is not None and backup:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            saved = target.with_name(f"{target.name}.bak-{stamp}")
            os.replace(_temporary(target, before, found, mode), saved)
        try:
            _swap(target, data, before, found, mode)
        except BaseException:
            if saved:
                saved.unlink(missing_ok=True)
            raise
        for old in backups(path)[:-KEPT_BACKUPS]:
            old.unlink(missing_ok=True)
        return saved
    except OSError as error:
        raise Failed(f'"{target}" cannot be written: {error.strerror}') from None


def _swap(
    target: Path, data: bytes | None, before: bytes | None, found: os.stat_result | None, mode: int
) -> None:
    ready = None if data is None else _temporary(target, data, found, mode)
    try:
        if read_bytes(target) != before:
            raise Failed(f'"{target}" was changed by another program just now; run this again')
        if ready is None:
            target.unlink()
        else:
            os.replace(ready, target)
            ready = None
    finally:
        if ready is not None:
            ready.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _temporary(target: Path, data: bytes, like: os.stat_result | None, mode: int) -> Path:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if os.name == "posix":
                if like and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), like.st_mode & 0o7777 if like else mode)
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


# --- the command --------------------------------------------------------------------------------


_SCRIPTS = ("dragoman", "dragoman.exe")


def hub_command(*, gui: bool, environ: Mapping[str, str] = os.environ) -> tuple[str, list[str]]:
    """What starts this hub: by its name only where a shell's PATH surely leads here."""
    script: Path | None = Path(sys.argv[0]).absolute()
    if script is None or script.name.lower() not in _SCRIPTS or not script.is_file():
        beside = (Path(sys.executable).parent / name for name in _SCRIPTS)
        script = next((path for path in beside if path.is_file()), None)
    if script is None:
        return sys.executable, ["-m", "dragoman", "mcp"]
    named = shutil.which("dragoman", path=environ.get("PATH"))
    if not gui and named and os.path.realpath(named) == os.path.realpath(script):
        return "dragoman", ["mcp"]
    return str(script), ["mcp"]


def _entry(client: Client) -> dict[str, Any]:
    command, args = hub_command(gui=client.gui)
    home = os.environ.get("DRAGOMAN_HOME")
    env = {"DRAGOMAN_HOME": os.path.abspath(os.path.expanduser(home))} if home else {}
    return entry_for(client, command, args, env)


def snippet(client: Client, name: str, entry: dict[str, Any]) -> str:
    """What to add by hand, in the client's own format."""
    if client.format == "yaml":  # Goose
        lines = ["extensions:", f"  {name}:", "    enabled: true", "    type: stdio"]
        lines += [f"    name: {name}", f"    cmd: {json.dumps(entry['command'])}"]
        lines += [f"    args: {json.dumps(entry['args'])}", "    timeout: 300"]
        lines += [f"    envs: {json.dumps(entry['env'])}"] if "env" in entry else []
        return "\n".join(lines) + "\n"
    return with_entry(client, None, name, entry).decode()


@dataclass(frozen=True, slots=True)
class Outcome:
    client: str
    path: str
    name: str
    action: str
    said: str
    next: str = ""
    backup: str | None = None
    entry: dict[str, Any] | None = None
    snippet: str | None = None


def _merged(old: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """Ours over what is there: clients add fields of their own to an entry."""
    merged = {**(old if isinstance(old, dict) else {}), **entry}
    for key in ("env", "environment"):
        if key in entry and isinstance(old, dict) and isinstance(old.get(key), dict):
            merged[key] = {**old[key], **entry[key]}
    return merged


def _put(client: Client, path: Path, name: str, named: bool, dry: bool, project: bool) -> Outcome:
    entry = _entry(client)
    data = read_bytes(path)
    servers = servers_at(parse(client.format, data or b""), client)[1]
    other = next((n for n, s in servers.items() if is_hub(s) and _merged(s, entry) == s), None)
    if other is not None and (other == name or not named):
        said = f'Already installed: "{other}" is in {path}; nothing was changed.'
        return Outcome(client.name, str(path), other, "already", said, entry=servers[other])
    if name in servers and not is_hub(servers[name]):
        raise Failed(
            f'{path} already has another server called "{name}"; choose a name with --name'
        )
    known = name in servers
    entry = _merged(servers.get(name), entry)
    new = with_entry(client, data, name, entry)
    word = "updated" if known else "added"
    if dry:
        said = f'Would have {word} "{name}" in {path}; nothing was changed.'
        return Outcome(client.name, str(path), name, "dry-run", said, entry=entry)
    saved = write(path, new, data, mode=0o644 if project else 0o600)
    kept = f" (backup: {saved.name})" if saved else ""
    said = f'{word.capitalize()} "{name}" in {client.title}: {path}{kept}.'
    step, kept_at = client.next_step, str(saved) if saved else None
    return Outcome(client.name, str(path), name, word, said, step, kept_at, entry)


def _take(client: Client, path: Path, name: str, dry: bool) -> Outcome:
    data = read_bytes(path)
    servers = servers_at(parse(client.format, data or b""), client)[1]
    if data is None or name not in servers:
        said = f'Not installed: there is no "{name}" in {path}; nothing was changed.'
        return Outcome(client.name, str(path), name, "absent", said)
    if not is_hub(servers[name]):
        raise Failed(f'"{name}" in {path} is not this hub, so it stays; say which with --name')
    before = undone(client, path, data, name)
    if dry:
        said = f'Would have removed "{name}" from {path}; nothing was changed.'
        return Outcome(client.name, str(path), name, "dry-run", said)
    saved = write(path, before, data)
    said = f'Removed "{name}" from {client.title}: {path} (backup: {saved.name if saved else "-"}).'
    step = f"Restart {client.title}; the hub is then gone from it."
    return Outcome(client.name, str(path), name, "removed", said, step, str(saved))


def state(client: Client) -> dict[str, Any]:
    """Where a client's file is, and whether the hub is in it (None: not known)."""
    path = config_file(client)
    found: dict[str, Any] = {"client": client.name, "title": client.title, "path": str(path)}
    found |= {"exists": False, "installed": False, "name": None, "problem": None}
    try:
        data = read_bytes(path) if path else None
        found["exists"] = data is not None
        if client.format == "yaml":
            found["installed"] = None if data else False
            return found
        servers = servers_at(parse(client.format, data or b""), client)[1]
    except Unreadable as error:
        return found | {"exists": True, "installed": None, "problem": str(error)}
    name = next((name for name, server in servers.items() if is_hub(server)), None)
    return found | {"installed": name is not None, "name": name}


def _listed(as_json: bool) -> None:
    states = [state(client) for client in CLIENTS.values()]
    if as_json:
        click.echo(json.dumps({"clients": states}, indent=2))
        return
    for found in states:
        if found["installed"]:
            word = f'installed as "{found["name"]}"'
        elif found["problem"]:
            word = f"unreadable: {found['problem']}"
        elif found["installed"] is None:
            word = "not known (YAML)"
        else:
            word = "not installed" if found["exists"] else "no such file yet"
        click.echo(f"{found['client']:<16} {word:<24} {found['path']}")
    click.echo("\nAdd the hub to one of them with: dragoman install CLIENT")


def unknown(word: str, also: str = "") -> click.UsageError:
    near = [name for name in CLIENTS if word.lower() in name or name in word.lower()][:3]
    near = near or difflib.get_close_matches(word.lower(), CLIENTS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(CLIENTS)}."
    return click.UsageError(f'"{word}" is no known client{also}; {hint}')


def outcome(client: str, project: Path | None, name: str, named: bool, verb: str) -> Outcome:
    """One client's installation, removal, or what it would be; `verb` is the option given."""
    if client not in CLIENTS:
        raise unknown(client)
    known = CLIENTS[client]
    path = config_file(known, project.absolute() if project else None)
    if path is None:
        raise click.UsageError(f"{known.title} has no file for a project; leave out --project.")
    try:
        if verb == "print" or known.format == "yaml":
            text = snippet(known, name, _entry(known))
            action = "printed" if verb == "print" else "manual"
            said = (
                f"To be added to {path}:"
                if action == "printed"
                else (
                    f"{path} is YAML, which is not edited here; nothing was changed. "
                    f"{'Take out' if verb.startswith('remove') else 'Add'} this by hand:"
                )
            )
            return Outcome(client, str(path), name, action, said, snippet=text)
        if verb.startswith("remove"):
            return _take(known, path, name, verb == "remove-dry")
        return _put(known, path, name, named, verb == "dry", project is not None)
    except (Unreadable, RecursionError) as error:
        where = "" if str(path) in str(error) else f'"{path}" cannot be used: '
        raise Failed(
            f"{where}{error}. Nothing was changed; correct the file, or see what to add with: "
            f"dragoman install {client} --print"
        ) from None


def _name(_: click.Context, __: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value):
        raise click.BadParameter('letters, digits, "-" and "_" only, at most 64')
    return value


@click.command()
@click.argument("client", required=False)
@click.option("--print", "printed", is_flag=True, help="Show what to add and where; touch nothing.")
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use the client's file of this project folder instead of yours.",
)
@click.option("--name", default="dragoman", show_default=True, callback=_name, help="Name there.")
@click.option("--remove", is_flag=True, help="Take the hub out again.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; touch nothing.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.pass_context
def install(
    ctx: click.Context,
    client: str | None,
    printed: bool,
    project: Path | None,
    name: str,
    remove: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put the hub into CLIENT (an IDE or agent), or list the clients.

    The entry starts "dragoman mcp". Clients with a window are given the absolute path of this
    dragoman, because what is started from a dock has another PATH than your shell; clients of the
    terminal get plain "dragoman" if your PATH leads to this one. If DRAGOMAN_HOME is set, the
    entry carries it.

    Everything else in the file stays as it is. The file as it was is kept beside it as
    NAME.bak-TIME (the last 5); --remove gives back the very bytes of before where that is still
    possible.

    Exit codes: 0 done or nothing to do, 1 failed, 2 wrong usage, 8 the client's file is of a kind
    that is not edited (Goose's YAML): what to add was printed.
    """
    try:
        if client is None:
            if printed or remove or dry_run or project:
                raise click.UsageError("Say which client; without one, the clients are listed.")
            return _listed(as_json)
        if printed and remove:
            raise click.UsageError("--print and --remove exclude each other.")
        named = ctx.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
        verb = "print" if printed else "remove" if remove else "dry" if dry_run else "add"
        verb = "remove-dry" if remove and dry_run else verb
        done = outcome(client, project, name, named, verb)
    except click.ClickException as error:
        if not as_json:
            raise
        click.echo(json.dumps({"error": error.message}))
        ctx.exit(error.exit_code)
    click.echo("\n".join(_lines(done)) if not as_json else json.dumps(asdict(done), indent=2))
    if done.action == "manual":
        ctx.exit(CANNOT_EDIT)


def _lines(done: Outcome) -> Iterator[str]:
    yield done.said
    if done.snippet:
        yield done.snippet.rstrip("\r\n")
    if done.next:
        yield done.next
