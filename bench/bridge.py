"""The bridge: an MCP client in front, an A2A agent behind, whose skill is called as a tool.

Knows how each bridge is started and told of the agent; what is measured is as for any call.
"""

import http.client
import json
import subprocess
from dataclasses import replace

from bench.paths import BENCH_PYTHON, CONTEXTFORGE, CONTEXTFORGE_PYTHON, HUB, PEERS
from bench.plan import Plan, Records, attempt
from bench.processes import clean_environment
from bench.rows import Command, Row, RowContext, peer, write_home
from bench.tables import call_round
from bench.wire import LEGACY, Dialect

CONNECTIONS = (1, 16)
AGENT = "far"  # as the hub's configuration calls it; the skill is what its card names


def hub_bridge(context: RowContext) -> Command:
    text = f'[server]\nhost = "127.0.0.1"\nport = {context.port}\n\n[a2a]\nenabled = true\n'
    text += f'\n[[a2a.external_agents]]\nname = "{AGENT}"\n'
    text += f'url = "http://127.0.0.1:{context.upstream_port}"\n'
    write_home(context.home, text)
    return [HUB, "up", "--home", context.home]


def sdk_bridge(kind: str) -> Row:
    def command(context: RowContext) -> Command:
        where = f"http://127.0.0.1:{context.upstream_port}"
        return [BENCH_PYTHON, PEERS / "sdk_bridge.py", kind, str(context.port), where]

    server = "MCPServer" if kind == "high" else "low-level server"
    return Row(f"both SDKs: {server} + kept a2a client", command)


# What it refuses to start without, what lets it call loopback, and then its own advice for
# production: all that is written or watched beside a call is off, what can be cached is.
CONTEXTFORGE_SECRET = "a secret of the bench, long enough: 0123456789-ABCDEF"
CONTEXTFORGE_ADMIN = "admin@example.com"
CONTEXTFORGE_SETTINGS = {
    "DATABASE_URL": "sqlite:///./mcp.db",  # in the row's own folder
    "JWT_SECRET_KEY": CONTEXTFORGE_SECRET,
    "AUTH_ENCRYPTION_SECRET": f"another: {CONTEXTFORGE_SECRET}",
    "BASIC_AUTH_PASSWORD": "Bench-Passw0rd-xyz",
    "PLATFORM_ADMIN_PASSWORD": "Bench-Passw0rd-xyz!",
    "DEFAULT_USER_PASSWORD": "Bench-Passw0rd-xyz!",
    "PLATFORM_ADMIN_EMAIL": CONTEXTFORGE_ADMIN,
    "PASSWORD_CHANGE_ENFORCEMENT_ENABLED": "false",
    "SSRF_ALLOW_LOCALHOST": "true",
    "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    "MCPGATEWAY_A2A_ENABLED": "true",
    "RATE_LIMITING_ENABLED": "false",
    "TOOL_RATE_LIMIT": "100000000",
    "LOG_LEVEL": "ERROR",
    "DISABLE_ACCESS_LOG": "true",
    "PLUGINS_ENABLED": "false",
    "AUDIT_TRAIL_ENABLED": "false",
    "SECURITY_LOGGING_ENABLED": "false",
    "STRUCTURED_LOGGING_DATABASE_ENABLED": "false",
    "COMPRESSION_ENABLED": "false",
    "VALIDATION_MIDDLEWARE_ENABLED": "false",
    "CORRELATION_ID_ENABLED": "false",
    "OBSERVABILITY_ENABLED": "false",
    "ENABLE_METRICS": "false",
    "DB_METRICS_RECORDING_ENABLED": "false",
    "TOKEN_USAGE_LOGGING_ENABLED": "false",
    "PERFORMANCE_TRACKING_ENABLED": "false",
    "MCPGATEWAY_UI_ENABLED": "false",
    "MCPGATEWAY_ADMIN_API_ENABLED": "false",
    "LLMCHAT_ENABLED": "false",
    "HOT_COLD_CLASSIFICATION_ENABLED": "false",
    "TEMPLATES_AUTO_RELOAD": "false",
    "HEALTH_CHECK_INTERVAL": "300",
    "AUTH_CACHE_ENABLED": "true",
    "AUTH_CACHE_USER_TTL": "300",
    "AUTH_CACHE_TEAM_TTL": "300",
    "AUTH_CACHE_ROLE_TTL": "300",
    "AUTH_CACHE_TEAMS_TTL": "300",
    "REGISTRY_CACHE_ENABLED": "true",
    "REGISTRY_CACHE_TOOLS_TTL": "300",
    "JSON_RESPONSE_ENABLED": "true",
    "DB_POOL_CLASS": "queue",
    "TRANSPORT_TYPE": "streamablehttp",
}


def contextforge(context: RowContext) -> Command:
    return [CONTEXTFORGE, "--host", "127.0.0.1", "--port", str(context.port)]


def contextforge_token() -> str:
    ask: Command = [CONTEXTFORGE_PYTHON, "-m", "mcpgateway.utils.create_jwt_token", "--admin"]
    ask += ["--username", CONTEXTFORGE_ADMIN, "--exp", "600", "--secret", CONTEXTFORGE_SECRET]
    made = subprocess.run(
        ask,
        env=clean_environment(CONTEXTFORGE_SETTINGS),
        capture_output=True,
        text=True,
        timeout=90,
    )
    if made.returncode:
        raise RuntimeError(f"ContextForge gave no token: {made.stderr.strip()[-200:]}")
    return str(made.stdout.split()[-1])


def register_at_contextforge(context: RowContext) -> Dialect:
    """The agent becomes a tool, whose name ContextForge chooses."""
    agent = {
        "name": AGENT,
        "endpoint_url": f"http://127.0.0.1:{context.upstream_port}/a2a",
        "agent_type": "jsonrpc",
        "protocol_version": "1.0",
        "description": "Says the text again",
    }
    authorization = f"Bearer {contextforge_token()}"
    headers = {"Authorization": authorization, "Content-Type": "application/json"}

    def ask(method: str, path: str, body: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", context.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            if answer.status not in (200, 201):
                raise RuntimeError(f"{method} {path} got {answer.status}: {text[:200]}")
            return json.loads(text)
        finally:
            connection.close()

    ask("POST", "/a2a", {"agent": agent})
    (tool,) = ask("GET", "/tools")
    return Dialect(LEGACY, tool["name"], argument="query", authorization=authorization)


RAW = Row("raw bridge (the limit)", peer("raw_bridge.py", "{up}"))
HUB_SKILL = Row("Dragoman", hub_bridge, Dialect(tool=f"{AGENT}.echo"), ready="/healthz")
SDKS = sdk_bridge("low")
SDKS_HIGH = sdk_bridge("high")
CONTEXTFORGE_TOOL = Row(
    "ContextForge's A2A tool on SQLite, 2025-11-25",
    contextforge,
    environment=CONTEXTFORGE_SETTINGS,
    ready="/health",
    register=register_at_contextforge,
)
ROWS = [RAW, HUB_SKILL, SDKS, SDKS_HIGH, CONTEXTFORGE_TOOL]


def bridge(plan: Plan) -> Records:
    plan = replace(plan, connections=CONNECTIONS)
    wanted = [row for row in ROWS if plan.wants(row)]
    found: Records = {row.name: [] for row in wanted}
    for number in range(1, plan.rounds + 1):
        for row in wanted:
            label = f"bridge, round {number} of {plan.rounds}: {row.name}"
            attempt(label, found[row.name], call_round, plan, row, number, label)
    return found
