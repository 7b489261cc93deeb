"""Where servers are found that others have configured. Reads the clients' files, writes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dragoman.cli.base.errors import Unreadable
from dragoman.cli.base.files import read_bytes
from dragoman.cli.clients.edit import parse
from dragoman.cli.clients.import_plan import Found, object_of
from dragoman.cli.clients.known_clients import CLIENTS, Client, config_file, servers_at
from dragoman.cli.clients.variable_refs import Skip


def found_in(client: Client, path: Path, source: str) -> list[Found]:
    if client.format == "yaml" or path.suffix in (".yaml", ".yml"):
        raise Unreadable(f'"{path}" is YAML, which is not read here; add its servers by hand')
    data = read_bytes(path)
    if data is None:
        return []
    try:
        document = parse("toml" if path.suffix == ".toml" else client.format, data)
    except Unreadable as error:
        raise Unreadable(f'"{path}" cannot be read: {error}') from None
    keys, servers = servers_at(document, client)
    places = {name: (keys, entry) for name, entry in servers.items()}
    if client.name == "claude-code" and isinstance(document, dict):
        # `claude mcp add` without a scope puts a server under the folder it was run in.
        try:
            folder = str(Path.cwd())
            here = object_of(object_of(document, "projects"), folder)
            local = ("projects", folder, "mcpServers")
            theirs = object_of(here, "mcpServers").items()
            places = {**{name: (local, entry) for name, entry in theirs}, **places}
        except Skip:
            pass
    return [
        Found(name, entry, client, source, path=path, keys=below)
        for name, (below, entry) in places.items()
    ]


def found_in_client(client: Client) -> list[Found]:
    path = config_file(client)
    if path is None or (client.format == "yaml" and not path.exists()):
        return []
    if client.name == "continue":
        files = sorted(path.parent.glob("*.json")) if path.parent.is_dir() else []
        return [found for file in files for found in found_in(client, file, client.title)]
    return found_in(client, path, client.title)


def found_in_file(path: Path) -> list[Found]:
    """A file is read as that of the client whose place or whose keys it has."""
    absolute = str(path.absolute())
    places = {place: c for c in CLIENTS.values() for place in c.project}
    placed = [place for place in places if absolute.endswith(f"/{place}")]
    found: list[Found] = []
    for client in [*(places[place] for place in placed), *CLIENTS.values()]:
        if (client.format == "toml") == (path.suffix == ".toml") and client.format != "yaml":
            found = found or found_in(client, path, str(path))
    if not found:
        raise Unreadable(f'"{path}" names no MCP servers under any key that a client uses')
    base = Path(absolute.removesuffix(placed[0]) if placed else path.absolute().parent)
    return [replace(server, base=base) for server in found]
