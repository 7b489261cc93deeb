"""Results to Markdown."""

from collections.abc import Iterable
from typing import Any

from conformance.a2a_kits import KIT_RUNS
from conformance.clients import CLIENT_SETS
from conformance.stories import LEFT_OUT
from conformance.suites import SUITES
from conformance.targets import OWN, TARGETS

HEAD = (
    "# Conformance\n\n"
    "Written by `make conformance`; do not edit. The official [conformance suite]"
    "(https://github.com/modelcontextprotocol/conformance) runs against a fixture server made with "
    "the official SDK, first on the fixture itself and then through the hub, with an empty list of "
    "expected failures: a SHOULD that is not met is a failure too. A check counts as different "
    "where it passes on the fixture and not through the hub; each such difference is listed with "
    "its reason, and one without fails the run.\n\n"
    "The hub has the settings of a first run, with three exceptions: it listens on a port of its "
    'own, a server in front of which a suite asks by name has `prefix = ""`, and a fixture on '
    "loopback has `allow_private = true`. All tools are exposed to the stdio clients.\n"
)


def row(cells: Iterable[Any]) -> str:
    return (
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    )


def table(head: list[str], rows: list[list[Any]]) -> str:
    return "\n".join([row(head), row("---" for _ in head), *(row(cells) for cells in rows)])


def versions(found: dict[str, str]) -> str:
    return table(["what", "version"], [[name, version] for name, version in found.items()])


def server(records: list[dict[str, Any]], *, official: bool) -> str:
    targets = [
        name
        for name, target in TARGETS.items()
        if (target.fixture != OWN) == official and any(r["ground"] == name for r in records)
    ]
    rows = []
    for suite in SUITES:
        cells: list[Any] = [SUITES[suite].title]
        for target in targets:
            found = [r for r in records if (r["suite"], r["ground"]) == (suite, target)]
            cells.append(cell(found[0]) if found else "")
        if any(cells[1:]):
            rows.append(cells)
    text = table(["checks passed", *(f"`{name}`" for name in targets)], rows)
    legend = "\n".join(f"- `{name}`: {TARGETS[name].title}" for name in targets)
    return f"{text}\n\n{legend}\n"


def cell(record: dict[str, Any]) -> str:
    text = str(record["passed"])
    if record["skipped"]:
        text += f", {record['skipped']} skipped"
    unexplained = sum(each["reason"] is None for each in record["differences"])
    explained = len(record["differences"]) - unexplained
    if unexplained or (not record["ok"] and not explained):
        text += f", **{unexplained or 'run'} failed**"
    if explained:
        text += f", {explained} explained"
    return text


def differences(records: list[dict[str, Any]]) -> str:
    """One row a check and reason, with the suites and grounds it was seen on."""
    seen: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
    for record in records:
        for each in record["differences"]:
            found = seen.setdefault((each["key"], each["reason"] or "**to be mended**"), [])
            found.append((record, each["message"]))
    if not seen:
        return "None: every check that passes on the fixture passes through the hub.\n"
    rows = []
    for (key, reason), found in seen.items():
        suites = dict.fromkeys(SUITES[record["suite"]].title for record, _ in found)
        targets = dict.fromkeys(f"`{record['ground']}`" for record, _ in found)
        rows.append([f"`{key}`", found[0][1][:200], reason, "; ".join(suites), ", ".join(targets)])
    return table(["check", "what came", "why", "suites", "grounds"], rows) + "\n"


def client(records: list[dict[str, Any]]) -> str:
    rows = []
    for name, chosen in CLIENT_SETS.items():
        for record in records:
            if record["suite"] == name:
                result = "passes" if record["ok"] else "**fails**"
                direct = record["direct"]
                counts = ["" if direct is None else direct, record["passed"]]
                rows.append([chosen.title, f"`{record['ground']}`", *counts, result])
    head = ["suite", "scenario", "checks passed by the SDK's client", "by the hub", "scenario"]
    return table(head, rows) + "\n"


def plain(records: list[dict[str, Any]]) -> str:
    rows = [
        [r["name"], "passes" if r["problem"] is None else f"**{r['problem']}**"] for r in records
    ]
    return table(["what", "result"], rows) + "\n"


LEFT_OUT_OF_LISTS = (
    "Left out are what the hub adds to definitions (`_meta`, `execution`, the name of the server "
    "before a description), what belongs to one hop (`_meta`, `ttlMs` and `cacheScope` of results) "
    "and `isError` where it is false, which is the default."
)
REFERENCES = (
    "Reference servers imported from an IDE's file by `dragoman import`, beside the same servers "
    "without a hub: lists, definitions, instructions and the results of calls, for clients of both "
    "eras, with and without answers to questions. Names are compared without their prefix and with "
    "`_` for what is no letter or digit, as the hub shows them; lists without their order; "
    "descriptions without the server's name before them; the instructions of a server with its "
    "section of the joined text; `_meta`, hashes and times are left out. Then the same with every "
    "server in the sandbox `net`, where `dragoman servers harden` has put it.\n"
)
STORIES = (
    "Self-verifying examples of the SDK: the unmodified client, the hub, the unmodified server, "
    "which the hub reaches over HTTP and over stdio. A difference with a reason is one of "
    "[decision 62](decisions/0062-client-visible-differences.md), and the assertion named is the "
    "one that fails."
)
FRAMEWORKS = (
    "Each agent is served by its framework, with a scripted model, and registered by `dragoman "
    "agents add`. The second turn has to know the first, and a new conversation must not.\n"
)


def compared(records: list[dict[str, Any]]) -> str:
    """How many are the same, a row for each reason of intended differences, and one for each of the
    others."""
    same = sum(record["problem"] is None for record in records)
    text = f"{same} of {len(records)} are the same.\n"
    different = [record for record in records if record["problem"] is not None]
    rows = [
        [record["name"], record["problem"], "**to be mended**", 1]
        for record in different
        if not record.get("reason")
    ]
    for reason in dict.fromkeys(record["reason"] for record in different if record.get("reason")):
        alike = [record for record in different if record.get("reason") == reason]
        first = alike[0]
        name = first["name"] if len(alike) == 1 else f"{first['name']}, and others"
        rows.append([name, first["problem"], reason, len(alike)])
    head = ["what", "difference", "why", "how many"]
    return f"{text}\n{table(head, rows)}\n" if rows else text


KITS = (
    "The official [kit](https://github.com/a2aproject/a2a-tck) against a running hub with the "
    "conformance agent (`tests/peers/conformance_agent.py`), over JSON-RPC, HTTP+JSON and gRPC. "
    "Its branches are run as they are, at the commits named. Branch 1.0-dev is pinned to "
    "specification 1.0.0: in the second and the following runs a small plugin "
    "(`conformance/a2a_plugins/`) gives it the error table and the media type of 1.0.1, and no "
    "check is left out. Any failure without a reason fails the run, a SHOULD and an unexpected "
    "skip too.\n"
)


def kits(records: list[dict[str, Any]]) -> str:
    rows = []
    for record in records:
        failed = f"**{len(record['problems'])}**" if record["problems"] else "0"
        counts = [record["passed"], failed, len(record["explained"]), record["skipped"]]
        levels = ", ".join(f"{name} {count}" for name, count in record["levels"].items())
        title = KIT_RUNS[record["run"]].title
        rows.append([title, f"`{record['commit'][:7]}`", *counts, levels])
    head = ["run", "commit", "passed", "failed", "known", "skipped", "requirements met"]
    return table(head, rows) + "\n"


def known_kits(records: list[dict[str, Any]]) -> str:
    rows = [
        [KIT_RUNS[record["run"]].title, f"`{check}`", came, why]
        for record in records
        for check, came, why in record["explained"]
    ]
    rows += [
        [KIT_RUNS[record["run"]].title, f"`{check}`", message[:200], "**to be mended**"]
        for record in records
        for check, message in record["problems"]
    ]
    return table(["run", "check", "what came", "why"], rows) + "\n" if rows else "None.\n"


SEVERAL_TITLE = "## Several hubs"
SEVERAL = (
    "The official suites and both branches of the A2A kit again, with several hubs on one "
    "PostgreSQL database and a Valkey server ([cluster](cluster.md)), written by `python -m "
    "conformance --hubs 2,3`. A TCP balancer before them knows no affinity: each HTTP request goes "
    "to the next hub, and so does each gRPC connection. What differs from the fixture is counted "
    "as with one hub, and the same reasons hold: each row has the numbers of its row above."
)


def several(results: dict[str, Any]) -> str:
    """The section about several hubs, with a column for each number of them."""
    rows: dict[str, dict[str, str]] = {}
    for size, found in results.items():
        for record in found.get("server", []):
            if TARGETS[record["ground"]].through_hub:
                title = f"as a server: {SUITES[record['suite']].title}, `{record['ground']}`"
                rows.setdefault(title, {})[size] = cell(record)
        for name, chosen in CLIENT_SETS.items():
            records = [one for one in found.get("client", []) if one["suite"] == name]
            if records:
                good = sum(one["ok"] for one in records)
                text = f"{good} of {len(records)} scenarios, {sum(o['passed'] for o in records)}"
                rows.setdefault(f"as a client: {chosen.title}", {})[size] = f"{text} checks"
        for record in found.get("a2a-kits", []):
            failed = f"**{len(record['problems'])} failed**" if record["problems"] else "0 failed"
            text = f"{record['passed']} passed, {failed}, {len(record['explained'])} known, "
            title = f"A2A kit: {KIT_RUNS[record['run']].title}"
            rows.setdefault(title, {})[size] = f"{text}{record['skipped']} skipped"
    head = ["checks passed", *(f"{size} hubs" for size in results)]
    cells = [[title, *(found.get(size, "") for size in results)] for title, found in rows.items()]
    wrong = [
        [f"{size} hubs", f"{record['suite']}, `{record['ground']}`", each["key"], each["message"]]
        for size, found in results.items()
        for part in ("server", "client")
        for record in found.get(part, [])
        for each in record["differences"]
        if each["reason"] is None
    ]
    wrong += [
        [f"{size} hubs", KIT_RUNS[record["run"]].title, f"`{check}`", message[:200]]
        for size, found in results.items()
        for record in found.get("a2a-kits", [])
        for check, message in record["problems"]
    ]
    text = f"{SEVERAL_TITLE}\n\n{SEVERAL}\n\n{table(head, cells)}\n"
    if wrong:
        text += f"\n{table(['hubs', 'run', 'check', '**to be mended**'], wrong)}\n"
    return text


def find_several(text: str) -> str:
    """The section about several hubs in a page; empty if there is none."""
    start = text.find(f"{SEVERAL_TITLE}\n")
    if start < 0:
        return ""
    end = text.find("\n## ", start + 1)
    return text[start:] if end < 0 else text[start : end + 1]


def replace_several(text: str, section: str) -> str:
    """The page with that section in place of its own, at its end if it has none."""
    found = find_several(text)
    if not found:
        return f"{text.rstrip()}\n\n{section}"
    after = text.partition(found)[2]
    return text.replace(found, f"{section}\n" if after else section)


def page(results: dict[str, Any], several_hubs: str = "") -> str:
    """`several_hubs` is the section that another run has written."""
    parts = [HEAD, versions(results["versions"])]
    if results.get("server"):
        parts += ["## As a server", server(results["server"], official=False)]
        parts += [
            "### Official fixtures",
            "The everything-servers of the SDKs and of the suite, as they are. What such a server "
            "does not pass itself is not expected through the hub.\n",
            server(results["server"], official=True),
        ]
        parts += ["### Differences", differences(results["server"])]
        parts.append(
            "The prefixed run goes through a small proxy that gives the suite back the names it "
            "knows (`conformance/renaming_proxy.py`); it changes names in requests and lists and "
            "passes everything else byte for byte. The tasks scenarios have a fixture of their "
            "own, since the SDK has no tasks; one of the ten is always skipped by the suite.\n"
        )
    if results.get("lists"):
        good = sum(r["problem"] is None for r in results["lists"])
        same = f"{good} of {len(results['lists'])} are the same."
        parts += ["## Names and nothing else", "Lists, reads and calls over the wire, compared "
                  "member by member with what the fixture itself answers: "
                  f"{same} {LEFT_OUT_OF_LISTS}\n"]  # fmt: skip
        wrong = [r for r in results["lists"] if r["problem"] is not None]
        parts += [plain(wrong)] if wrong else []
    if results.get("client"):
        parts += ["## As a client", "The suite's mock server is the hub's upstream; the suite "
                  "judges what the hub sends. All scenarios that are not about authorization.\n",
                  client(results["client"])]  # fmt: skip
    if results.get("peers"):
        parts += ["## Other people's programs", plain(results["peers"])]
    if results.get("sign-in"):
        parts += ["## Sign-in at the hub", "The hub's own authorization server, with a scripted "
                  "browser as the user.\n", plain(results["sign-in"])]  # fmt: skip
    if results.get("references"):
        parts += ["## Servers from an IDE", REFERENCES, compared(results["references"])]
    if results.get("stories"):
        left_out = "; ".join(f"`{name}` ({why})" for name, why in LEFT_OUT.items())
        parts += ["## The SDKs' stories", f"{STORIES} Left out: {left_out}.\n",
                  compared(results["stories"])]  # fmt: skip
    if results.get("frameworks"):
        parts += ["## Agents of frameworks", FRAMEWORKS, plain(results["frameworks"])]
    if results.get("a2a-kits"):
        parts += ["## A2A: the official kit", KITS, kits(results["a2a-kits"])]
        parts += ["### What is known", known_kits(results["a2a-kits"])]
    if results.get("a2a-peers"):
        parts += ["## A2A: counterparts", "Their clients at a hub, and the hub's client at their "
                  "servers, each in an environment of its own.\n",
                  plain(results["a2a-peers"])]  # fmt: skip
    if several_hubs:
        parts.append(several_hubs)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"
