"""An MCP server of the demo: looks up terms in a glossary, a Markdown table with two columns.

Run as a program of its own by `python glossary_server.py GLOSSARY.md`, with the standard library
only: a line of JSON in, a line of JSON out. Speaks the revisions that begin with a handshake.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
SHOWN = 12
TOOLS = [
    {
        "name": "define",
        "description": "Explains a term of this hub.",
        "inputSchema": {
            "type": "object",
            "properties": {"term": {"type": "string", "description": "Such as: pin"}},
            "required": ["term"],
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    {
        "name": "list_terms",
        "description": "Lists the terms that `define` knows.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
]


def read_glossary(text: str) -> dict[str, str]:
    """Reads the rows of the table, each under all of its terms: `Call; result`."""
    found: dict[str, str] = {}
    for row in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE):
        terms, meaning = (_strip_markup(cell) for cell in row)
        if terms not in ("term", "---"):
            found |= dict.fromkeys(re.split(r"[,;] ", terms), f"{terms}: {meaning}.")
    return found


def _strip_markup(cell: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").replace("\\|", "|")


def _fold(term: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", term.lower()).strip().removesuffix("s")


def define(glossary: dict[str, str], term: str) -> str:
    folded = {_fold(name): name for name in glossary}
    name = folded.get(_fold(term))
    if name is not None:
        return glossary[name]
    near = difflib.get_close_matches(_fold(term), folded, n=3)
    hint = f" Did you mean {' or '.join(folded[one] for one in near)}?" if near else ""
    known = ", ".join(sorted(glossary, key=str.lower)[:SHOWN])
    return f'The glossary does not have "{term}".{hint} It has {known}, and more.'


def answer(glossary: dict[str, str], method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the result of a request; None for an unknown method."""
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in REVISIONS else REVISIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "glossary", "version": "1.0"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        arguments = params.get("arguments") or {}
        text = ", ".join(sorted(glossary, key=str.lower))
        if params.get("name") == "define":
            text = define(glossary, str(arguments.get("term", "")))
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


def main() -> None:
    glossary = read_glossary(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue  # a notification has no response
        result = answer(glossary, str(request.get("method")), request.get("params") or {})
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        if result is None:
            del reply["result"]
            reply["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
