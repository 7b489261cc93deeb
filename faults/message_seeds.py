"""Well-formed messages for each way in, from which the message fuzzer starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.peers import wire


@dataclass(frozen=True)
class Seed:
    path: str
    body: Any = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def build_rpc(method: str, params: Any = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method}
    return message if params is None else {**message, "params": params}


ECHO = {"name": "mcp_r_echo", "arguments": {"text": "x"}}
MCP_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("ping", {}),
    ("tools/list", {"cursor": "zz"}),
    ("tools/call", ECHO),
    ("tools/call", {"name": "r.pid", "arguments": {}}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "p", "arguments": {"a": "b"}}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "file:///etc/passwd"}),
    ("resources/subscribe", {"uri": "file:///a"}),
    ("completion/complete",
     {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}}),
    ("logging/setLevel", {"level": "info"}),
    ("tasks/get", {"taskId": "x"}),
    ("tasks/result", {"taskId": "x"}),
    ("tasks/cancel", {"taskId": "x"}),
    ("tasks/list", {"cursor": "x"}),
    ("server/discover", {}),
]  # fmt: skip
LEGACY = [
    Seed("/mcp", build_rpc("initialize", wire.initialize_params())),
    Seed("/mcp", wire.notification("notifications/cancelled", {"requestId": 1, "reason": "r"})),
    Seed("/mcp", wire.notification("notifications/progress", {"progressToken": 1, "progress": 2})),
    Seed("/mcp", [build_rpc("ping"), wire.notification("notifications/initialized")]),
    Seed("/mcp", {"jsonrpc": "2.0", "id": 1, "result": {}}),
    Seed("/mcp", {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m"}}),
    Seed("/mcp", None, "DELETE", {"Mcp-Session-Id": "x"}),
    *(Seed("/mcp", build_rpc(method, {**params, "_meta": {"progressToken": 1}}))
      for method, params in MCP_REQUESTS),
]  # fmt: skip
MODERN = [
    Seed(
        "/mcp",
        build_rpc(method, wire.modern_params(params)),
        headers=wire.modern_headers(method, params),
    )
    for method, params in [
        *MCP_REQUESTS,
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
        (
            "tools/call",
            {**ECHO, "inputResponses": {"a": {"action": "accept"}}, "requestState": "s"},
        ),
    ]
]

TEXT = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "contextId": "c"}
FILE = {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "text/plain", "name": "f"}}
PARTS_03 = [{"kind": "text", "text": "x"}, {"kind": "data", "data": {"text": "y"}}, FILE]
TEXT_03 = {"kind": "message", "messageId": "m", "role": "user", "parts": PARTS_03}
HOOK = {"id": "h", "url": "http://127.0.0.1:9/hook", "token": "t"}
SEND = {
    "message": {**TEXT, "metadata": {"skillId": "r.echo"}, "taskId": "t"},
    "configuration": {
        "historyLength": 3, "acceptedOutputModes": ["text/plain"], "returnImmediately": True,
        "taskPushNotificationConfig": HOOK,
    },
}  # fmt: skip
V10 = {"A2A-Version": "1.0"}
A2A_RPC = [
    Seed("/a2a/quick", build_rpc("SendMessage", {"message": TEXT}), headers=V10),
    Seed("/a2a", build_rpc("SendMessage", SEND), headers=V10),
    Seed("/a2a/quick", build_rpc("SendStreamingMessage", {"message": TEXT}), headers=V10),
    Seed("/a2a/asking", build_rpc("SendMessage", {"message": TEXT}), headers=V10),
    Seed("/a2a", build_rpc("GetTask", {"id": "x", "historyLength": 2}), headers=V10),
    Seed("/a2a", build_rpc("ListTasks", {"pageSize": 5, "pageToken": "x", "contextId": "c",
         "status": "TASK_STATE_WORKING", "includeArtifacts": True}), headers=V10),
    Seed("/a2a", build_rpc("CancelTask", {"id": "x"}), headers=V10),
    Seed("/a2a", build_rpc("SubscribeToTask", {"id": "x"}), headers=V10),
    Seed("/a2a", build_rpc("CreateTaskPushNotificationConfig", {"taskId": "x", **HOOK}),
         headers=V10),
    Seed("/a2a", build_rpc("ListTaskPushNotificationConfigs", {"taskId": "x"}), headers=V10),
    Seed("/a2a", build_rpc("GetExtendedAgentCard", {}), headers=V10),
    Seed("/a2a/quick", build_rpc("message/send", {"message": TEXT_03, "configuration":
         {"blocking": True, "historyLength": 3, "acceptedOutputModes": ["text/plain"]}})),
    Seed("/a2a/quick", build_rpc("message/stream", {"message": TEXT_03})),
    Seed("/a2a", build_rpc("tasks/get", {"id": "x"})),
    Seed("/a2a", build_rpc("tasks/cancel", {"id": "x"})),
    Seed("/a2a", build_rpc("tasks/pushNotificationConfig/set",
         {"taskId": "x", "pushNotificationConfig": HOOK})),
    Seed("/a2a", build_rpc("tasks/send", {"id": "t1", "sessionId": "s",
         "message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}})),
    Seed("/a2a", build_rpc("tasks/get", {"id": "t1"})),
]  # fmt: skip
A2A_REST = [
    Seed("/a2a/quick/message:send", {"message": TEXT}, headers=V10),
    Seed("/a2a/quick/message:stream", {"message": TEXT}, headers=V10),
    Seed("/a2a/message:send", SEND, headers=V10),
    Seed("/a2a/tasks?pageSize=5&status=TASK_STATE_WORKING&pageToken=x", None, "GET", V10),
    Seed("/a2a/tasks/x?historyLength=1", None, "GET", V10),
    Seed("/a2a/tasks/x:cancel", {}, headers=V10),
    Seed("/a2a/tasks/x:subscribe", None, "GET", V10),
    Seed("/a2a/tasks/x/pushNotificationConfigs", HOOK, headers=V10),
    Seed("/a2a/tasks/x/pushNotificationConfigs", None, "GET", V10),
    Seed("/a2a/tasks/x/pushNotificationConfigs/h", None, "DELETE", V10),
    Seed("/a2a/extendedAgentCard", None, "GET", V10),
    Seed("/a2a/quick/v1/message:send", {"message": TEXT_03}),
    Seed("/a2a/v1/tasks/x", None, "GET"),
    Seed("/a2a/tasks/send", {"id": "t", "message": {"role": "user", "parts":
         [{"type": "text", "text": "x"}]}}),
    Seed("/.well-known/agent-card.json", None, "GET"),
    Seed("/a2a/quick/.well-known/agent-card.json", None, "GET", V10),
]  # fmt: skip
V03 = {"A2A-Version": "0.3"}
TEXT_REST_03 = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}
TEXT_01 = {"role": "user", "parts": [{"type": "text", "text": "x"}, {"type": "data", "data": {}}]}
PYTHON_A2A = {"role": "user", "content": {"type": "text", "text": "x"}, "message_id": "m"}
A2A_OLDER = [
    *(Seed(f"/a2a{agent}", build_rpc(method, params), headers=headers)
      for agent, headers in (("/quick", {}), ("/asking", V03))
      for method, params in (
          ("message/send", {"message": TEXT_03, "configuration": {"blocking": False,
           "historyLength": 3, "pushNotificationConfig": HOOK}, "metadata": {"a": 1}}),
          ("message/stream", {"message": {**TEXT_03, "contextId": "c", "referenceTaskIds": ["t"]}}),
          ("tasks/send", {"id": "t", "sessionId": "s", "message": TEXT_01, "historyLength": 1}),
          ("tasks/sendSubscribe", {"id": "u", "message": TEXT_01, "pushNotification": HOOK}),
          ("tasks/get", {"id": "t", "historyLength": 2}),
          ("tasks/cancel", {"id": "t"}),
          ("tasks/resubscribe", {"id": "t"}),
          ("tasks/pushNotification/set", {"id": "t", "pushNotificationConfig": HOOK}),
          ("tasks/pushNotificationConfig/set", {"taskId": "t", "pushNotificationConfig": HOOK}),
          ("tasks/pushNotificationConfig/get", {"id": "t", "pushNotificationConfigId": "h"}),
          ("tasks/pushNotificationConfig/list", {"id": "t"}),
          ("tasks/pushNotificationConfig/delete", {"id": "t", "pushNotificationConfigId": "h"}),
          ("agent/getAuthenticatedExtendedCard", {}),
      )),
    Seed("/a2a", {"skillId": "r.echo", "input": {"text": "x"}}),
    Seed("/a2a/quick/message/send", build_rpc("message/send", {"message": TEXT_03})),
    Seed("/a2a/quick/v1/message:send", {"message": TEXT_REST_03, "configuration": {}}),
    Seed("/a2a/quick/v1/message:stream", {"message": TEXT_REST_03}),
    Seed("/a2a/v1/tasks?pageSize=3", None, "GET", V03),
    Seed("/a2a/v1/tasks/t?historyLength=1", None, "GET", V03),
    Seed("/a2a/v1/tasks/t:cancel", {}, headers=V03),
    Seed("/a2a/v1/tasks/t:subscribe", None, "GET", V03),
    Seed("/a2a/v1/tasks/t/pushNotificationConfigs",
         {"parent": "tasks/t", "configId": "h", "config": {"pushNotificationConfig": HOOK}}),
    Seed("/a2a/v1/tasks/t/pushNotificationConfigs/h", None, "GET"),
    Seed("/a2a/v1/tasks/t/pushNotificationConfigs/h", None, "DELETE"),
    Seed("/a2a/v1/card", None, "GET"),
    Seed("/a2a/quick/tasks/send", {"id": "t", "message": TEXT_01}),
    Seed("/a2a/quick/tasks/send", build_rpc("tasks/send", {"id": "t", "message": PYTHON_A2A,
         "status": {"state": "submitted"}})),
    Seed("/a2a/quick/tasks/sendSubscribe", {"id": "t", "message": TEXT_01}),
    Seed("/a2a/quick/tasks/stream", {"id": "t", "message": PYTHON_A2A}),
    Seed("/a2a/quick/stream", PYTHON_A2A),
    Seed("/a2a/quick/tasks/get", build_rpc("tasks/get", {"id": "t"})),
    Seed("/a2a/quick/tasks/t/cancel", {}),
    Seed("/a2a/quick/tasks/t", None, "GET"),
    Seed("/a2a/quick", PYTHON_A2A),
    Seed("/a2a/quick", {"messages": [PYTHON_A2A], "conversation_id": "c"}),
    Seed("/.well-known/agent.json", None, "GET"),
]  # fmt: skip
GRPC: list[tuple[str, str, dict[str, Any]]] = [
    ("1.0", "SendMessage", {"message": TEXT, "tenant": "quick"}),
    ("1.0", "SendMessage", SEND),
    ("1.0", "SendMessage", {"message": {**TEXT, "parts": [{"data": {"text": "x"}}],
                                        "metadata": {"skillId": "r.echo"}}}),
    ("1.0", "SendStreamingMessage", {"message": TEXT, "tenant": "quick"}),
    ("1.0", "GetTask", {"id": "x", "historyLength": 2}),
    ("1.0", "ListTasks", {"pageSize": 5, "pageToken": "x", "status": "TASK_STATE_WORKING",
                          "statusTimestampAfter": "2026-01-01T00:00:00Z"}),
    ("1.0", "CancelTask", {"id": "x", "metadata": {"a": [1, None]}}),
    ("1.0", "SubscribeToTask", {"id": "x"}),
    ("1.0", "CreateTaskPushNotificationConfig", {"taskId": "x", **HOOK}),
    ("1.0", "GetTaskPushNotificationConfig", {"taskId": "x", "id": "h"}),
    ("1.0", "ListTaskPushNotificationConfigs", {"taskId": "x", "pageSize": 1}),
    ("1.0", "DeleteTaskPushNotificationConfig", {"taskId": "x", "id": "h"}),
    ("1.0", "GetExtendedAgentCard", {}),
    ("0.3", "SendMessage", {"request": TEXT_REST_03, "configuration": {"blocking": True}}),
    ("0.3", "SendStreamingMessage", {"request": TEXT_REST_03}),
    ("0.3", "GetTask", {"name": "tasks/x", "historyLength": 1}),
    ("0.3", "CancelTask", {"name": "tasks/x"}),
    ("0.3", "SubscribeToTask", {"name": "tasks/x"}),
    ("0.3", "CreateTaskPushNotificationConfig", {"parent": "tasks/x", "configId": "h", "config":
        {"name": "tasks/x/pushNotificationConfigs/h", "pushNotificationConfig": HOOK}}),
    ("0.3", "ListTaskPushNotificationConfigs", {"parent": "tasks/x"}),
    ("0.3", "GetExtendedAgentCard", {}),
]  # fmt: skip
"""Version, operation and message."""
POLICY = '@id("x") @why("w") permit (principal, action, resource);'
API = [
    Seed("/api/tools/r.echo/call",
         {"arguments": {"text": "x"}, "can": ["form"], "answers": {}, "handle": "x"}),
    Seed("/api/tools", None, "GET"),
    Seed("/api/tools/r.echo", None, "GET"),
    Seed("/api/status", None, "GET"),
    Seed("/api/mcp/servers", None, "GET"),
    Seed("/api/mcp/servers/r/logs", None, "GET"),
    Seed("/api/a2a/agents", {"url": "http://127.0.0.1:9/x", "name": "n", "token": "env:X",
         "headers": {"A": "b"}, "trust": "external", "timeout_secs": 1}),
    Seed("/api/a2a/agents", None, "GET"),
    Seed("/api/a2a/agents/n", {"timeout_secs": 2}, "PATCH"),
    Seed("/api/a2a/agents/n", None, "DELETE"),
    Seed("/api/a2a/dispatches?limit=5&status=completed&since=1", None, "GET"),
    Seed("/api/policies/validate", {"text": POLICY}),
    Seed("/api/policies/test", {"texts": {"a.cedar": POLICY}}),
    Seed("/api/policies/explain", {"principal": "key:x", "tool": "r.echo", "action": "call",
         "context": {}, "roles": ["a"]}),
    Seed("/api/policies/replay", {"texts": {"a.cedar": POLICY}, "since": 0}),
    Seed("/api/policies/propose", {"principal": "key:x", "since": 0}),
    Seed("/api/policies/who-can?action=call&tool=r.echo", None, "GET"),
    Seed("/api/policies/what-can?principal=key:x", None, "GET"),
    Seed("/api/policies/default", None, "GET"),
    Seed("/api/policies/nosuch", {"enabled": True}, "PATCH"),
    Seed("/api/pins", None, "GET"),
    Seed("/api/pins/diff?name=r.echo", None, "GET"),
    Seed("/api/pins/approve", {"name": "nosuch", "digest": "y", "target": "z"}),
    Seed("/api/pins/reject", {"name": "nosuch", "digest": "y"}),
    Seed("/api/pins/forget", {"name": "nosuch", "target": "t"}),
    Seed("/openapi.json", None, "GET"),
    Seed("/metrics", None, "GET"),
]  # fmt: skip
STDIO = [seed for seed in [*LEGACY, *MODERN] if seed.body is not None]
SSE = [Seed("/PLACE", seed.body) for seed in LEGACY if seed.body is not None]
"""PLACE stands for the path that the stream names."""

DOORS: dict[str, list[Seed]] = {
    "MCP, handshake era": LEGACY,
    "MCP, modern era": MODERN,
    "A2A over JSON-RPC": A2A_RPC,
    "A2A over REST": A2A_REST,
    "REST API": API,
    "stdio": STDIO,
    "HTTP+SSE": SSE,
    "A2A, older dialects": A2A_OLDER,
    "A2A over gRPC": [],
}
"""Each way in and its messages; those of gRPC are in GRPC."""
