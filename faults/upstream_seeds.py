"""What well-behaved MCP servers and A2A agents send, from which those that fuzz the hub start.

ID stands for the id of the request that is answered.
"""

from __future__ import annotations

from typing import Any

from tests.a2a.scripted_agent import card_10, task_10

ID = "ID"
TEXT = {"type": "text", "text": "x", "annotations": {"audience": ["user"], "priority": 0.5}}
RESOURCE = {"uri": "a://b", "mimeType": "text/plain", "text": "t", "blob": "eA=="}
CONTENT: list[Any] = [
    TEXT,
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "resource", "resource": RESOURCE},
    {"type": "resource_link", "uri": "a://b", "name": "n", "size": 3},
]


def build_answer(result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ID, "result": result}


def build_notice(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


FORM = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
MCP: list[Any] = [
    build_answer({"content": CONTENT, "structuredContent": {"a": [1]}, "isError": False}),
    build_answer({"content": [TEXT], "_meta": {"a/b": 1}, "resultType": "complete"}),
    build_answer({"content": [TEXT], "isError": True}),
    build_answer({"resultType": "input_required", "requestState": "s", "inputRequests": {
        "q": {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": FORM}},
    }}),
    build_answer({"task": {"taskId": "t", "status": "working", "ttl": 1, "pollInterval": 1}}),
    {"jsonrpc": "2.0", "id": ID, "error": {"code": -32000, "message": "m", "data": {"a": 1}}},
    {"jsonrpc": "2.0", "id": ID, "error": {"code": -32042, "message": "m", "data": {
        "elicitations": [{"mode": "url", "url": "https://a/b", "elicitationId": "e"}]}}},
    build_notice("notifications/progress", {"progressToken": ID, "progress": 1, "total": 2}),
    build_notice("notifications/message", {"level": "info", "logger": "l", "data": {"a": "b"}}),
    build_notice("notifications/cancelled", {"requestId": ID, "reason": "r"}),
    build_notice("notifications/resources/updated", {"uri": "a://b"}),
    build_notice("notifications/tasks/status", {"taskId": "t", "status": "completed"}),
    build_notice("notifications/elicitation/complete", {"elicitationId": "e"}),
    {"jsonrpc": "2.0", "id": 7, "method": "ping"},
    {"jsonrpc": "2.0", "id": "s", "method": "roots/list"},
    {"jsonrpc": "2.0", "id": 8, "method": "elicitation/create",
     "params": {"message": "m", "requestedSchema": FORM}},
    {"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage", "params": {
        "messages": [{"role": "user", "content": TEXT}], "maxTokens": 5}},
    [build_answer({"content": []}), build_notice("notifications/message", {"data": 1})],
]  # fmt: skip

SCHEMA = {
    "type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"$ref":
    "#/$defs/d"}}, "required": ["a"], "$defs": {"d": {"enum": [1, None]}},
    "additionalProperties": False,
}  # fmt: skip
TOOL = {
    "name": "t", "title": "T", "description": "d", "inputSchema": SCHEMA, "outputSchema": SCHEMA,
    "annotations": {"readOnlyHint": True}, "icons": [{"src": "https://a/b", "sizes": ["1x1"]}],
    "execution": {"taskSupport": "optional"}, "_meta": {"a/b": {}},
}  # fmt: skip
LISTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "prompts": {}, "logging": {},
                         "resources": {"subscribe": True}, "completions": {}, "tasks": {}},
        "serverInfo": {"name": "lists", "version": "1", "title": "L", "icons": []},
        "instructions": "Do it.",
    },
    "tools/list": {"tools": [TOOL, {**TOOL, "name": "u"}, {"name": "v", "inputSchema": {}}],
                   "ttlMs": 5, "cacheScope": "public"},
    "prompts/list": {"prompts": [{"name": "p", "title": "P", "description": "d", "arguments":
                                  [{"name": "a", "required": True}]}]},
    "resources/list": {"resources": [{"uri": "a://b", "name": "n", "mimeType": "text/plain",
                                      "size": 3, "annotations": {"priority": 1}}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a://{b}", "name": "n"}]},
}  # fmt: skip
"""Results by method: the handshake and the lists of a server."""

STATUS = {"state": "TASK_STATE_WORKING", "timestamp": "2026-01-01T00:00:00Z"}
MESSAGE = {
    "messageId": "m", "role": "ROLE_AGENT", "taskId": "t1", "contextId": "c1", "extensions": [],
    "parts": [{"text": "x"}, {"data": {"a": 1}}, {"raw": "aGk=", "mediaType": "text/plain"},
              {"url": "https://a/b", "filename": "f"}], "metadata": {"a": 1},
}  # fmt: skip
ARTIFACT = {"artifactId": "a", "name": "n", "parts": MESSAGE["parts"], "metadata": {"k": "v"}}
A2A: list[Any] = [
    {"task": task_10(artifacts=[ARTIFACT], history=[MESSAGE])},
    {"task": task_10("FAILED", history=[MESSAGE])},
    {"message": MESSAGE},
    {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {**STATUS, "message": MESSAGE},
                      "metadata": {"a": 1}}},
    {"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": ARTIFACT, "append": True,
                        "lastChunk": False}},
]  # fmt: skip
"""Results of a send, and events of a stream, without the envelope of JSON-RPC."""
SKILL = {
    "id": "do", "name": "do", "description": "Does it.", "tags": ["t"], "examples": ["e"],
    "inputModes": ["text/plain"], "outputModes": ["text/plain"],
    "securityRequirements": [{"schemes": {"key": {"list": []}}}],
}  # fmt: skip
SCHEMES = {
    "key": {"apiKeySecurityScheme": {"name": "X-Key", "location": "header"}},
    "oauth": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {
        "tokenUrl": "https://a/t", "scopes": {"s": "d"}}}}},
}  # fmt: skip
SIGNATURE = {"protected": "eyJhbGciOiJFUzI1NiJ9", "signature": "eA", "header": {"kid": "k"}}


def build_cards(url: str) -> list[Any]:
    """Cards of 1.0, 0.3 and 0.1."""
    more = {"provider": {"organization": "o", "url": "https://a"}, "iconUrl": "https://a/i"}
    extension = {"uri": "urn:dragoman:a2a:skill:v1", "required": False, "params": {"a": 1}}
    capable = {"streaming": True, "pushNotifications": True, "extensions": [extension]}
    old = {"name": "old", "description": "d", "version": "1", "url": url, "skills": [SKILL]}
    modes = {"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]}
    return [
        card_10(url, skills=[SKILL], capabilities=capable, **more),
        card_10(url, "JSONRPC:1.0", "HTTP+JSON:1.0", "GRPC:1.0", skills=[SKILL] * 2),
        card_10(url, skills=[SKILL], securitySchemes=SCHEMES, signatures=[SIGNATURE]),
        {**old, **modes, "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC",
         "additionalInterfaces": [{"url": url, "transport": "HTTP+JSON"}],
         "capabilities": {"streaming": True}, "security": [{"key": []}]},
        {**old, "capabilities": {}, "authentication": {"schemes": ["bearer"]}},
    ]  # fmt: skip
