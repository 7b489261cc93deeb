"""Dragoman: an agent interoperability hub.

This module imports nothing, so that `dragoman mcp` starts fast; the public helpers are loaded
on first use.
"""

__version__ = "0.1.0"

_PUBLIC = {
    "extract_mcp_server": "dragoman.mcp.protocol.tool_names",
    "format_mcp_tool_name": "dragoman.mcp.protocol.tool_names",
    "is_mcp_tool": "dragoman.mcp.protocol.tool_names",
}


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
