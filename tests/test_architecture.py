"""The architecture as rules over `ast`: imports, homes of third parties, wiring, tasks, versions.

The rules are the tables below; `violations(path, source)` applies them to one file. `EXCEPTIONS`
lists the places that a newer rule still finds; it only ever shrinks.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from dragoman.a2a.protocol import dialects
from dragoman.core.errors import HubError, find_row, list_leaves
from dragoman.mcp.protocol import revisions

SOURCE = Path(__file__).parent.parent / "src"

MAX_FUNCTION_LINES = 80  # `make check` warns of long modules (tests/module_lengths.py)

# On the path from `python -m dragoman mcp` to the relay: every IDE waits for what these load.
RELAY = {
    "dragoman.__main__",
    "dragoman.home",
    "dragoman.mcp.relay",
    "dragoman.mcp.protocol.framing",
    "dragoman.mcp.protocol.revisions",
}
SILENT = {
    "dragoman",
    "dragoman.mcp",
    "dragoman.mcp.protocol",
}  # package __init__s on that path: loading them imports nothing
LAZY = {  # what a function or the types of these modules may load when needed
    "dragoman": {"dragoman.mcp.protocol.tool_names"},
    "dragoman.__main__": {"dragoman.cli"},
    "dragoman.mcp.relay": {"dragoman.app", "dragoman.core.errors"},
}

# Our packages that each may import, besides itself and `dragoman` for its version. A package
# without a row gets PACKAGE's.
PACKAGE = {"dragoman.core", "dragoman.wire", "dragoman.processes", "dragoman.oauth.config"}
OURS: dict[str, set[str]] = {
    "dragoman.core": set(),
    "dragoman.wire": set(),
    "dragoman.processes": {"dragoman.core"},
    "dragoman.config": {
        "dragoman.core",
        "dragoman.*.config",
        "dragoman.*.*.config",
        "dragoman.config_layers",
    },
    "dragoman.config_layers": {"dragoman.core"},
    "dragoman.cli": {
        "dragoman.config",
        "dragoman.config_layers",
        "dragoman.app",
        "dragoman.home",
        "dragoman.core",
        "dragoman.processes.bubblewrap",
        "dragoman.wire.http",
        # What commands that work without a hub need:
        "dragoman.agents.skills",
        "dragoman.a2a.cards.signing",
        "dragoman.a2a.client",
        "dragoman.a2a.protocol",
        "dragoman.agents",
        "dragoman.net.client",
        "dragoman.oauth.authority.passwords",
        "dragoman.policy",
        "dragoman.stores",
        "dragoman.tools.manifest_schedules",
        "dragoman.tools.wide_grants",
        "dragoman.workflows",
    },
    "dragoman.app": {"dragoman"},
    "dragoman.agent": {"dragoman.agents"},  # the public names for function agents
    "dragoman.plugin": {"dragoman.core"},  # the public names for plug-ins
    "dragoman.testing": {"dragoman"},
}

# What a module of `cli` loads inside a function only: most commands need one of them, or none.
HEAVY = {
    f"dragoman.{name}"
    for name in ("a2a", "agents", "app", "net", "policy", "stores", "tools", "workflows")
}

# Sub-packages form a DAG: what each may import of its own package, besides itself.
WITHIN: dict[str, set[str]] = {
    "dragoman.mcp.protocol": set(),
    "dragoman.mcp.server": {"dragoman.mcp.protocol", "dragoman.mcp.config"},
    "dragoman.mcp.client": {"dragoman.mcp.protocol", "dragoman.mcp.config"},
    "dragoman.oauth.client": {"dragoman.oauth.config"},
    "dragoman.a2a.protocol": set(),
    "dragoman.a2a.cards": {"dragoman.a2a.protocol"},
    "dragoman.a2a.client": {
        "dragoman.a2a.protocol",
        "dragoman.a2a.cards",
        "dragoman.a2a.config",
    },
    "dragoman.a2a.server": {
        "dragoman.a2a.protocol",
        "dragoman.a2a.cards",
        "dragoman.a2a.config",
    },
    "dragoman.a2a.remote": {
        "dragoman.a2a.protocol",
        "dragoman.a2a.cards",
        "dragoman.a2a.client",
        "dragoman.a2a.config",
    },
}

# The homes of each third party, and of parts of the standard library that have one home.
HOMES: dict[str, set[str]] = {
    "cedarpy": {"dragoman.policy"},
    "click": {"dragoman.cli"},
    "cronsim": {"dragoman.core.schedule_times"},
    "html_to_markdown": {"dragoman.tools.html_text"},
    "httptools": {"dragoman.net", "dragoman.web"},
    "jsonschema_rs": {"dragoman.guards"},
    "msgspec": {
        "dragoman.core.structs",
        "dragoman.wire",
        "dragoman.config",
        "dragoman.config_layers",
        "dragoman.*.config",
        "dragoman.agents",
        "dragoman.stores",
        "dragoman.guards",
        "dragoman.mcp",
        "dragoman.oauth",
        "dragoman.policy",
        "dragoman.web",
    },
    "psycopg": {"dragoman.stores"},
    "redis": {"dragoman.stores"},
    "opentelemetry": {"dragoman.telemetry.otlp"},
    "argon2": {"dragoman.oauth.authority"},
    "cryptography": {
        "dragoman.a2a.cards.signing",
        "dragoman.oauth",
        "dragoman.stores.audit.shared_keys",
        "dragoman.stores.credentials",
        "dragoman.web.cluster_tls",
    },
    "google.protobuf": {"dragoman.a2a.protocol.grpc"},
    "grpc": {"dragoman.a2a.client.grpc_channels", "dragoman.a2a.server.grpc_server"},
    "httpx2": {"dragoman.agents.models.pydantic_ai"},
    "jwt": {"dragoman.oauth"},
    "keyring": {"dragoman.stores"},
    "pydantic_ai": {"dragoman.agents.models.pydantic_ai"},
    "stdnum": {"dragoman.guards.detectors"},
    "uvloop": {"dragoman.app.process", "dragoman.mcp.relay"},
    "webauthn": {"dragoman.oauth.authority"},
    "yaml": {"dragoman.workflows.yaml_reader"},
    # To compare two texts takes the product of their lengths: each of these bounds both.
    "difflib": {
        "dragoman.core.nearest_names",
        "dragoman.pins.diff",
        "dragoman.a2a.remote.registry_view",
        "dragoman.cli",
    },
    "sqlite3": {"dragoman.stores"},
    "urllib.request": {"dragoman.net", "dragoman.cli"},
    "http.client": {"dragoman.net", "dragoman.cli"},
    "socket.create_connection": {"dragoman.net", "dragoman.cli"},
}
PRINTERS = {"dragoman.cli", "dragoman.mcp.relay"}

TASK_HOME = "dragoman.core.background"
"""The only module that starts asyncio tasks: it keeps them, logs their failures and ends them."""
REVISION_HOME, DIALECT_HOME = "dragoman.mcp.protocol", "dragoman.a2a.protocol.dialects"
"""The only packages that compare an MCP revision, and an A2A version or dialect: other code asks
for a named capability."""

SECRET_READERS = {
    "resolve_local", "resolve_to_send", "expand", "expand_to_send", "_resolve_secret",
}  # fmt: skip
"""The methods of `SecretResolver`, and the ports to it; `resolve` besides, which paths have too."""
OWNER_SOURCES = {  # modules that may say of a reference that the owner wrote it, and where it was
    "dragoman.agents.model_factory",  # a manifest
    "dragoman.app.build_agents",  # [[a2a.external_agents]]
    "dragoman.app.build_redis",  # [redis]
    "dragoman.app.build_secrets",  # api_key
    "dragoman.app.build_telemetry",  # [otel]
    "dragoman.app.build_tools",  # [tools]
    "dragoman.app.server_editing",  # compares
    "dragoman.app.build_workflows",  # [workflows], and a definition equal to a file of the owner
    "dragoman.cli.workflows",  # the command line
    "dragoman.core.secret_rules",
    "dragoman.core.shared_settings",  # [store], [cluster]
    "dragoman.oauth.authority.oidc",  # [auth.server.oidc]
    "dragoman.oauth.client.grants",  # the oauth settings of a server or agent
    "dragoman.oauth.server.introspection",  # [auth.introspection]
    "dragoman.stores.database",  # [store]
    "dragoman.web.api_servers",  # compares: the owner's own session
    "dragoman.workflows.active_run",  # compares
    "dragoman.workflows.authorship",  # compares
    "dragoman.workflows.folder",  # a file without the mark of the API
    "dragoman.workflows.runner",  # compares
}

# Fields of `app` that a lifecycle changes after its object is built, as `Class.field`.
LIFECYCLE = {
    "ClusterParts._internal",
    "ClusterParts._listener",
    "ConfigWatch._before",
    "ConfigWatch._seen",
    "ConfigWatch.problem",
    "LiveConfig.config",
    "LiveConfig.stdio_view",
    "PinReviews._retry_at",
    "PolicyService._author",
    "PolicyService._is_closed",
    "PolicyService._is_replaying",
    "PolicyService._reported",
    "RecordedCalls.more",
    "RunState.grpc_port",
    "RunState.grpc_ports",
    "RunState.is_draining",
    "RunState.url",
    "StoreWatch._reported",
    "Worker._pauses",
    "Worker._started",
    "Worker.due",
    "Worker.process",
    "StoreWatch._unwritten",
}

# Modules that make a regular expression of something other than constants, and why no text from
# outside can make it take long. Python's engine backtracks: patterns of servers, callers, models
# and files belong to the linear engine of `guards.validate`.
PATTERNS: dict[str, str] = {
    "dragoman.a2a.protocol.dialects.operations": "the paths of the dialects",
    "dragoman.agents.models.script": "manifests of the owner; spawned agents have plain text",
    "dragoman.core.text_search": "a table beside it",
    "dragoman.guards.detectors": "a table beside it",
    "dragoman.stores.postgres_sql": "tables beside it",
    "dragoman.web.api": "the paths of the operations, escaped",
    "dragoman.web.console.screens": "the paths of the screens, escaped",
    "dragoman.web.events": "a glob, whose translation does not backtrack",
    "dragoman.core.secret_values": "values and names of variables, escaped: alternatives of text",
    "dragoman.wire.masked_replies": "spellings of a secret, each character escaped",
    "dragoman.workflows.json_schema": "schemas of definitions; those of inputs have no patterns",
}
LOUD = ("log.warning", "log.error", "log.exception")
_MAKES_PATTERN = {
    "compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn",
}  # fmt: skip

# How often a file still breaks a rule. An entry that is higher than what is found is stale, and
# fails too.
EXCEPTIONS: dict[str, dict[str, int]] = {
    "outages": {  # what is lost for good has a line of its own
        "app/build_cluster.py": 1,
        "app/pin_reviews.py": 1,
        "app/policy_admin/service.py": 1,
        "app/store_watch.py": 1,
        "core/name_claims.py": 2,  # one of them at growing intervals
        "guards/call_endings.py": 1,
        "oauth/client/tokens.py": 1,
        "stores/handover.py": 1,
    },
}


@dataclass(frozen=True)
class Import:
    name: str
    line: int
    lazy: bool


def _is_within(name: str, place: str) -> bool:
    """Whether `name` is `place` or below it; a star in `place` stands for one package."""
    parts, wanted = name.split("."), place.split(".")
    return len(parts) >= len(wanted) and all(
        w in (p, "*") for p, w in zip(parts, wanted, strict=False)
    )


def _is_in_one_of(name: str, places: set[str]) -> bool:
    return any(_is_within(name, place) for place in places)


def _module(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@lru_cache(maxsize=1)  # the rules look at one file after the other
def _list_nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def _imports(module: str, is_package: bool, tree: ast.Module) -> Iterator[Import]:
    lazy_blocks = [
        node
        for node in _list_nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    inside = {id(node) for block in lazy_blocks for node in ast.walk(block)}
    for node in _list_nodes(tree):
        lazy = id(node) in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                here = module.split(".")
                kept = len(here) - node.level + (1 if is_package else 0)
                origin = ".".join(here[:kept] + ([origin] if origin else []))
            if origin == "__future__":
                continue
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}", node.lineno, lazy)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr == "create_connection"
            and ast.unparse(node) == "socket.create_connection"
        ):
            yield Import("socket.create_connection", node.lineno, lazy)


def _may_use_ours(module: str, found: Import) -> bool:
    if found.name in ("dragoman", "dragoman.__version__"):
        return True
    if module in RELAY or module in SILENT:
        lazy = LAZY.get(module, set()) if found.lazy else set()
        return _is_in_one_of(found.name, RELAY | lazy)
    package, part = (".".join(module.split(".")[:depth]) for depth in (2, 3))
    if package == "dragoman.cli" and _is_in_one_of(found.name, HEAVY) and not found.lazy:
        return False
    if part in WITHIN and _is_within(found.name, package):
        return _is_in_one_of(found.name, WITHIN[part] | {part})
    return _is_in_one_of(found.name, OURS.get(package, PACKAGE) | {package})


def _may_use_theirs(module: str, found: Import) -> bool:
    homes = [home for name, home in HOMES.items() if _is_within(found.name, name)]
    if homes:
        if module in RELAY:
            return found.lazy and module in homes[0]
        return _is_in_one_of(module, homes[0])
    return found.name.split(".")[0] in sys.stdlib_module_names


# --- wiring, tasks, versions: each yields the lines where a file breaks the rule ------------------

_REVISION = {
    name
    for name, value in vars(revisions).items()
    if not name.startswith("_")
    and (isinstance(value, revisions.Revision) or value in (revisions.MODERN, revisions.HANDSHAKE))
}
_REVISION_TEXT = re.compile(r"20\d\d-\d\d-\d\d")
_DIALECT = {
    name
    for home in (dialects, dialects.operations)
    for name, value in vars(home).items()
    if value in dialects.SPOKEN.values() or (isinstance(value, str) and value in dialects.SPOKEN)
}
_DIALECT_TEXT = re.compile(rf"({'|'.join(map(re.escape, dialects.SPOKEN))})(\.0)?")


def _compared(tree: ast.Module, names: set[str], texts: re.Pattern[str]) -> Iterator[int]:
    """Finds comparisons with a value that is called or says such. `is None` is none of them."""

    def is_version(node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(is_version, node.elts))
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and texts.fullmatch(node.value) is not None
        if isinstance(node, ast.Subscript):
            return is_version(node.value)
        return (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")) in names

    for node in _list_nodes(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            is_null = any(isinstance(one, ast.Constant) and one.value is None for one in operands)
            if not is_null and any(map(is_version, operands)):
                yield node.lineno
        elif isinstance(node, ast.MatchValue) and is_version(node.value):
            yield node.value.lineno


def _find_revisions(module: str, tree: ast.Module) -> Iterator[int]:
    speakers = {"dragoman.mcp", "dragoman.app", "dragoman.cli", "dragoman.core"}
    if _is_in_one_of(module, speakers) and not _is_within(module, REVISION_HOME):
        yield from _compared(tree, _REVISION, _REVISION_TEXT)


def _find_dialects(module: str, tree: ast.Module) -> Iterator[int]:
    speakers = {"dragoman.a2a", "dragoman.app", "dragoman.cli"}
    if _is_in_one_of(module, speakers) and not _is_within(module, DIALECT_HOME):
        yield from _compared(tree, _DIALECT, _DIALECT_TEXT)


def _find_tasks(module: str, tree: ast.Module) -> Iterator[int]:
    started = ("create_task", "ensure_future")
    if module == TASK_HOME:
        return
    for node in _list_nodes(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.ImportFrom) else []
        if getattr(node, "attr", "") in started or any(name in started for name in names):
            yield getattr(node, "lineno", 0)


def _find_late_wiring(module: str, tree: ast.Module) -> Iterator[int]:
    """In `app`, an object is finished when it is built: only its own constructor sets a field."""
    if not _is_within(module, "dragoman.app"):
        return
    owners: dict[int, tuple[str, str]] = {}
    for owner in _list_nodes(tree):
        if isinstance(owner, ast.ClassDef):
            for function in owner.body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    owners |= {id(node): (owner.name, function.name) for node in ast.walk(function)}
    for node in _list_nodes(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            yield node.lineno
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        name, method = owners.get(id(node), ("", ""))
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        in_constructor = method in ("__init__", "__post_init__")
        if not is_own or not (in_constructor or f"{name}.{node.attr}" in LIFECYCLE):
            yield node.lineno


def _find_unnamed_uses(module: str, tree: ast.Module) -> Iterator[int]:
    """Every call that reads a secret says by a `SecretUse` who wrote the reference."""
    if module == "dragoman.core.secret_references":
        return
    for node in _list_nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        reader, given = node.func, node.args
        if getattr(reader, "id", "") == "partial" and given:
            reader, given = given[0], given[1:]
        name = getattr(reader, "attr", "")
        is_reader = name in SECRET_READERS or (name == "resolve" and bool(given))
        uses = [one.value for one in node.keywords if one.arg == "use"] or given[1:2]
        if is_reader and not any(map(_is_secret_use, uses)):
            yield node.lineno


def _is_secret_use(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    name = str(getattr(called, "id", getattr(called, "attr", "")))
    return name == "SecretUse" or name.lower().endswith("use")


def _find_claimed_owners(module: str, tree: ast.Module) -> Iterator[int]:
    for node in _list_nodes(tree):
        is_author = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Author"
        if is_author and getattr(node, "attr", "") == "OWNER" and module not in OWNER_SOURCES:
            yield getattr(node, "lineno", 0)


def _find_outage_lines(module: str, tree: ast.Module) -> Iterator[int]:
    for handler in _list_nodes(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
            continue
        if "StorageFailed" in ast.unparse(handler.type):
            for node in ast.walk(handler):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in LOUD:
                    yield node.lineno


def _is_own_pattern(node: ast.expr) -> bool:
    """Whether a pattern is made of literals, constants and escaped text only."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name.isupper()
    if isinstance(node, ast.JoinedStr):
        return all(map(_is_own_pattern, node.values))
    if isinstance(node, ast.FormattedValue):
        return _is_own_pattern(node.value)
    if isinstance(node, ast.BinOp):
        return _is_own_pattern(node.left) and _is_own_pattern(node.right)
    if isinstance(node, ast.Call):
        words = ast.unparse(node.func)
        if words == "re.escape":
            return True
        return words.endswith(".join") and all(map(_is_own_pattern, node.args))
    return False


def _find_patterns(module: str, tree: ast.Module) -> Iterator[int]:
    if module in PATTERNS or _is_within(module, "dragoman.cli"):
        return  # commands read the files and the answers of the user who runs them
    for node in _list_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "re":
            yield node.lineno
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MAKES_PATTERN
            and ast.unparse(node.func.value) == "re"
            and not (node.args and _is_own_pattern(node.args[0]))
        ):
            yield node.lineno


RULES: dict[str, tuple[str, Callable[[str, ast.Module], Iterator[int]]]] = {
    "revisions": ("compares an MCP revision: ask mcp.protocol for a capability", _find_revisions),
    "dialects": ("compares an A2A version: ask the dialect for a capability", _find_dialects),
    "tasks": ("starts a task itself: use core.background", _find_tasks),
    "secrets": ("reads a secret without saying who wrote the reference", _find_unnamed_uses),
    "owners": ("says that the owner wrote a reference: see OWNER_SOURCES", _find_claimed_owners),
    "outages": ("logs each failure of a store: use STORAGE_OUTAGE", _find_outage_lines),
    "patterns": ("makes a regular expression of what may be text of others", _find_patterns),
    "wiring": (
        "sets an attribute after construction: pass it to the constructor",
        _find_late_wiring,
    ),
}


def violations(path: str, source: str) -> list[str]:
    """What is wrong with the file at `path`, which is relative to `src`."""
    module, tree = _module(path), ast.parse(source)
    found = []
    for one in _imports(module, path.endswith("__init__.py"), tree):
        ours = _is_within(one.name, "dragoman")
        if module in SILENT and not one.lazy:
            found.append(
                f"{path}:{one.line} imports {one.name}; this package's __init__ imports nothing"
            )
        elif not (_may_use_ours if ours else _may_use_theirs)(module, one):
            found.append(f"{path}:{one.line} imports {one.name}, which {module} may not")
    for node in _list_nodes(tree):
        if (
            isinstance(node, ast.Name)
            and node.id == "print"
            and not _is_in_one_of(module, PRINTERS)
        ):
            found.append(f"{path}:{node.lineno} prints")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno} {node.name} is {length} lines long")
    for rule, (problem, find) in RULES.items():
        lines = sorted(find(module, tree))
        excepted = EXCEPTIONS.get(rule, {}).get(path.removeprefix("dragoman/"), 0)
        if len(lines) > excepted:
            found += [f"{path}:{line} {problem} ({rule})" for line in lines]
        elif len(lines) < excepted:
            found.append(f'{path}: lower its entry in EXCEPTIONS["{rule}"] to {len(lines)}')
    return found


def test_every_module_follows_the_architecture_rules() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    assert paths
    assert not [
        violation
        for path in paths
        for violation in violations(str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8"))
    ]


def test_every_exception_names_an_existing_file() -> None:
    gone = [
        f"{rule}: {path}"
        for rule, paths in EXCEPTIONS.items()
        for path in paths
        if not (SOURCE / "dragoman" / path).exists()
    ]
    assert not gone
    assert EXCEPTIONS.keys() <= RULES.keys()


PLANTED = {
    "core uses a third party": ("core/x.py", "import msgspec"),
    "core uses a package": ("core/x.py", "from dragoman.wire import json"),
    "wire uses a package": ("wire/x.py", "import dragoman.core.errors"),
    "wire uses processes": ("wire/x.py", "import dragoman.processes.sandbox"),
    "processes uses wire": ("processes/x.py", "import dragoman.wire.json"),
    "processes uses a package": ("processes/x.py", "import dragoman.mcp.config"),
    "core uses processes": ("core/x.py", "import dragoman.processes.sandbox"),
    "cli uses child processes": ("cli/x.py", "import dragoman.processes.sandbox"),
    "wire uses another third party": ("wire/x.py", "import httptools"),
    "a package uses a sibling": ("web/x.py", "import dragoman.mcp.server.dispatcher"),
    "a package uses a sibling, relatively": ("web/x.py", "from ..mcp import server"),
    "a package's __init__ uses a sibling, relatively": ("web/__init__.py", "from .. import mcp"),
    "a package uses a sibling within a function": ("web/x.py", "def f():\n    import dragoman.mcp"),
    "a package that is to come uses a sibling": ("a2a/x.py", "from dragoman import mcp"),
    "a package uses the composition root": ("mcp/x.py", "from dragoman.app.app import run"),
    "a package uses the configuration": ("mcp/x.py", "from dragoman import config"),
    "the configuration uses a package": (
        "config.py",
        "import dragoman.mcp.server.dispatcher",
    ),
    "cli uses a package": ("cli/x.py", "from dragoman.guards import audit"),
    "home uses a package": ("home.py", "from dragoman.core.errors import HubError"),
    "home uses a third party": ("home.py", "import msgspec"),
    "relay uses core at once": ("mcp/relay.py", "from dragoman.core.errors import HubError"),
    "relay uses core's hub lazily": ("mcp/relay.py", "def f():\n    import dragoman.core.hub"),
    "relay uses msgspec lazily": ("mcp/relay.py", "def f():\n    import msgspec.json as m"),
    "relay uses uvloop at once": ("mcp/relay.py", "import uvloop"),
    "relay uses a neighbour": ("mcp/relay.py", "import dragoman.mcp.server.dispatcher"),
    "framing uses msgspec": ("mcp/protocol/framing.py", "import msgspec"),
    "__main__ uses cli at once": ("__main__.py", "from dragoman.cli import main"),
    "dragoman/__init__ imports": ("__init__.py", "import sys"),
    "dragoman/__init__ uses a package": ("__init__.py", "def f():\n    import dragoman.web"),
    "mcp/__init__ imports": ("mcp/__init__.py", "from dragoman.mcp.relay import run"),
    "click outside cli": ("web/x.py", "import click"),
    "sqlite3 outside stores": ("guards/x.py", "from sqlite3 import connect"),
    "msgspec in net": ("net/x.py", "import msgspec"),
    "an undeclared third party": ("net/x.py", "import aiohttp"),
    "another HTTP client": ("mcp/x.py", "import urllib.request"),
    "another HTTP client, from": ("mcp/x.py", "from http import client"),
    "another HTTP client, by socket": (
        "web/x.py",
        "import socket\nsocket.create_connection(('h', 1))",
    ),
    "another HTTP client, by name": ("web/x.py", "from socket import create_connection"),
    "a print": ("web/x.py", "print('x')"),
    "a print handed on": ("web/x.py", "import sys\nshow = print"),
    "a function too long": ("web/x.py", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
    "mcp/server uses mcp/client": ("mcp/server/x.py", "from dragoman.mcp.client import session"),
    "mcp/client uses mcp/server": ("mcp/client/x.py", "import dragoman.mcp.server.tasks"),
    "mcp/client uses mcp/server, relatively": ("mcp/client/x.py", "from ..server import tasks"),
    "mcp/protocol uses mcp/config": ("mcp/protocol/x.py", "from dragoman.mcp import config"),
    "a2a/protocol uses a2a/cards": ("a2a/protocol/x.py", "from dragoman.a2a.cards import build"),
    "a2a/cards uses a2a/client": ("a2a/cards/x.py", "from dragoman.a2a.client import client"),
    "a2a/server uses a2a/client": ("a2a/server/x.py", "from dragoman.a2a.client import client"),
    "a2a/server uses a2a/remote": ("a2a/server/x.py", "import dragoman.a2a.remote.registry"),
    "a2a/client uses a2a/remote": ("a2a/client/x.py", "import dragoman.a2a.remote.registry"),
    "a2a/remote uses a2a/server": ("a2a/remote/x.py", "import dragoman.a2a.server.task"),
    "oauth/client uses oauth/server": ("oauth/client/x.py", "import dragoman.oauth.server.jwks"),
    "a package uses the OAuth client": ("mcp/client/x.py", "import dragoman.oauth.client.tokens"),
    "cli uses a store at once": ("cli/x.py", "from dragoman.stores.keys import KeyStore"),
    "cli uses a hub at once": ("cli/x.py", "from dragoman.app import run"),
    "cli uses a server": ("cli/x.py", "from dragoman.mcp.server import dispatcher"),
    "cli uses the remote agents": ("cli/x.py", "from dragoman.a2a.remote import registry"),
    "a task by asyncio": ("web/x.py", "import asyncio\nasyncio.create_task(f())"),
    "a task by the loop": ("core/x.py", "def f(loop):\n    loop.create_task(g())"),
    "a task by a future": ("mcp/x.py", "import asyncio\nasyncio.ensure_future(f())"),
    "a task by name": ("net/x.py", "from asyncio import create_task"),
    "a pattern of a caller": ("web/x.py", "import re\ndef f(text):\n    re.search(text, 'x')"),
    "a pattern of a server": ("mcp/x.py", "import re\nx = re.compile(schema['pattern'])"),
    "a pattern in a template": ("guards/x.py", "import re\nx = re.compile(rf'^{name}$')"),
    "a pattern by name": ("net/x.py", "from re import compile"),
    "names compared at any length": ("web/x.py", "import difflib"),
    "a revision compared": ("mcp/server/x.py", "if client.revision >= R2511: pass"),
    "a revision among some": ("mcp/client/x.py", "x = r in (R2024, R2503)"),
    "a revision by its date": ("mcp/server/x.py", 'x = y == "2025-11-25"'),
    "a revision by its place": ("mcp/client/x.py", "x = revisions.MODERN[-1] in versions"),
    "a revision matched": ("mcp/x.py", "match r:\n    case revisions.R2607: pass"),
    "a dialect compared": ("a2a/client/x.py", "x = endpoint.version == V10"),
    "a dialect's module compared": ("a2a/server/x.py", "x = dialect is v03"),
    "a dialect by its number": ("a2a/cards/x.py", 'x = "0.3" == wanted'),
    "an attribute of another object set": ("app/x.py", "def f(hub):\n    hub.results = 1"),
    "an attribute of a member set": (
        "app/x.py",
        "class A:\n    def __init__(self, b):\n        self.b = b\n        self.b.c = 1",
    ),
    "an attribute of an item set": ("app/x.py", "def f(hub):\n    hub.catalogs[1].review = 2"),
    "an attribute set by setattr": ("app/x.py", "def f(hub):\n    setattr(hub, 'results', 1)"),
    "a field set after construction": (
        "app/x.py",
        "class A:\n    def join(self, hub):\n        self.hub = hub",
    ),
    "a secret without its writer": ("web/x.py", 'secrets.resolve(reference, "server")'),
    "a secret without a use": ("mcp/x.py", "secrets.expand_to_send(text)"),
    "a port without a use": ("oauth/x.py", 'self._resolve_secret(one, "[auth]")'),
    "a partial without a use": ("app/x.py", 'partial(secrets.expand_to_send, owner="x")'),
    "the owner claimed elsewhere": ("web/x.py", "use = SecretUse(Author.OWNER, 'x')"),
    "a failure of a store logged by itself": (
        "core/x.py",
        "def f():\n    try: g()\n    except StorageFailed as e: log.error('%s', e)",
    ),
    "a field set by a function": ("app/policy_admin/x.py", "def f(self):\n    self.hub = 1"),
}


@pytest.mark.parametrize("sin", PLANTED)
def test_a_planted_violation_is_found(sin: str) -> None:
    path, source = PLANTED[sin]
    assert len(violations(f"dragoman/{path}", source)) == 1


ALLOWED = {
    "a secret with its writer": ("web/x.py", "secrets.resolve(one, SecretUse(author, 'x'))"),
    "a secret with a use": ("app/x.py", "partial(secrets.expand, use=build_use(one))"),
    "a path resolved": ("web/x.py", "path.resolve(strict=True)"),
    "core uses itself": ("core/x.py", "import asyncio\nfrom dragoman.core.call import Call"),
    "wire uses its codec": ("wire/x.py", "import msgspec\nfrom dragoman.wire.json import decode"),
    "processes uses core": ("processes/x.py", "from dragoman.core.errors import Unreachable"),
    "a package uses processes": ("mcp/client/x.py", "import dragoman.processes.child_process"),
    "a package uses core, wire and its parties": (
        "web/x.py",
        "import httptools\nfrom dragoman import __version__\nfrom dragoman.core import hub\n"
        "from ..wire import json\nfrom . import app",
    ),
    "a configuration has OAuth settings": (
        "mcp/config.py",
        "from dragoman.oauth.config import OAuthSettings",
    ),
    "net uses urllib.parse and socket": ("net/x.py", "import urllib.parse, socket, http"),
    "a config file": ("net/config.py", "import msgspec"),
    "the configuration": (
        "config.py",
        "from dragoman.mcp import config\nimport dragoman.net.config",
    ),
    "the composition root": ("app/x.py", "import dragoman.stores.audit"),
    "cli": ("cli/x.py", "import click\nfrom dragoman import config, home\nprint(1)"),
    "cli without a hub": (
        "cli/x.py",
        "def f():\n    from dragoman.stores.keys import KeyStore\n    import dragoman.a2a.client",
    ),
    "cli with a hub": ("cli/x.py", "def f():\n    from dragoman.app.run import run"),
    "cli for its types": ("cli/x.py", "if TYPE_CHECKING:\n    from dragoman.app.app import App"),
    "a side of a protocol": (
        "a2a/remote/x.py",
        "from dragoman.a2a.client import client\nfrom dragoman.a2a.protocol import errors",
    ),
    "a capability": ("mcp/server/x.py", "if revision.has_batches: pass\nx = revision is None"),
    "the home of revisions": ("mcp/protocol/x.py", "x = revision >= R2511"),
    "the home of dialects": ("a2a/protocol/dialects/x.py", "x = version == V10"),
    "the home of tasks": ("core/background.py", "import asyncio\nasyncio.create_task(f())"),
    "a pattern of constants": (
        "web/x.py",
        "import re\nA = re.compile(rf'{B}+' + C, re.I)\nD = re.search(re.escape(name), text)",
    ),
    "names compared in bounds": ("core/nearest_names.py", "from difflib import SequenceMatcher"),
    "a constructor": (
        "app/x.py",
        "class A:\n    def __init__(self):\n        self.a, self.b = 1, 2",
    ),
    "relay": (
        "mcp/relay.py",
        "from dragoman.mcp.protocol import framing\nfrom dragoman import home\ndef f():\n"
        "    import uvloop\n    from dragoman.app.app import run",
    ),
    "__main__": ("__main__.py", "def main():\n    from dragoman.cli import main\n    main()"),
}


@pytest.mark.parametrize("virtue", ALLOWED)
def test_allowed_import_is_not_a_violation(virtue: str) -> None:
    path, source = ALLOWED[virtue]
    assert not violations(f"dragoman/{path}", source)


@pytest.mark.parametrize("server", ["mcp.protocol", "web", "cli.base"])
def test_every_error_resolves_in_the_table_of_each_server(server: str) -> None:
    """A row stands only where it differs from that of the class above."""
    table: dict[type[HubError], object] = importlib.import_module(f"dragoman.{server}.errors").TABLE
    assert all(find_row(table, error) is not None for error in list_leaves())
    for error, row in table.items():
        above = [kind for kind in error.__mro__[1:] if kind in table]
        assert not above or table[above[0]] != row, f"{error.__name__} is as {above[0].__name__}"


def test_class_names_are_unique() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
