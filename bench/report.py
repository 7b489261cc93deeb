"""The page: tables first, then the machine and how it was measured. Pure: results to Markdown."""

from collections.abc import Iterable

from bench import agents, bridge, cluster, console, model_agents, policy, rows, stages, workflows
from bench.figures import bad_answers, dig, median, of_size, ratio
from bench.goals import verdicts
from bench.plan import microseconds
from bench.rows import Row
from bench.starts import INTERPRETER, RELAY

HOW = """\
- The far end is one C program, whose own cost is the first row; the load comes from a C program \
that keeps one request in flight on each connection and checks every answer: 200, and a text that \
only the far end can have made from the id of that very request. Anything else is a bad answer.
- CPU per call is user and system time of the target with all its descendants, over the calls of \
the run. It is the figure to compare; times on the clock suffer from whoever else uses the machine.
- Rows take turns (A, B, C, A, B, C), a fresh process each turn. Figures are medians over the \
rounds, ratios are medians of the ratios within a round.
- The target has one core to itself, generator and far end share another. Over stdio the far end \
is a child of the target: it shares the target's core, and its CPU and memory are counted in.
- RSS is summed over the target and its descendants; PSS, in brackets, shares out common pages.
- Clients speak 2026-07-28 where a row does not say otherwise. FastMCP is asked in 2025-11-25, in \
which it is the faster. The SDK-made gateway runs on uvloop and httptools; FastMCP and mcp-proxy \
run on what their packages bring, listed above.
- ContextForge runs as its command starts it, on uvloop and httptools, with SQLite, with its \
logs, metrics, plugins, audit and admin pages off and its caches on, and is asked without a \
session. It is the newest version for the Python that is used.
- The limit rows decode what routing needs and pass bytes on: no guard, no policy, no audit, no \
validation. The two plain ASGI rows do the same on uvicorn and show what the server and the \
client library cost.
- Dragoman runs as `dragoman up` starts it; nothing is switched off for the measurement. Ten \
policies are in force, the four guardrails among them. Its rate limits are above what the load \
generator sends, and each call is charged.
- The a2a-sdk agents run on uvicorn with httptools, on the loop that uvicorn brings where a row \
does not say uvloop, and SQLite writes a log ahead for them as it does for the hub. Statements \
are counted by SQLite itself, with the beginnings and ends of transactions, in runs of their own; \
their text has the values in it.\
"""


def with_own_name_bold(line: list[str]) -> list[str]:
    return [f"**{line[0]}**", *line[1:]] if line[0].startswith("Dragoman") else line


def table(header: Iterable[str], lines: Iterable[list[str]]) -> str:
    names = list(header)
    made = [names, ["---"] + ["---:"] * (len(names) - 1), *map(with_own_name_bold, lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in made) + "\n"


def show(value: float | None, form: str = "{:.1f}") -> str:
    return "" if value is None else form.format(value)


def show_us(value: float | None) -> str:
    return "" if value is None else microseconds(value)


def joined(parts: list[str]) -> str:
    return " / ".join(parts) if all(parts) else ""


def call_lines(calls: dict, listed: list[Row], levels: list[str]) -> list[list[str]]:
    lines = []
    for row in listed:
        records = calls.get(row.name)
        if records is None:
            continue
        if not records:
            lines.append([row.name, "failed", *[""] * 5])
            continue
        limit, sdk = (calls.get(base(row).name, []) for base in (rows.limit_of, rows.sdk_of))
        at = [("load", level) for level in levels]
        lines.append(
            [
                row.name,
                joined([show_us(median(records, *where, "cpu_us")) for where in at]),
                joined([show(ratio(records, limit, *where, "cpu_us")) for where in at]),
                joined([show(ratio(sdk, records, *where, "cpu_us")) for where in at]),
                joined([show(median(records, *where, "per_second"), "{:,.0f}") for where in at]),
                joined([show(ratio(records, sdk, *where, "per_second")) for where in at]),
                str(bad_answers(records)),
            ]
        )
    return lines


def latency_lines(calls: dict, levels: list[str]) -> list[list[str]]:
    lines = []
    for row in rows.OVER_HTTP + rows.OVER_STDIO:
        if records := calls.get(row.name):
            line = [row.name]
            for level in levels:
                shown = [
                    show_us(median(records, "load", level, quantile))
                    for quantile in ("p50_us", "p95_us", "p99_us")
                ]
                line.append(joined(shown))
            lines.append(line)
    return lines


def calls_section(results: dict) -> str:
    calls = results["calls"]
    levels = [str(level) for level in results["plan"]["connections"]]
    at = " / ".join(levels)
    header = [
        f"at {at} connections",
        "CPU per call",
        "x raw proxy",
        "SDK gateway's CPU over this",
        "calls/s",
        "x SDK gateway's calls/s",
        "bad answers",
    ]
    text = "## tools/call\n\nUpstream over HTTP:\n\n"
    text += table(header, call_lines(calls, rows.OVER_HTTP, levels))
    text += "\nUpstream over stdio, against the limit and the SDK's gateway over stdio:\n\n"
    text += table(header, call_lines(calls, rows.OVER_STDIO, levels))
    text += "\nLatency, p50 / p95 / p99:\n\n"
    header = ["", *(f"{level} connection{'s' * (level != '1')}" for level in levels)]
    return text + table(header, latency_lines(calls, levels))


def growth_section(results: dict) -> str:
    lines = []
    for name, records in results["growth"].items():
        for size in results["plan"]["sizes"]:
            sized = of_size(records, size)
            pages = median(sized, "list", "pages")
            lines.append(
                [
                    name,
                    f"{size:,}",
                    show_us(median(sized, "list", "cpu_us")) or "failed",
                    show_us(median(sized, "list", "p50_us")),
                    show(pages, "{:.0f}"),
                    show_us(median(sized, "call", "cpu_us")),
                    show(median(sized, "ready_seconds"), "{:.2f} s"),
                    show(median(sized, "rss_mb"), "{:.0f}")
                    + show(median(sized, "pss_mb"), " ({:.0f}) MB"),
                ]
            )
    header = ["", "tools", "CPU per list", "list p50", "pages", "CPU per call, 16 connections"]
    header += ["ready", "RSS (PSS)"]
    text = "## Growth with the catalog\n\nThe hub gathers its tools from ten servers; the upstream "
    text += "alone has them all. Ready is from exec to the whole list.\n\n"
    return text + table(header, lines)


def memory_section(results: dict) -> str:
    lines = []
    for name, records in results["memory"].items():
        samples = dig(records[0], ("samples",)) if records else None
        if not samples:
            lines.append([name, "failed", "", "", ""])
            continue
        shown = [f"{s['rss_mb']:.1f} ({s['pss_mb']:.1f}) MB" for s in samples]
        grown = samples[-1]["rss_mb"] - samples[-2]["rss_mb"]
        lines.append([name, *shown, f"{grown:+.2f} MB"])
    after = [f"after {mark:,} calls" for mark in results["plan"]["marks"]]
    header = ["RSS (PSS)", "idle", *after, "growth between"]
    return "## Memory\n\n" + table(header, lines)


def start_section(results: dict) -> str:
    start = results["start"]
    lines = []
    for row in (rows.HUB_HTTP, rows.SDK):
        if (records := start.get(row.name)) is not None:
            rss, pss = median(records, "rss_mb"), median(records, "pss_mb")
            lines.append(
                [
                    row.name,
                    show(median(records, "healthy_seconds"), "{:.2f} s"),
                    show(median(records, "ready_seconds"), "{:.2f} s") or "failed",
                    show(rss, "{:.0f}") + show(pss, " ({:.0f}) MB"),
                    str(len(records)),
                ]
            )
    header = ["from exec", "healthy", "first call answered", "idle RSS (PSS)", "starts"]
    text = "## Start\n\n" + table(header, lines)
    lines = []
    for name in (RELAY, INTERPRETER):
        if (records := start.get(name)) is not None:
            first, all_of_it = median(records, "initialize_seconds"), median(records, "seconds")
            lines.append(
                [
                    name,
                    "" if first is None else f"{first * 1e3:.0f} ms",
                    "failed" if all_of_it is None else f"{all_of_it * 1e3:.0f} ms",
                    str(len(records)),
                ]
            )
    header = ["from exec", "`initialize` answered", "100 tools listed, or ended", "starts"]
    return text + ("\n" + table(header, lines) if lines else "")


def streams_section(results: dict) -> str:
    lines = [
        [
            kind,
            show(median(records, "open"), "{:,.0f}") or "failed",
            show(median(records, "kb_each"), "{:.1f} KB"),
            show(median(records, "idle_cpu"), "{:.2f} s"),
        ]
        for kind, records in results["streams"].items()
    ]
    header = ["Dragoman", "open at once", "memory each", "CPU in a second of all of them"]
    return "## Idle streams\n\n" + table(header, lines)


def agent_lines(found: dict) -> list[list[str]]:
    lines = []
    for row in agents.ROWS:
        if (records := found.get(row.name)) is None:
            continue
        line = [row.name]
        for what in (*map(str, agents.CONNECTIONS), "stream", "get"):
            cost = show_us(median(records, "load", what, "cpu_us")) or "failed"
            less = ratio(found.get(row.sdk, []), records, "load", what, "cpu_us")
            line.append(cost + (show(less, " ({:.1f} x)") if row.sdk != row.name else ""))
        most = str(agents.CONNECTIONS[-1])
        line.append(show(median(records, "load", most, "per_second"), "{:,.0f}"))
        lines.append(line)
    return lines


def statement_lines(found: dict) -> list[list[str]]:
    lines = []
    for row in agents.ROWS:
        for length in agents.LENGTHS:
            counted = ("statements", str(length))
            total = median(found.get(row.name, []), *counted, "statements")
            size = median(found.get(row.name, []), *counted, "bytes")
            if total is not None and size is not None:
                each = [f"{total / length:.1f}", f"{size / length:,.0f}"]
                lines.append([row.name, str(length), f"{total:.0f}", *each])
    return lines


def agents_section(results: dict) -> str:
    found = results["agents"]
    one, many = agents.CONNECTIONS
    header = ["CPU, and the SDK's over it", "SendMessage", f"at {many} connections"]
    header += [f"a stream of {agents.EVENTS} events", "GetTask", f"SendMessage/s, {many}"]
    text = "## A2A\n\nAn agent that says again what it is told: a task with one artifact, "
    text += f"completed. A2A 1.0 over JSON-RPC; SendMessage at {one} connection, streams and "
    text += f"GetTask at {many}.\n\n" + table(header, agent_lines(found))
    header = ["a task that is streamed", "events", "statements", "for an event"]
    header += ["characters of SQL for an event"]
    counted = statement_lines(found)
    return text + ("\n" + table(header, counted) if counted else "")


def bridge_lines(found: dict) -> list[list[str]]:
    bases = [found.get(row.name, []) for row in (bridge.SDKS, bridge.CONTEXTFORGE_TOOL)]
    limit = found.get(bridge.RAW.name, [])
    at = [("load", str(count)) for count in bridge.CONNECTIONS]
    lines = []
    for row in bridge.ROWS:
        if (records := found.get(row.name)) is None:
            continue
        if not records:
            lines.append([row.name, "failed", *[""] * 6])
            continue
        lines.append(
            [
                row.name,
                joined([show_us(median(records, *where, "cpu_us")) for where in at]),
                joined([show(ratio(records, limit, *where, "cpu_us")) for where in at]),
                *(
                    joined([show(ratio(base, records, *where, "cpu_us")) for where in at])
                    for base in bases
                ),
                joined([show(median(records, *where, "per_second"), "{:,.0f}") for where in at]),
                joined([show_us(median(records, *where, "p50_us")) for where in at]),
                str(bad_answers(records)),
            ]
        )
    return lines


def bridge_section(results: dict) -> str:
    at = " / ".join(map(str, bridge.CONNECTIONS))
    header = [
        f"at {at} connections",
        "CPU per call",
        "x raw bridge",
        "both SDKs' CPU over this",
        "ContextForge's CPU over this",
        "calls/s",
        "p50",
        "bad answers",
    ]
    text = "## The bridge\n\nAn MCP client calls the skill of an A2A 1.0 agent, which answers each "
    text += "message with one. For the hub the agent is an entry of its configuration; policies, "
    text += "audit, bus and pins are on, as they are by default.\n\n"
    return text + table(header, bridge_lines(results["bridge"]))


def policy_section(results: dict) -> str:
    found = results["policy"]
    lines = []
    for key, name in policy.NAMES.items():
        records = found.get(key, [])
        alone = found.get(f"bare, {key.split()[-1]}", [])
        cost = show(median(records, "cpu_us"), "{:.1f} \u00b5s") or "failed"
        lines.append([name, cost, show(ratio(records, alone, "cpu_us"), "{:.2f}")])
    text = "## Policies\n\nOne decision on a call, the four guardrails counted among the policies. "
    text += "cedarpy is asked the hub's own questions, with policies, schema, entities and request "
    text += "prepared. Anew is for a chain of calls that was not there before.\n\n"
    return text + table(["", "CPU", "x cedarpy alone"], lines)


def stages_section(results: dict) -> str:
    found = results["stages"]
    lines = [["Hub.call without stages", *shown_of(found, "bare_us")]]
    lines += [[name, *shown_of(found, "stages", name)] for name in stages.list_stages(found)]
    lines.append(["Hub.call with all of them", *shown_of(found, "whole_us")])
    text = (
        "## Stages\n\nWhat each stage of the pipeline adds to the CPU of a call, outermost first, "
    )
    text += (
        "in a hub of its own process with ten policies. The call goes to a tool in that process, "
    )
    text += "which suspends once and returns a line of text. Audit and Announce include what the "
    text += "hub writes for many calls at once.\n\n"
    return text + table(["", *stages.NAMES.values()], lines)


def shown_of(found: dict, *path: str) -> list[str]:
    return [
        show(median(found.get(kind, []), *path), "{:z.1f} \u00b5s") or "failed"
        for kind in stages.NAMES
    ]


def workflows_section(results: dict) -> str:
    found = results["workflows"]
    lines = []
    for name in (workflows.OWN, workflows.PEER):
        records = found.get(name, [])
        times = [median(records, figure) for figure in ("cpu_us", "wall_us")]
        start, rate = median(records, "start_ms"), median(records, "queued_per_second")
        lines.append(
            [
                name,
                *(microseconds(value) if value is not None else "failed" for value in times),
                show(start, "{:.2f} ms"),
                show(rate, "{:.0f}"),
            ]
        )
    text = (
        "## Workflows\n\nA run of three steps that do nothing, one after the other, in a process "
    )
    text += "of its own with SQLite. Each step of the hub is a call that passes all stages and is "
    text += "recorded in the audit; DBOS alone calls a function. Queued: 300 runs started at "
    text += "once.\n\n"
    heads = ["", "CPU of a run", "time of a run", "start returns", "queued runs per second"]
    return text + table(heads, lines)


def agent_section(results: dict) -> str:
    found = results["agent"]
    turns = []
    for name in (model_agents.WITH_TOOL, model_agents.WITHOUT_TOOL, rows.HUB_HTTP.name):
        records = found.get(name, [])
        at = [("load", str(count)) for count in model_agents.CONNECTIONS]
        turns.append(
            [
                "Dragoman, the tool alone" if name == rows.HUB_HTTP.name else name,
                joined([show_us(median(records, *where, "cpu_us")) for where in at]),
                joined([show(median(records, *where, "per_second"), "{:,.0f}") for where in at]),
                joined([show_us(median(records, *where, "p50_us")) for where in at]),
            ]
        )
    idle = [
        [
            name,
            show(median(records, "rss_mb"), "{:.1f} MB"),
            show(median(records, "healthy_seconds"), "{:.2f} s"),
            show(median(records, "idle_percent"), "{:.2f} %"),
        ]
        for name in (model_agents.NONE, model_agents.MANY)
        if (records := found.get(name))
    ]
    text = "## Agents with a model\n\nA message to an agent with a manifest. Its model is a server "
    text += "in another process that thinks no time and streams its answers in small pieces: with "
    text += "one tool call it is asked twice. The CPU is the hub's, the tool is the far end's.\n\n"
    counts = " / ".join(map(str, model_agents.CONNECTIONS))
    text += table([f"at {counts} connections", "CPU per message", "messages/s", "p50"], turns)
    text += "\nAgents that nobody asks, and the CPU of a hub that watches their manifests:\n\n"
    return text + table(["", "RSS", "healthy after", "CPU when idle"], idle)


def console_section(results: dict) -> str:
    found = results["console"]
    without = found.get(console.NONE, [])
    lines = [
        [
            kind,
            show(median(records, "idle_share"), "{:.2%}"),
            show(median(records, "call", "per_second"), "{:,.0f}"),
            show(ratio(records, without, "call", "per_second"), "{:.2f}"),
            show(ratio(records, without, "call", "cpu_us"), "{:.2f}"),
        ]
        for kind, records in found.items()
        if records
    ]
    text = "## Consoles\n\nThe event streams of open consoles, on any screen and on the one with "
    text += "the call map, which follows every call. All in one hub, in turns.\n\n"
    header = ["", "of a core when idle", "calls/s, 16 connections", "x without", "CPU x without"]
    return text + table(header, lines)


def goals_section(results: dict) -> str:
    lines = [[v.goal, v.measured, v.word] for v in verdicts(results)]
    return "## Goals\n\n" + table(["", "measured", ""], lines)


def machine_section(results: dict) -> str:
    machine = results["machine"]
    text = "## The machine\n\n"
    text += f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
    text += f"{machine['kernel']}; Python {machine['python']}. Measured on {machine['date']} in "
    text += f"{results['seconds']:.0f} seconds, load average before the run "
    text += f"{machine['load_average_before']:.2f}.\n\n"
    for name, packages in machine["versions"].items():
        listed = ", ".join(f"{package} {version}" for package, version in packages.items())
        text += f"- {name}: {listed or 'not installed'}\n"
    return text


def cluster_section(results: dict) -> str:
    found = results["cluster"]
    base = found.get(cluster.SQLITE.name, [])
    lines = []
    for setup in cluster.SETUPS:
        records = found.get(setup.name, [])
        if not setup.idle:
            lines.append(
                [
                    setup.name,
                    show_us(median(records, "cpu_us")) or "failed",
                    show(ratio(records, base, "cpu_us"), "{:.2f}"),
                    show_us(median(records, "database_us")),
                    show(median(records, "per_second"), "{:,.0f}"),
                    show_us(median(records, "p50_us")),
                    show(median(records, "bad"), "{:.0f}"),
                ]
            )
    idle = found.get(cluster.IDLE.name, [])
    header = ["", "CPU per call of all hubs", "x SQLite", "CPU per call of the database"]
    text = "## Several hubs\n\nOver 16 connections (workers: 64), to one hub after the other; "
    text += "hubs share a core, and the load, the server and the database have the other one. "
    text += "Workers share their cores with all of these. "
    text += "Forwarded: each request goes to the hub that does not own its session.\n\n"
    text += table([*header, "calls/s", "p50", "bad answers"], lines)
    text += f"\nAn idle hub of {cluster.IDLE_HUBS}: "
    text += f"{show(median(idle, 'hub_share'), '{:.2%}') or 'failed'} of a core, "
    text += f"{show(median(idle, 'database_share'), '{:.2%}') or 'failed'} of one of the database, "
    return text + f"{show(median(idle, 'rss_mb'), '{:.0f}') or 'failed'} MB.\n"


SECTIONS = {
    "calls": calls_section,
    "growth": growth_section,
    "memory": memory_section,
    "start": start_section,
    "streams": streams_section,
    "agents": agents_section,
    "bridge": bridge_section,
    "policy": policy_section,
    "stages": stages_section,
    "agent": agent_section,
    "console": console_section,
    "workflows": workflows_section,
    "cluster": cluster_section,
}


def page(results: dict) -> str:
    parts = ["# Benchmarks\n", "Written by `make bench`; do not edit.\n"]
    parts += [section(results) for name, section in SECTIONS.items() if name in results]
    parts += [goals_section(results), machine_section(results)]
    parts += ["## How it measures\n\n" + HOW + "\n"]
    return "\n".join(parts)
