"""Where servers are found that others have configured. Reads the clients' files, writes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.base.files import read_bytes
from dragoman.cli.clients.edit import parse_document
from dragoman.cli.clients.import_plan import FoundServer, get_object
from dragoman.cli.clients.known_clients import CLIENTS, KnownClient, find_config_file, find_servers
from dragoman.cli.clients.variable_refs import SkipServer


def read_servers(client: KnownClient, path: Path, source: str) -> list[FoundServer]:
    if client.format == "yaml" or path.suffix in (".yaml", ".yml"):
        raise UnreadableFile(f'"{path}" is YAML, which is not read here; add its servers by hand')
    data = read_bytes(path)
    if data is None:
        return []
    try:
        document = parse_document("toml" if path.suffix == ".toml" else client.format, data)
    except UnreadableFile as error:
        raise UnreadableFile(f'"{path}" cannot be read: {error}') from None
    keys, servers = find_servers(document, client)
    places = {name: (keys, entry) for name, entry in servers.items()}
    if client.name == "claude-code" and isinstance(document, dict):
        # `claude mcp add` without a scope puts a server under the folder it was run in.
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
    """A file is read as that of the client whose place or whose keys it has."""
    absolute = str(path.absolute())
    places = {place: c for c in CLIENTS.values() for place in c.project}
    placed = [place for place in places if absolute.endswith(f"/{place}")]
    found: list[FoundServer] = []
    for client in [*(places[place] for place in placed), *CLIENTS.values()]:
        if (client.format == "toml") == (path.suffix == ".toml") and client.format != "yaml":
            found = found or read_servers(client, path, str(path))
    if not found:
        raise UnreadableFile(f'"{path}" names no MCP servers under any key that a client uses')
    base = Path(absolute.removesuffix(placed[0]) if placed else path.absolute().parent)
    return [replace(server, base=base) for server in found]
