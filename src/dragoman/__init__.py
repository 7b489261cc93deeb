"""Dragoman: an agent interoperability hub.

This module imports nothing, so that `dragoman mcp` starts fast; the public helpers are loaded
on first use.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from dragoman.mcp.protocol.tool_names import extract_mcp_server as extract_mcp_server
    from dragoman.mcp.protocol.tool_names import format_mcp_tool_name as format_mcp_tool_name
    from dragoman.mcp.protocol.tool_names import is_mcp_tool as is_mcp_tool

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
