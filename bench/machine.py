"""The measured machine: processor, kernel, versions. No path and no host name."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bench.paths import (
    BENCH_PYTHON,
    CONTEXTFORGE_PYTHON,
    FASTMCP_PYTHON,
    MCPPROXY_PYTHON,
    PYTHON,
)

ENVIRONMENTS = {
    "hub": (
        PYTHON,
        ["dragoman-hub", "cedarpy", "uvloop", "httptools", "msgspec", "jsonschema-rs"],
    ),
    "SDK-made gateway, limits": (
        BENCH_PYTHON,
        ["mcp", "uvicorn", "uvloop", "httptools", "msgspec", "aiohttp"],
    ),
    "a2a-sdk": (
        BENCH_PYTHON,
        [
            "a2a-sdk",
            "protobuf",
            "httpx",
            "starlette",
            "uvicorn",
            "uvloop",
            "sqlalchemy",
            "aiosqlite",
        ],
    ),
    "FastMCP": (FASTMCP_PYTHON, ["fastmcp", "mcp", "uvicorn", "uvloop", "httptools"]),
    "mcp-proxy": (MCPPROXY_PYTHON, ["mcp-proxy", "mcp", "uvicorn", "uvloop", "httptools"]),
    "ContextForge": (
        CONTEXTFORGE_PYTHON,
        ["mcp-contextforge-gateway", "mcp", "sqlalchemy", "uvicorn", "uvloop", "httptools"],
    ),
}
ASK = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def versions() -> dict[str, dict[str, str]]:
    found = {}
    for name, (python, packages) in ENVIRONMENTS.items():
        try:
            asked = [str(python), "-c", ASK, *packages]
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
            found[name] = json.loads(answer.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            found[name] = {}
    return found


def describe() -> dict:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_gb(), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "versions": versions(),
    }
