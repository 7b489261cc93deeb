"""`[limits]`: how much, how long, how many. `[bus]`: plug-ins that observe calls or refuse them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from dragoman.core.rate_limiter import Rate, RateRules


def _about(description: str) -> Meta:
    return Meta(description=description)


Seconds = Annotated[float, Meta(gt=0, le=86_400)]
WeekSeconds = Annotated[float, Meta(gt=0, le=604_800)]
Chars = Annotated[int, Meta(ge=1_000)]
Tasks = Annotated[int, Meta(ge=1, le=100_000)]


class LoopSettings(Struct, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["enforce", "warn", "off"],
        _about("Whether calls that repeat without progress are refused, or only warned about."),
    ] = "enforce"
    clients: Annotated[
        Literal["failures", "all"],
        _about(
            "Which calls of clients count: those that fail, or all. The calls that an agent or a "
            "server makes while it serves a call all count."
        ),
    ] = "failures"
    warn: Annotated[
        int,
        Meta(ge=2, le=10_000),
        _about("Identical calls in a row with the same result before a warning is added to it."),
    ] = 3
    refuse: Annotated[
        int, Meta(ge=3, le=10_000), _about("The identical call in a row that is refused.")
    ] = 5
    cycles: Annotated[
        int,
        Meta(ge=2, le=20),
        _about("Times that a cycle of two or three calls may be repeated; then it is refused."),
    ] = 3
    no_progress: Annotated[
        int, Meta(ge=5, le=10_000), _about("Calls in a row without a new result; then refused.")
    ] = 30
    window_secs: Annotated[
        Seconds, _about("Seconds after which calls are forgotten if no other follows.")
    ] = 30
    polling: Annotated[
        list[str],
        Meta(max_length=1_000),
        _about(
            'Tools that are meant to be polled, such as "ci.status" or "*.wait*"; also those whose '
            "annotations have readOnlyHint and idempotentHint."
        ),
    ] = []
    polling_refuse: Annotated[
        int, Meta(ge=3, le=100_000), _about("The identical call of such a tool that is refused.")
    ] = 120


FlowMode = Literal["enforce", "ask", "observe", "off"]
Label = Literal["external_network", "user_input", "pii", "secret", "untrusted_agent"]
Sink = Literal["exec", "write", "net", "agent"]


class LabelRules(Struct, frozen=True, kw_only=True):
    exec: Annotated[
        FlowMode | None,
        _about(
            "If data with this label reaches a tool that runs commands: refuse the call, ask the "
            "user, only record it, or ignore it."
        ),
    ] = None
    write: Annotated[
        FlowMode | None, _about("The same for a tool that changes or deletes data.")
    ] = None
    net: Annotated[
        FlowMode | None, _about("The same for a tool that sends data to the network.")
    ] = None
    agent: Annotated[FlowMode | None, _about("The same for an agent.")] = None


class ToolFlowSettings(Struct, frozen=True, kw_only=True):
    match: Annotated[
        str,
        Meta(min_length=1, max_length=300),
        _about('The tools: "github.create_issue", "github.*"; * stands for anything.'),
    ]
    sources: Annotated[list[Label] | None, _about("Labels of its results, instead of others.")] = (
        None
    )
    sinks: Annotated[
        list[Sink] | None, _about("Where its arguments may go, instead of what is known of it.")
    ] = None
    allow: Annotated[
        list[Label] | None, _about("Labels that may reach it, whatever the rules say.")
    ] = None
    secret_fields: Annotated[
        list[str] | None, _about("Members of its results, such as password, that are secrets.")
    ] = None
    pii_fields: Annotated[
        list[str] | None, _about("Members of its results, such as email, that are personal data.")
    ] = None
    stored_by: Annotated[
        list[str] | None,
        _about(
            'Arguments that name stored data, such as path or key; ["*"]: all data of its server '
            "is labelled together."
        ),
    ] = None
    annotations: Annotated[
        Literal["trust", "ignore"] | None,
        _about("Whether hints that relax a rule are believed, such as readOnlyHint."),
    ] = None
    detect: Annotated[
        bool | None, _about("Whether its results are searched for secrets and personal data.")
    ] = None


class TaintSettings(Struct, frozen=True, kw_only=True):
    clients: Annotated[
        Literal["observe", "enforce"],
        _about(
            "What happens if data from one call of a client reaches another call of the same "
            "session: it is only recorded, or the rules below apply. They always apply to the "
            "calls that an agent or a server makes while it serves a call."
        ),
    ] = "observe"
    unannotated: Annotated[
        Literal["ignore", "assume"],
        _about(
            "Whether tools without annotations are assumed to read from and send to the network, "
            "and to write."
        ),
    ] = "ignore"
    detect: Annotated[
        list[Literal["secret", "pii"]],
        _about("What results are searched for: credentials, numbers of persons and accounts."),
    ] = field(default_factory=lambda: ["secret", "pii"])
    external_network: Annotated[
        LabelRules, _about("Data from the network. Default: exec enforce, otherwise observe.")
    ] = LabelRules()
    untrusted_agent: Annotated[
        LabelRules, _about("Data from untrusted agents. Default: exec enforce, otherwise observe.")
    ] = LabelRules()
    secret: Annotated[
        LabelRules, _about("Credentials. Default: net enforce, otherwise observe.")
    ] = LabelRules()
    pii: Annotated[LabelRules, _about("Personal data. Default: observe.")] = LabelRules()
    user_input: Annotated[
        LabelRules, _about("Messages of clients to agents. Default: observe.")
    ] = LabelRules()
    tools: Annotated[
        list[ToolFlowSettings],
        Meta(max_length=1_000),
        _about("What is known of single tools and servers; later entries take precedence."),
    ] = []


PerMinute = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Burst = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Cost = Annotated[int, Meta(ge=0, le=1_000_000)]


class RateCosts(Struct, frozen=True, kw_only=True):
    request: Annotated[
        Cost, _about("Tokens of a request that calls nothing: a list, a task, the HTTP API.")
    ] = 1
    read: Annotated[
        Cost,
        _about("Tokens of reading or following a resource, getting a prompt, or a completion."),
    ] = 1
    tool: Annotated[Cost, _about("Tokens of a call of a tool.")] = 2
    agent: Annotated[Cost, _about("Tokens of a call or message to an agent.")] = 10


class RateSettings(Struct, frozen=True, kw_only=True):
    per_minute: Annotated[
        PerMinute,
        _about("Tokens that a key without the role owner can use per minute; see rate.costs."),
    ] = 12_000
    burst: Annotated[Burst, _about("Tokens of these that it can use at once.")] = 2_000
    owner_per_minute: Annotated[
        PerMinute,
        _about("Tokens per minute of the hub's own user, and of each key with the role owner."),
    ] = 120_000
    owner_burst: Annotated[Burst, _about("Tokens of these at once.")] = 20_000
    org_per_minute: Annotated[
        PerMinute, _about("Tokens per minute of all keys of an org without that role, together.")
    ] = 120_000
    org_burst: Annotated[Burst, _about("Tokens of these at once.")] = 20_000
    address_per_minute: Annotated[
        PerMinute,
        _about(
            "HTTP requests per minute without a key, or with a wrong one, from one address; an "
            "IPv6 network of 64 bits counts as one."
        ),
    ] = 500
    address_burst: Annotated[Burst, _about("Such requests at once.")] = 500
    costs: RateCosts = RateCosts()

    def build_rules(self) -> RateRules:
        return RateRules(
            principal=Rate(self.per_minute, self.burst),
            owner=Rate(self.owner_per_minute, self.owner_burst),
            org=Rate(self.org_per_minute, self.org_burst),
            address=Rate(self.address_per_minute, self.address_burst),
            costs=asdict(self.costs),
        )


class BudgetSettings(Struct, frozen=True, kw_only=True):
    tokens_per_day: Annotated[
        int,
        Meta(ge=0),
        _about("Tokens of models that one caller may cause per day (UTC); 0: not limited."),
    ] = 0
    cost_per_day: Annotated[
        float,
        Meta(ge=0),
        _about("US dollars of models that one caller may cause per day (UTC); 0: not limited."),
    ] = 0.0


class Limits(Struct, frozen=True, kw_only=True):
    tool_timeout_secs: Annotated[Seconds, _about("Seconds a tool may take, whatever it is.")] = 60
    progress_timeout_secs: Annotated[
        Seconds,
        _about("Total seconds of a tool that reports progress, which restarts tool_timeout_secs."),
    ] = 600
    task_timeout_secs: Annotated[
        WeekSeconds, _about("Seconds of a call that became a task; tasks are kept twice as long.")
    ] = 3_600
    tasks: Annotated[Tasks, _about("Tasks kept at once, running or ended.")] = 1_000
    tasks_each: Annotated[Tasks, _about("Of these, how many of one caller.")] = 100
    result_chars: Annotated[
        Chars, _about("Characters of a text in a result or prompt; longer is cut (see kept_secs).")
    ] = 100_000
    data_chars: Annotated[
        Chars,
        _about(
            "Characters of structured content, and of a resource that is read or embedded in a "
            "result or prompt; long texts in what is longer are cut. Binary data does not count, "
            "nor do code, JSON and XML that are read, and user interfaces."
        ),
    ] = 1_000_000
    kept_secs: Annotated[
        Seconds,
        _about("Seconds for which its caller can read what was cut, at dragoman://results/…."),
    ] = 600
    kept_megabytes: Annotated[
        int,
        Meta(ge=0, le=100_000),
        _about(
            "Megabytes of memory for that; one caller has at most half, and the oldest goes first. "
            "0 keeps nothing."
        ),
    ] = 64
    calls_in_flight: Annotated[
        int, Meta(ge=1), _about("Calls at once, at most half of one caller; others are refused.")
    ] = 1_000
    overload_delay_secs: Annotated[
        float,
        Meta(ge=0.1, le=3_600),
        _about(
            "Seconds by which the hub's event loop may be late; beyond that, calls are refused."
        ),
    ] = 2
    connections: Annotated[
        int,
        Meta(ge=10, le=1_000_000),
        _about(
            "HTTP connections at once; one address without a key, and one caller with one, has at "
            "most half. Beyond that, the one that was idle for longest is closed."
        ),
    ] = 10_000
    body_megabytes: Annotated[
        int,
        Meta(ge=20, le=100_000),
        _about(
            "Megabytes of HTTP request bodies in memory until they are answered; one caller has at "
            "most half of them, and what does not fit waits."
        ),
    ] = 64
    result_megabytes: Annotated[
        int,
        Meta(ge=20, le=100_000),
        _about(
            "Megabytes of large results that are being read from servers and agents over HTTP; "
            "one caller has at most half of them, and what does not fit waits."
        ),
    ] = 64
    chain_depth: Annotated[int, Meta(ge=0, le=63), _about("How deep calls may lead to calls.")] = 5
    chain_calls: Annotated[
        int, Meta(ge=1, le=1_000_000), _about("Calls that one call may lead to, in total.")
    ] = 64
    chain_secs: Annotated[
        WeekSeconds, _about("Seconds in which a call may lead to further ones.")
    ] = 300
    target_calls: Annotated[
        int,
        Meta(ge=2),
        _about("Calls to one server or agent at once; one caller has at most half of them."),
    ] = 400
    question_secs: Annotated[
        Seconds, _about("Seconds in which a question of a tool can be answered.")
    ] = 600
    loop: Annotated[LoopSettings, _about("When repeated calls are refused.")] = field(
        default_factory=LoopSettings
    )
    rate: RateSettings = RateSettings()
    budget: BudgetSettings = BudgetSettings()


class ApprovalSettings(Struct, frozen=True, kw_only=True):
    wait_secs: Annotated[
        float,
        Meta(ge=0, le=3_600),
        _about(
            "Seconds that a call waits for its approval before its client gets an answer; a task "
            "waits until the request expires."
        ),
    ] = 30
    expiry_secs: Annotated[
        float,
        Meta(ge=1, le=2_592_000),
        _about("Seconds in which a request can be decided, unless its policy has @expires."),
    ] = 3_600
    pending: Annotated[
        int, Meta(ge=1, le=10_000), _about("Requests that wait for a decision, in all.")
    ] = 500
    pending_each: Annotated[
        int, Meta(ge=1, le=10_000), _about("Of these, how many of one caller.")
    ] = 50
    keep: Annotated[
        int, Meta(ge=10, le=1_000_000), _about("Decided and expired requests that are kept.")
    ] = 10_000
    result_secs: Annotated[
        WeekSeconds, _about("Seconds for which the result of an approved call is kept.")
    ] = 86_400
    repeat_secs: Annotated[
        float,
        Meta(ge=0, le=604_800),
        _about(
            "Seconds for which the same call of the same caller gets the result again that was "
            "delivered before, and is not made again; at most result_secs. 0: it needs an approval "
            "of its own at once."
        ),
    ] = 600


class BusSettings(Struct, frozen=True, kw_only=True):
    plugins: Annotated[
        list[str],
        _about("Entry points of dragoman.bus in installed packages: they observe or refuse calls."),
    ] = []
    gate_secs: Annotated[
        float, Meta(gt=0, le=60), _about("Seconds a gate has to decide; then the call is refused.")
    ] = 0.25
