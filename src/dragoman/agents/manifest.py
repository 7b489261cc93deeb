"""Agent manifests: `agents/NAME/agent.toml` or `agent.json` in the home.

The manifests of OpenFang and OpenStarry load as they are: their fields are translated, and those
without a meaning here give a warning each. Any other unknown field is an error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from dragoman.agents.config import SkillEntry
from dragoman.agents.manifest_agents import FILES, FOLDER
from dragoman.agents.models.script import ScriptStep
from dragoman.core.errors import ConfigError
from dragoman.core.local_agents import AgentProfile, AgentSchedule, fold_tool_pattern
from dragoman.core.nearest_names import find_nearest
from dragoman.core.usage import Budget

WORKSPACE = "workspace"
MAX_MANIFEST = 1024 * 1024
MAX_HINTS = 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}")


def _about(text: str) -> Meta:
    return Meta(description=text)


class ModelSettings(Struct, frozen=True, kw_only=True):
    provider: Annotated[
        str,
        _about(
            "`openai` for every server with OpenAI's chat completions, `ollama` for one on this "
            "machine, `script` for the steps of [[script]], `client` for the model of the client "
            "that calls, or a provider of the extra `agents`, such as `anthropic`."
        ),
    ] = "openai"
    model: Annotated[str, _about("The name of the model.")] = ""
    base_url: Annotated[str, _about("The URL of the server, up to /v1.")] = ""
    api: Annotated[
        Literal["chat", "responses"],
        _about("OpenAI's interface of the server: chat completions, or the Responses API."),
    ] = "chat"
    api_key_env: Annotated[str, _about("The variable that has the API key.")] = ""
    api_key: Annotated[
        Annotated[str, Meta(pattern="^((env|file|keyring|exec):.+)?$")],
        _about(
            "A reference to the API key, instead of api_key_env: env:NAME, file:PATH, "
            "keyring:SERVICE/NAME or exec:COMMAND."
        ),
    ] = ""
    system_prompt: Annotated[str, _about("The instructions.")] = ""
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        _about("The temperature; default: the provider's."),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, _about("Tokens of an answer; default: the provider's.")
    ] = None
    context_tokens: Annotated[
        int, Meta(ge=1_000), _about("Tokens of the conversation that the model can read.")
    ] = 100_000
    tool_mode: Annotated[
        Literal["native", "constrained"],
        _about("How the model calls tools: by its own tool calls, or by answers in JSON."),
    ] = "native"
    vision: Annotated[bool, _about("Whether the model can see images.")] = True
    timeout_secs: Annotated[
        float,
        Meta(gt=0, le=3_600),
        _about("Seconds until an answer begins; so many, or 60, may pass between its pieces."),
    ] = 120.0
    allow_private: Annotated[
        bool, _about("Whether the name in base_url may lead to a private address.")
    ] = False
    extra: Annotated[dict[str, Any], _about("Further members of each request.")] = {}
    omit: Annotated[
        list[str],
        _about("Members that are left out of each request, for servers with OpenAI's interfaces."),
    ] = []


class Capabilities(Struct, frozen=True, kw_only=True):
    """Nothing is granted that is not named."""

    tools: Annotated[
        list[str], _about("Tools that it may call, with * for anything; built-in ones too.")
    ] = []
    mcp_servers: Annotated[list[str], _about("MCP servers all of whose tools it may call.")] = []
    agents: Annotated[list[str], _about("Agents that it may call, with * for anything.")] = []
    agent_spawn: Annotated[bool, _about("Whether it may start agents of its own.")] = False
    shell: Annotated[list[str], _about('Commands for shell_exec: "git diff *".')] = []
    network: Annotated[list[str], _about("Hosts for web_fetch; * for all public ones.")] = []
    memory_read: Annotated[list[str], _about("Memory keys that it may recall.")] = field(
        default_factory=lambda: ["self.*"]
    )
    memory_write: Annotated[list[str], _about("Memory keys that it may store.")] = field(
        default_factory=lambda: ["self.*"]
    )


class AgentLimits(Struct, frozen=True, kw_only=True):
    turns: Annotated[int, Meta(ge=1, le=1_000), _about("Answers of the model per message.")] = 25
    tool_calls: Annotated[int, Meta(ge=0, le=10_000), _about("Tool calls per message.")] = 100
    parallel: Annotated[int, Meta(ge=1, le=100), _about("Tool calls at once.")] = 8
    tokens_per_day: Annotated[
        int, Meta(ge=0), _about("Tokens of its models per day (UTC); 0: not limited.")
    ] = 0
    cost_per_day: Annotated[
        float, Meta(ge=0), _about("US dollars of its models per day (UTC); 0: not limited.")
    ] = 0.0


class McpExposure(Struct, frozen=True, kw_only=True):
    expose_tools: Annotated[
        list[str], _about("Tools that its own MCP endpoint offers; none by default.")
    ] = []
    private_tools: Annotated[list[str], _about("Tools that it never offers.")] = []
    expose_files: Annotated[
        list[str], _about("Files of its workspace that it offers as resources, with *.")
    ] = []


TEXT_MODES = ("text/plain", "application/json")
IMAGE_MODES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What the models of all providers can see."""


class A2aFacts(Struct, frozen=True, kw_only=True):
    skills: Annotated[list[SkillEntry], _about("Skills on its card besides its tools.")] = []
    input_modes: Annotated[
        list[str] | None,
        _about(
            "The media types it accepts; default: text/plain and application/json, and images "
            "where its model can see them."
        ),
    ] = None
    output_modes: Annotated[list[str], _about("The media types of its answers.")] = field(
        default_factory=lambda: ["text/plain", "application/json"]
    )


class CommandSettings(Struct, frozen=True, kw_only=True):
    argv: Annotated[
        list[str], _about("The program and its arguments, for an agent that is a program.")
    ] = []
    env: Annotated[list[str], _about("Names of environment variables that it gets.")] = []
    sandbox: Annotated[
        Literal["strict", "net", "off"], _about("What the program is kept from.")
    ] = "net"
    timeout_secs: Annotated[
        float, Meta(gt=0, le=86_400), _about("Seconds that one answer may take.")
    ] = 300.0


class ScheduleSettings(Struct, frozen=True, kw_only=True):
    time: Annotated[
        str,
        Meta(min_length=1, max_length=100),
        _about('A cron expression ("0 9 * * 1-5"), or words such as "every 10 minutes".'),
    ]
    message: Annotated[
        str,
        Meta(min_length=1, max_length=10_000),
        _about("The message to the agent; default: that this is a scheduled run."),
    ] = "This is a scheduled run. Do the work that your instructions describe for it."
    time_zone: Annotated[
        str, Meta(max_length=60), _about('The time zone, such as "Europe/Berlin".')
    ] = "UTC"


class Manifest(Struct, frozen=True, kw_only=True):
    name: Annotated[str, _about("The name; default: that of the folder.")]
    description: Annotated[
        str, _about("What it does, for clients and other agents that choose one.")
    ] = ""
    org: Annotated[
        str,
        Meta(pattern=r"^[^\x00-\x1f\x7f*]{1,200}$"),
        _about("The org that it belongs to, as keys do; others do not see it."),
    ] = "default"
    version: Annotated[str, _about("The version on its card and of its MCP server.")] = "1.0.0"
    author: Annotated[str, _about("Its author.")] = ""
    tags: Annotated[list[str], _about("Keywords for search.")] = []
    model: Annotated[ModelSettings, _about("The model that it thinks with.")] = ModelSettings()
    fallback_models: Annotated[
        list[ModelSettings], _about("Models for when the first one cannot answer, in order.")
    ] = []
    capabilities: Annotated[Capabilities, _about("What it may use.")] = Capabilities()
    profile: Annotated[
        Literal["", "minimal", "coding", "research", "messaging", "automation", "full", "custom"],
        _about("A named set of built-in tools that are granted besides."),
    ] = ""
    skills: Annotated[list[str], _about("Skills that it may use, with * for anything.")] = []
    limits: Annotated[AgentLimits, _about("The limits of one message, and of a day.")] = (
        AgentLimits()
    )
    mcp: Annotated[McpExposure, _about("What its own MCP endpoint offers.")] = McpExposure()
    a2a: Annotated[A2aFacts, _about("What its A2A card says.")] = A2aFacts()
    schedule: Annotated[
        list[ScheduleSettings], Meta(max_length=20), _about("When it works by itself.")
    ] = []
    script: Annotated[
        list[ScriptStep], _about('The steps of a script, for the provider "script".')
    ] = []
    function: Annotated[
        str, _about('The Python function of an agent that is one, as "module:function".')
    ] = ""
    command: Annotated[CommandSettings, _about("The program of an agent that is one.")] = (
        CommandSettings()
    )

    @property
    def can_see(self) -> bool:
        """Whether a model of its own thinks for it, and can see images."""
        is_program = bool(self.script or self.function or self.command.argv)
        known = self.model.vision and self.model.provider not in ("script", "client")
        return known and not is_program

    def list_input_modes(self) -> list[str]:
        """Lists the media types that it accepts."""
        if self.a2a.input_modes is not None:
            return self.a2a.input_modes
        return [*TEXT_MODES, *(IMAGE_MODES if self.can_see else ())]


PROFILES: Mapping[str, tuple[str, ...]] = {
    "": (),
    "minimal": ("file_read", "file_list"),
    "coding": ("file_read", "file_list", "file_write", "apply_patch", "shell_exec", "web_fetch"),
    "research": ("web_fetch", "web_search", "file_read", "file_write"),
    "messaging": ("agent_send", "agent_list", "memory_store", "memory_recall"),
    "automation": (
        "file_read", "file_write", "file_list", "web_fetch", "shell_exec", "memory_store",
        "memory_recall", "agent_send", "agent_list", "system_time",
    ),
    "full": ("*",),
    "custom": (),
}  # fmt: skip
"""The tools of a profile, as OpenFang has them."""


class LoadedManifest(Struct, frozen=True):
    manifest: Manifest
    warnings: Sequence[str]
    folder: Path

    def build_profile(self, org: str = "", parent: str = "") -> AgentProfile:
        manifest, granted = self.manifest, self.manifest.capabilities
        return AgentProfile(
            name=manifest.name,
            description=manifest.description,
            tags=tuple(manifest.tags),
            org=org or manifest.org,
            parent=parent,
            workspace=self.folder / WORKSPACE,
            tools=tuple(map(fold_tool_pattern, [*PROFILES[manifest.profile], *granted.tools])),
            servers=tuple(granted.mcp_servers),
            skills=tuple(manifest.skills),
            agents=tuple(granted.agents),
            can_spawn=granted.agent_spawn,
            shell=tuple(granted.shell),
            network=tuple(granted.network),
            memory_read=tuple(granted.memory_read),
            memory_write=tuple(granted.memory_write),
            schedules=tuple(
                AgentSchedule(time=one.time, message=one.message, zone=one.time_zone)
                for one in manifest.schedule
            ),
            budget=Budget(tokens=manifest.limits.tokens_per_day, cost=manifest.limits.cost_per_day),
        )


# --- loading --------------------------------------------------------------------------------------


def list_manifests(home: Path) -> dict[str, Path]:
    """Lists the manifest file of each agent folder of a home, by the folder's name."""
    found: dict[str, Path] = {}
    try:
        folders = sorted((home / FOLDER).iterdir())
    except OSError:
        return found
    for folder in folders:
        if (file := find_manifest(folder)) is not None:
            found[folder.name] = file
    return found


def find_manifest(folder: Path) -> Path | None:
    """Finds the manifest in the folder of an agent."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def load_manifest(file: Path) -> LoadedManifest:
    """Raises `ConfigError` that names the file, the field and the fix."""
    try:
        data = file.read_bytes()[: MAX_MANIFEST + 1]
    except OSError as error:
        raise ConfigError(f'"{file}" cannot be read: {error.strerror}') from None
    if len(data) > MAX_MANIFEST:
        raise ConfigError(f'"{file}" is larger than {MAX_MANIFEST} bytes')
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f'"{file}" is not UTF-8; save it as UTF-8') from None
    return parse_manifest(text, file)


def parse_manifest(text: str, file: Path) -> LoadedManifest:
    try:
        if file.suffix == ".json":
            raw = msgspec.json.decode(strip_comments(text).encode())
        else:
            raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f'"{file}" cannot be parsed: {error}') from None
    if not isinstance(raw, dict):
        raise ConfigError(f'"{file}" must be an object')
    return build_manifest(raw, file)


def build_manifest(raw: Mapping[str, Any], file: Path) -> LoadedManifest:
    """Builds a manifest from parsed data; `file` names it in errors."""
    warnings: list[str] = []
    data = _translate(dict(raw), warnings)
    data.setdefault("name", file.parent.name)
    unknown = list(_list_unknown(data, Manifest, ""))
    if unknown:
        raise ConfigError(f'"{file}": {"; ".join(unknown[:5])}')
    try:
        manifest = msgspec.convert(data, Manifest)
    except msgspec.ValidationError as error:
        raise ConfigError(f'"{file}": {_render_invalid(str(error))}') from None
    if not NAME.fullmatch(manifest.name):
        raise ConfigError(
            f'"{file}": the name {manifest.name[:80]!r} is invalid: use letters, digits, spaces, '
            '"_", "-" and ".", at most 64'
        )
    return LoadedManifest(manifest, [f'"{file}": {one}' for one in warnings], file.parent)


def _render_invalid(problem: str) -> str:
    """Renders a message of msgspec, which ends with the path of the field, with the field first."""
    words, _, path = problem.rpartition(" - at `$.")
    if not words:
        return problem
    return f'the field "{path.rstrip("`")}": {words}'


_SPECIAL = re.compile(r"[\\^$.|?*+(){}\[\]]")
"""What makes a text more than itself as a regular expression."""


def bind_to_parent(loaded: LoadedManifest, parent: Manifest) -> LoadedManifest:
    """Gives an agent that another one has started the models of its parent, unless it names one.
    Those that it names must be where the parent's are: with another URL or variable, an agent could
    send any secret of the hub anywhere. It is no program, which an agent could write itself, and
    its budgets are not higher. Raises `ConfigError`."""
    manifest = loaded.manifest
    if manifest.command.argv or manifest.function:
        raise ConfigError(
            f'agent "{manifest.name}" cannot be a program or a function: an agent starts agents '
            "with a model"
        )
    for step in manifest.script:
        if _SPECIAL.search(step.when):  # a model's expression may take minutes to match
            raise ConfigError(
                f'agent "{manifest.name}": "when" in the script of an agent that was started by '
                "another one must be plain text, not a regular expression"
            )
    if manifest.schedule:
        raise ConfigError(
            f'agent "{manifest.name}" cannot have a schedule in its manifest; use schedule_create'
        )
    manifest = msgspec.structs.replace(
        manifest, limits=_limit_budgets(manifest.limits, parent.limits)
    )
    return LoadedManifest(_bind_models(manifest, parent), loaded.warnings, loaded.folder)


def _limit_budgets(own: AgentLimits, parent: AgentLimits) -> AgentLimits:
    tokens, cost = parent.tokens_per_day, parent.cost_per_day
    return msgspec.structs.replace(
        own,
        tokens_per_day=min(own.tokens_per_day or tokens, tokens) if tokens else own.tokens_per_day,
        cost_per_day=min(own.cost_per_day or cost, cost) if cost else own.cost_per_day,
    )


def _bind_models(manifest: Manifest, parent: Manifest) -> Manifest:
    if manifest.model == ModelSettings(system_prompt=manifest.model.system_prompt):
        if manifest.script:
            return manifest
        model = msgspec.structs.replace(
            parent.model, system_prompt=manifest.model.system_prompt or parent.model.system_prompt
        )
        return msgspec.structs.replace(
            manifest,
            model=model,
            fallback_models=parent.fallback_models,
            script=parent.script,
        )
    allowed = {_find_place(one) for one in (parent.model, *parent.fallback_models)}
    for one in (manifest.model, *manifest.fallback_models):
        if one.provider not in ("script", "client") and _find_place(one) not in allowed:
            raise ConfigError(
                f'agent "{manifest.name}" may only use models where its parent "{parent.name}" '
                "does: with its provider, base_url, api_key_env, api_key and allow_private"
            )
    return manifest


def _find_place(model: ModelSettings) -> tuple[str, str, str, str, bool]:
    key = model.api_key_env, model.api_key
    return model.provider, model.base_url, *key, model.allow_private


def strip_comments(text: str) -> str:
    """Removes `//` and `/* */` comments from JSON."""
    pieces = (found[0] for found in _JSON_PIECES.finditer(text))
    return "".join(one for one in pieces if not one.startswith(("//", "/*")))


_JSON_PIECES = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|[^"/]+|.', re.DOTALL)


def _list_unknown(data: Any, kind: Any, path: str) -> list[str]:
    """Lists the unknown fields, each with the nearest known one."""
    found: list[str] = []
    if not isinstance(data, dict):
        return found
    known = _list_fields(kind)
    for name, value in data.items():
        where = f"{path}{name}"
        if name not in known:
            near = find_nearest(str(name), known) if len(found) < MAX_HINTS else None
            hint = f'; did you mean "{path}{near}"?' if near else ""
            found.append(f'unknown field "{where}"{hint}')
            continue
        inner = _find_struct(known[name].type)
        if inner is None:
            continue
        for one in value if isinstance(value, list) else [value]:
            found += _list_unknown(one, inner, f"{where}.")
    return found


@cache
def _list_fields(kind: Any) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {one.encode_name: one for one in msgspec.structs.fields(kind)}


def _find_struct(kind: Any) -> Any:
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    for one in getattr(kind, "__args__", ()):
        if (found := _find_struct(one)) is not None:
            return found
    return None


# --- the manifests of OpenFang and OpenStarry -----------------------------------------------------

_MEANINGLESS = (
    "module", "resources", "priority", "metadata", "routing", "autonomous", "pinned_model",
    "workspace", "state_dir", "generate_identity_files", "exec_policy", "tools", "cache_context",
    "max_history_messages", "plugins", "guide", "policy", "memory", "manifest_version",
    "$schema",
)  # fmt: skip
_MEANINGLESS_CAPABILITIES = (
    "ofp_discover", "ofp_connect", "econ_spend", "env", "allowedPaths", "llm_query",
)  # fmt: skip


def _translate(data: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    if isinstance(data.get("identity"), dict) or isinstance(data.get("cognition"), dict):
        data = _translate_openstarry(data, warnings)
    capabilities = data.get("capabilities")
    capabilities = dict(capabilities) if isinstance(capabilities, dict) else {}
    for old, new in (("agent_message", "agents"), ("mcp_servers", "mcp_servers")):
        source = capabilities if old == "agent_message" else data
        if old in source and (source is data or new not in capabilities):
            capabilities[new] = source.pop(old)
    for old in ("tool_allowlist", "tool_blocklist"):
        if data.get(old):
            warnings.append(
                f'the field "{old}" has no meaning here; name the tools in capabilities'
            )
        data.pop(old, None)
    for name in _MEANINGLESS_CAPABILITIES:
        if name in capabilities:
            del capabilities[name]
            warnings.append(f'the field "capabilities.{name}" has no meaning here')
    for name in _MEANINGLESS:
        if name in data:
            del data[name]
            warnings.append(f'the field "{name}" has no meaning here')
    if capabilities:
        data["capabilities"] = capabilities
    if "schedule" in data:
        data["schedule"] = _translate_schedule(data["schedule"], warnings)
    return data


def _translate_schedule(value: Any, warnings: list[str]) -> Any:
    """One schedule or several, each a table or its time alone; OpenFang's modes are tables with one
    member."""
    if isinstance(value, list):
        return [{"time": one} if isinstance(one, str) else one for one in value]
    if isinstance(value, str):
        return [] if value.lower() == "reactive" else [{"time": value}]
    if not isinstance(value, dict):
        return value
    if isinstance(found := value.get("periodic"), dict):
        return [{"time": found.get("cron", "")}]
    if isinstance(found := value.get("continuous"), dict):
        seconds = found.get("check_interval_secs", 60)
        return [{"time": f"every {max(seconds, 60)} seconds" if type(seconds) is int else seconds}]
    if "proactive" in value:
        warnings.append('the field "schedule.proactive" has no meaning here')
        return []
    return [] if "reactive" in value else [value]


def _translate_openstarry(data: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    identity = data.pop("identity", None) or {}
    cognition = dict(data.pop("cognition", None) or {})
    communication = data.pop("communication", None) or {}
    found: dict[str, Any] = {
        name: identity[name] for name in ("name", "description", "version") if name in identity
    }
    if "name" not in found and isinstance(identity.get("id"), str):
        found["name"] = identity["id"]
    model = {new: cognition.pop(old) for old, new in _COGNITION.items() if old in cognition}
    if rounds := cognition.pop("maxToolRounds", None):
        found["limits"] = {"turns": rounds}
    warnings += [f'the field "cognition.{name}" has no meaning here' for name in cognition]
    if model:
        found["model"] = model
    if isinstance(communication, dict):
        if exposed := communication.pop("exposedTools", None):
            found["mcp"] = {"expose_tools": exposed}
        if targets := communication.pop("canSendTo", None):
            capabilities = dict(data.get("capabilities") or {})
            data["capabilities"] = {**capabilities, "agents": targets}
        names = [f"communication.{name}" for name in communication]
        warnings += [f'the field "{name}" has no meaning here' for name in names]
    return {**data, **found}


_COGNITION = {
    "provider": "provider",
    "model": "model",
    "temperature": "temperature",
    "maxTokens": "max_tokens",
}
