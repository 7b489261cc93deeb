"""Who may import whom, where each third party lives, how long a thing may be: read from the source.

The rules are the tables below; `violations(path, source)` applies them to one file.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman.core.errors import HubError, leaves

SOURCE = Path(__file__).parent.parent / "src"

LONGEST = {"module": 800, "function": 80}

# On the way from `python -m dragoman mcp` to the relay: whatever these load, every IDE waits for.
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
}  # package __init__s on that way: loading them imports nothing
LAZY = {  # what a function of these may load when it is needed
    "dragoman.__main__": {"dragoman.cli"},
    "dragoman.mcp.relay": {"dragoman.app", "dragoman.core.errors"},
}

# Of our own, besides itself and `dragoman` for its version. A package without a row gets PACKAGE's.
PACKAGE = {"dragoman.core", "dragoman.wire"}
OURS: dict[str, set[str]] = {
    "dragoman.core": set(),
    "dragoman.wire": set(),
    "dragoman.config": {"dragoman.core", "dragoman.*.config", "dragoman.config_layers"},
    "dragoman.config_layers": {"dragoman.core"},
    "dragoman.cli": {
        "dragoman.config",
        "dragoman.config_layers",
        "dragoman.app",
        "dragoman.home",
        "dragoman.core",
    },
    "dragoman.app": {"dragoman"},
    "dragoman.agent": {"dragoman.agents"},  # the names that functions import
    "dragoman.testing": {"dragoman"},
}

# The homes of each third party, and of what only one place may use of the standard library.
HOMES: dict[str, set[str]] = {
    "cedarpy": {"dragoman.policy"},
    "click": {"dragoman.cli"},
    "httptools": {"dragoman.net", "dragoman.web"},
    "jsonschema_rs": {"dragoman.guards"},
    "msgspec": {
        "dragoman.wire",
        "dragoman.config",
        "dragoman.config_layers",
        "dragoman.*.config",
        "dragoman.stores",
        "dragoman.guards",
        "dragoman.mcp",
        "dragoman.policy",
        "dragoman.web",
    },
    "cryptography": {"dragoman.a2a.cards.signing"},
    "google.protobuf": {"dragoman.a2a.protocol.grpc"},
    "grpc": {"dragoman.a2a.client.grpc_channels", "dragoman.a2a.server.grpc_server"},
    "uvloop": {"dragoman.app.process", "dragoman.mcp.relay"},
    "sqlite3": {"dragoman.stores"},
    "urllib.request": {"dragoman.net", "dragoman.cli"},
    "http.client": {"dragoman.net", "dragoman.cli"},
    "socket.create_connection": {"dragoman.net", "dragoman.cli"},
}
PRINTERS = {"dragoman.cli", "dragoman.mcp.relay"}


@dataclass(frozen=True)
class Import:
    name: str
    line: int
    lazy: bool


def _within(name: str, place: str) -> bool:
    """Whether `name` is `place` or lies in it; a star in `place` stands for one package."""
    parts, wanted = name.split("."), place.split(".")
    return len(parts) >= len(wanted) and all(
        w in (p, "*") for p, w in zip(parts, wanted, strict=False)
    )


def _in_one_of(name: str, places: set[str]) -> bool:
    return any(_within(name, place) for place in places)


def _module(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, is_package: bool, tree: ast.Module) -> Iterator[Import]:
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
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
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "socket.create_connection":
            yield Import("socket.create_connection", node.lineno, lazy)


def _may_use_ours(module: str, found: Import) -> bool:
    if found.name in ("dragoman", "dragoman.__version__"):
        return True
    if module in RELAY or module in SILENT:
        lazy = LAZY.get(module, set()) if found.lazy else set()
        return _in_one_of(found.name, RELAY | lazy)
    package = ".".join(module.split(".")[:2])
    return _in_one_of(found.name, OURS.get(package, PACKAGE) | {package})


def _may_use_theirs(module: str, found: Import) -> bool:
    homes = [home for name, home in HOMES.items() if _within(found.name, name)]
    if homes:
        if module in RELAY:
            return found.lazy and module in homes[0]
        return _in_one_of(module, homes[0])
    return found.name.split(".")[0] in sys.stdlib_module_names


def violations(path: str, source: str) -> list[str]:
    """What is wrong with the file at `path`, which is given from `src` on."""
    module, tree = _module(path), ast.parse(source)
    found = []
    for one in _imports(module, path.endswith("__init__.py"), tree):
        ours = _within(one.name, "dragoman")
        if module in SILENT and not one.lazy:
            found.append(
                f"{path}:{one.line} imports {one.name}; this package's __init__ imports nothing"
            )
        elif not (_may_use_ours if ours else _may_use_theirs)(module, one):
            found.append(f"{path}:{one.line} imports {one.name}, which {module} may not")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "print" and not _in_one_of(module, PRINTERS):
            found.append(f"{path}:{node.lineno} prints")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST["function"]:
                found.append(f"{path}:{node.lineno} {node.name} is {lines} lines long")
    if (lines := len(source.splitlines())) > LONGEST["module"]:
        found.append(f"{path} is {lines} lines long")
    return found


def test_every_module_keeps_to_the_import_rule_and_to_its_length() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    assert paths
    assert not [
        violation
        for path in paths
        for violation in violations(str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8"))
    ]


PLANTED = {
    "core uses a third party": ("core/x.py", "import msgspec"),
    "core uses a package": ("core/x.py", "from dragoman.wire import json"),
    "wire uses a package": ("wire/x.py", "import dragoman.core.errors"),
    "wire uses another third party": ("wire/x.py", "import httptools"),
    "a package uses a sibling": ("web/x.py", "from dragoman.mcp.server.dispatcher import Face"),
    "a package uses a sibling, relatively": ("web/x.py", "from ..mcp import server"),
    "a package's __init__ uses a sibling, relatively": ("web/__init__.py", "from .. import mcp"),
    "a package uses a sibling within a function": ("web/x.py", "def f():\n    import dragoman.mcp"),
    "a package that is to come uses a sibling": ("a2a/x.py", "from dragoman import mcp"),
    "a package uses the composition root": ("mcp/x.py", "from dragoman.app.app import run"),
    "a package uses the configuration": ("mcp/x.py", "from dragoman import config"),
    "the configuration uses a package": (
        "config.py",
        "from dragoman.mcp.server.dispatcher import Face",
    ),
    "cli uses a package": ("cli/x.py", "from dragoman.stores import sqlite"),
    "home uses a package": ("home.py", "from dragoman.core.errors import HubError"),
    "home uses a third party": ("home.py", "import msgspec"),
    "relay uses core at once": ("mcp/relay.py", "from dragoman.core.errors import HubError"),
    "relay uses core's hub lazily": ("mcp/relay.py", "def f():\n    import dragoman.core.hub"),
    "relay uses msgspec lazily": ("mcp/relay.py", "def f():\n    import msgspec.json as m"),
    "relay uses uvloop at once": ("mcp/relay.py", "import uvloop"),
    "relay uses a neighbour": ("mcp/relay.py", "from dragoman.mcp.server.dispatcher import Face"),
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
    "a module too long": ("web/x.py", "x = 1\n" * (LONGEST["module"] + 1)),
    "a function too long": ("web/x.py", "def f():\n" + "    x = 1\n" * LONGEST["function"]),
}


@pytest.mark.parametrize("sin", PLANTED)
def test_a_planted_violation_is_found(sin: str) -> None:
    path, source = PLANTED[sin]
    assert len(violations(f"dragoman/{path}", source)) == 1


ALLOWED = {
    "core uses itself": ("core/x.py", "import asyncio\nfrom dragoman.core.call import Call"),
    "wire uses its codec": ("wire/x.py", "import msgspec\nfrom dragoman.wire.json import decode"),
    "a package uses core, wire and its parties": (
        "web/x.py",
        "import httptools\nfrom dragoman import __version__\nfrom dragoman.core import hub\n"
        "from ..wire import json\nfrom . import app",
    ),
    "net uses urllib.parse and socket": ("net/x.py", "import urllib.parse, socket, http"),
    "a config file": ("net/config.py", "import msgspec"),
    "the configuration": (
        "config.py",
        "from dragoman.mcp import config\nimport dragoman.net.config",
    ),
    "the composition root": ("app/x.py", "import dragoman.stores.audit"),
    "cli": ("cli/x.py", "import click\nfrom dragoman import app, config, home\nprint(1)"),
    "relay": (
        "mcp/relay.py",
        "from dragoman.mcp.protocol import framing\nfrom dragoman import home\ndef f():\n"
        "    import uvloop\n    from dragoman.app.app import run",
    ),
    "__main__": ("__main__.py", "def main():\n    from dragoman.cli import main\n    main()"),
}


@pytest.mark.parametrize("virtue", ALLOWED)
def test_what_the_rule_allows_is_not_a_violation(virtue: str) -> None:
    path, source = ALLOWED[virtue]
    assert not violations(f"dragoman/{path}", source)


@pytest.mark.parametrize("face", ["mcp.protocol", "web", "cli.base"])
def test_every_error_has_a_row_in_the_table_of_each_face(face: str) -> None:
    table: dict[type[HubError], object] = importlib.import_module(f"dragoman.{face}.errors").TABLE
    assert not [error.__name__ for error in leaves() if error not in table]
