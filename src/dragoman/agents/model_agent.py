"""An agent that thinks with a model and acts with tools: a target with one tool, which takes a
message.

Messages of one conversation are answered in their order, those of others concurrently. A run that a
tool's question interrupts is kept until it is answered, for a bounded time.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace as dataclass_replace
from fnmatch import fnmatchcase
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol, overload

from dragoman.agents.agent_runs import AgentRuns
from dragoman.agents.kept_conversations import (
    ConversationStore,
    KeptConversation,
    KeptConversations,
)
from dragoman.agents.manifest import Manifest
from dragoman.agents.model_loop import LoopLimits, LoopState, LoopUsage, ModelLoop
from dragoman.agents.models.chat import CUT, ChatModel, Message, ModelReply, OfferedTool, TakeText
from dragoman.agents.skills.skill_book import LoadedPrompt, SkillPrompt
from dragoman.core.agent_tool import MESSAGE, SCHEMA, blocks_from_arguments, build_agent_tool
from dragoman.core.call import (
    ABSENT,
    Artifact,
    Call,
    Progress,
    Result,
    ToolStep,
    Updates,
    WantedUpdates,
    discard_update,
)
from dragoman.core.conversations import (
    CONTEXT,
    Conversation,
    Conversations,
    add_context,
    find_context_in_meta,
    new_conversation_id,
    noting_that_nothing_left,
)
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    TargetFailed,
    WorkFailed,
)
from dragoman.core.hub import CallOptions
from dragoman.core.local_agents import AgentProfile, build_agent_principal
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct, replace
from dragoman.core.tool import AgentFacts, TargetFacts, TargetTraits, Tool, Validator
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import Trace, new_trace
from dragoman.wire.json import decode_reply, encode

DOOR = "agent"
"""The entry point of calls that an agent makes."""
RESPONSE = "response"
"""The id of the artifact with an agent's answer."""
OUTPUT_SCHEMA = "dragoman.hub/output-schema"
"""In the `_meta` of a request or the metadata of a message: a JSON Schema of the answer."""
ENDING_META = "dragoman.hub/ending"
"""In the `_meta` of a result: how an answer ends that is not whole."""
CUT_NOTE = "\n\n[The answer is cut here: the model reached its limit of tokens (model.max_tokens).]"
FLUSH_CHARS = 80
"""Characters of an answer that are sent together, so that a stream has fewer pieces."""
SKILL_TOOL = "load_skill"
"""The name under which a model reads the texts of skills."""
FLUSH_SECONDS = 0.1
"""The time after which fewer are sent too, so that a reader sees a slow model write."""
MAX_PROBLEM = 300
"""Characters of the reason why a tool call failed, in the update about it."""
MAX_FILE_TEXT = 100_000
"""Characters of a file of text that a model is shown."""
_TEXT_MEDIA = re.compile(
    r"text/.+|application/(.+\+)?(json|xml|yaml)|application/(csv|x-yaml|x-ndjson|ndjson|jsonl|toml)"
)
MAX_TOOLS = 128
"""Tools that a model is offered."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class AgentRuntimeLimits(Struct, frozen=True, kw_only=True):
    suspended: int = 100
    """Runs that wait for an answer."""
    suspended_each: int = 20
    """Of these, how many of one principal."""
    suspended_seconds: float = 900.0


class AgentHub(Protocol):
    """What an agent needs of the hub."""

    def list_granted(self, principal: Principal, trace: Trace) -> list[Tool]:
        """Lists the tools that the agent may call on behalf of the call with that trace."""

    def call_within(
        self,
        parent: Trace,
        principal: Principal,
        name: str,
        arguments: Mapping[str, Any],
        options: CallOptions,
    ) -> Awaitable[tuple[Tool, Result]]: ...


class SkillTexts(Protocol):
    """The skills that have a text for prompts."""

    def list_prompts(self) -> Sequence[SkillPrompt]: ...

    def load_prompt(self, name: str) -> LoadedPrompt:
        """Raises `NotFound`."""

    async def load_file(self, name: str, path: str) -> str:
        """Raises `NotFound` or `InvalidInput`."""


class UsageMeter(Protocol):
    """Where an agent's usage is counted, and its budgets are checked."""

    def check(self, manifest: Manifest, call: Call) -> None:
        """Raises `RateLimited` if the budget of the agent or of its caller is used up."""

    def record(self, manifest: Manifest, call: Call, usage: LoopUsage, seconds: float) -> None: ...


class _Suspended(Struct, frozen=True):
    state: LoopState
    principal: str
    context: str
    until: float


class ModelAgent:
    def __init__(
        self,
        manifest: Manifest,
        profile: AgentProfile,
        models: Sequence[ChatModel],
        hub: AgentHub,
        meter: UsageMeter,
        skills: SkillTexts,
        prefix: str,
        validate: Validator,
        store: ConversationStore | None = None,
        limits: AgentRuntimeLimits | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`store` keeps its conversations beyond a restart; None for one that does not outlive the
        hub."""
        self.name = manifest.name
        facts = TargetFacts(type="Agent", org=profile.org)
        self.traits = TargetTraits(facts=facts, may_last=True, ends_questions=False)
        self.manifest = manifest
        self.profile = profile
        self._principal = build_agent_principal(profile)
        self._hub = hub
        self._meter = meter
        self._skills = skills
        self._limits = limits or AgentRuntimeLimits()
        self._clock = clock
        settings = manifest.limits
        self._loop = ModelLoop(
            models,
            manifest.model.system_prompt,
            LoopLimits(
                turns=settings.turns,
                tool_calls=settings.tool_calls,
                parallel=settings.parallel,
                context_tokens=manifest.model.context_tokens,
            ),
            manifest.name,
        )
        on_card = AgentSkills(manifest, self._list_tools)
        self.tool = build_agent_tool(self, build_facts(manifest, on_card), prefix, validate, SCHEMA)
        self._conversations = Conversations(manifest.name)
        self._kept = KeptConversations(manifest.name, store)
        self._runs = AgentRuns(manifest.name)
        self._suspended: OrderedDict[str, _Suspended] = OrderedDict()

    def _list_tools(self) -> list[Tool]:
        """What it may call by itself; for a caller it may be less."""
        return self._hub.list_granted(self._principal, new_trace())

    # --- runs -------------------------------------------------------------------------------------

    async def run(self, call: Call) -> Result:
        return await self._runs.run(self._answer, call)

    async def _answer(self, call: Call) -> Result:
        if call.handle:
            return await self._continue(call)
        context = call.notes.conversation = await self._find_context(call)
        kept = self._kept.find(call.principal, context)
        async with kept.lock:
            await self._load(call, context, kept)
            state = LoopState([*kept.messages, _build_user_message(call)], (), _find_schema(call))
            state.begun = len(kept.messages)
            return await self._advance(call, context, kept, state, None)

    async def _continue(self, call: Call) -> Result:
        """Continues a run that has asked, with the answers."""
        context = self._find_suspended(call).context
        call.notes.conversation = context
        kept = self._kept.find(call.principal, context)
        async with kept.lock:
            await self._load(call, context, kept)
            state = self._find_suspended(call).state
            del self._suspended[call.handle or ""]
            return await self._advance(call, context, kept, state, call.answers or {})

    def _find_suspended(self, call: Call) -> _Suspended:
        suspended = self._suspended.get(call.handle or "")
        if (
            suspended is None
            or suspended.until < self._clock()
            or suspended.principal != call.principal.key
        ):
            raise InvalidInput(
                f'agent "{self.name}" no longer waits for this answer; send the message again'
            )
        return suspended

    async def _advance(
        self,
        call: Call,
        context: str,
        kept: KeptConversation,
        state: LoopState,
        answers: Mapping[str, Any] | None,
    ) -> Result:
        """Runs until there is an answer or a question; an answer is added to the conversation."""
        self._meter.check(self.manifest, call)
        stream = _TextStream(call.updates)
        run = _Run(self, call, context, stream)
        state.tools, state.usage = run.offered, LoopUsage()
        begun = self._clock()
        try:
            outcome = await self._loop.run(state, run.call_tool, stream.begin, answers)
        finally:
            self._meter.record(self.manifest, call, state.usage, self._clock() - begun)
        if not isinstance(outcome, ModelReply):
            result = Result(questions=outcome, handle=self._suspend(call, context, state))
            self._conversations.keep(call, Conversation(context), context)
            return result
        if outcome.ending == CUT and state.schema is None:
            outcome = replace(outcome, text=outcome.text + CUT_NOTE)
            stream.write(CUT_NOTE)
        stream.flush()
        result = _build_result(outcome, state, self.name)
        self._kept.append(call, context, kept, state.messages[state.begun :])
        id = self._conversations.keep(call, Conversation(context), context)
        return add_context(result, call, id, shown=True)

    def _suspend(self, call: Call, context: str, state: LoopState) -> str:
        now = self._clock()
        while self._suspended and next(iter(self._suspended.values())).until < now:
            self._suspended.popitem(last=False)
        own = sum(one.principal == call.principal.key for one in self._suspended.values())
        if len(self._suspended) >= self._limits.suspended or own >= self._limits.suspended_each:
            raise Overloaded(
                f'agent "{self.name}" waits for {len(self._suspended)} answers already; try again '
                "when some have been given"
            )
        id = token_hex(16)
        until = now + self._limits.suspended_seconds
        self._suspended[id] = _Suspended(state, call.principal.key, context, until)
        return id

    # --- images -----------------------------------------------------------------------------------

    async def describe_image(
        self, image: bytes, media_type: str, prompt: str, within: Call
    ) -> str | None:
        """Answers a question about an image; None if its model cannot see."""
        if not self.manifest.can_see:
            return None
        self._meter.check(self.manifest, within)
        url = f"data:{media_type};base64,{b64encode(image).decode()}"
        parts = [
            {"type": "text", "text": prompt},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        state = LoopState([{"role": "user", "content": parts}], ())
        begun = self._clock()
        try:
            reply = await self._loop.run(state, _refuse_tool, lambda: discard_text)
        finally:
            self._meter.record(self.manifest, within, state.usage, self._clock() - begun)
        return reply.text if isinstance(reply, ModelReply) else None

    # --- skills -----------------------------------------------------------------------------------

    def _list_skills(self) -> list[SkillPrompt]:
        granted = self.profile.skills
        if not granted:
            return []
        prompts = self._skills.list_prompts()
        return [one for one in prompts if any(fnmatchcase(one.name, each) for each in granted)]

    async def load_skill(self, arguments: Mapping[str, Any]) -> Result:
        """Returns the text of a skill, or of one of its files."""
        name, file = str(arguments.get("name", "")), arguments.get("file")
        if name not in (one.name for one in self._list_skills()):
            raise NotFound(f'there is no skill "{name[:80]}"')
        if file:
            text = await self._skills.load_file(name, str(file))
        else:
            loaded = self._skills.load_prompt(name)
            text = loaded.text
            if loaded.files:
                text += f"\n\n[files of this skill: {', '.join(loaded.files)}]"
        return Result(content=[{"type": "text", "text": text}])

    # --- conversations ----------------------------------------------------------------------------

    async def _find_context(self, call: Call) -> str:
        if call.message is not None and call.message.context:
            return call.message.context
        asked = str(find_context_in_meta(call) or call.arguments.get(CONTEXT) or "")
        try:
            return self._conversations.find(call, asked).id or new_conversation_id()
        except InvalidInput:
            with noting_that_nothing_left(call):
                if not await self._kept.is_stored(call.principal, asked):
                    raise
            return asked

    async def _load(self, call: Call, context: str, kept: KeptConversation) -> None:
        with noting_that_nothing_left(call):
            await self._kept.load(kept, call.principal, context)

    def end(self) -> None:
        self._runs.end()

    def close(self) -> None:
        self._suspended.clear()
        self._kept.clear()


class _Run:
    """The tools of one run."""

    def __init__(self, agent: ModelAgent, call: Call, context: str, stream: _TextStream) -> None:
        self._agent = agent
        self._call = call
        self._stream = stream
        self._count = 0
        """The updates so far: the progress of a call only ever increases."""
        self._names: dict[str, str] = {}
        """Canonical names, by those that the model uses."""
        self.offered: list[OfferedTool] = []
        for tool in agent._hub.list_granted(agent._principal, call.trace)[:MAX_TOOLS]:
            name = self._make_name(tool)
            self._names[name] = tool.name
            schema = tool.definition.get("inputSchema") or {"type": "object"}
            self.offered.append(OfferedTool(name, tool.description, schema))
        if texts := agent._list_skills():
            self.offered.append(_build_skill_tool(texts))
        self._options = CallOptions(
            DOOR,
            EVERYTHING,
            updates=self._pass_update,
            wanted_updates=WantedUpdates(progress=True, tool_steps=call.wanted_updates.tool_steps),
            client=call.client,  # servers keep the state of the client for it
            revision=call.revision,
            features=call.features,
        )

    def _make_name(self, tool: Tool) -> str:
        name = _UNSAFE.sub("_", tool.alias)[:64]
        number = 2
        while name in self._names:
            name = f"{name[:60]}_{number}"
            number += 1
        return name

    def _pass_update(self, update: Any) -> None:
        if isinstance(update, Progress):
            self._count += 1
            self._call.updates(dataclass_replace(update, progress=self._count, total=None))

    def _report(self, step: ToolStep) -> None:
        name = step.tool.removesuffix(f".{MESSAGE}")
        words = f"{step.agent} calls {name}"
        if step.outcome:
            words = f"{step.agent}: {name} {step.outcome} after {step.duration_ms:.0f} ms"
        self._pass_update(Progress(progress=0, message=words, step=step))

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Result:
        if name == SKILL_TOOL and name not in self._names:
            return await self._agent.load_skill(arguments)
        options = self._options
        if handle is not None:
            options = replace(options, answers=answers, handle=handle)
        call, agent = self._call, self._agent
        target = self._names.get(name, name)
        if call.updates is discard_update:
            _, result = await agent._hub.call_within(
                call.trace, agent._principal, target, arguments, options
            )
            return result
        self._stream.flush()
        self._report(ToolStep(agent.name, target))
        begun = monotonic()
        outcome, problem = "failed", ""
        try:
            _, result = await agent._hub.call_within(
                call.trace, agent._principal, target, arguments, options
            )
            outcome = "failed" if result.failed else "asked" if result.questions else "completed"
        except HubError as error:
            outcome = "failed" if isinstance(error, TargetFailed) else "refused"
            problem = str(error)[:MAX_PROBLEM]
            raise
        finally:
            if call.wanted_updates.tool_steps:
                spent = (monotonic() - begun) * 1000
                self._report(ToolStep(agent.name, target, outcome, spent, problem))
        return result


class _TextStream:
    """Sends the text of an answer while it is written, in pieces of some size."""

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._pending = ""
        self._begun = False
        self._flushed = 0.0

    def begin(self) -> TakeText:
        """Begins another text, which replaces the last one."""
        self._begun, self._pending = False, ""
        return self.write

    def write(self, text: str) -> None:
        if self._updates is discard_update:
            return
        if not self._pending and not self._begun:
            self._flushed = monotonic()
        self._pending += text
        if len(self._pending) >= FLUSH_CHARS or monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        block = {"type": "text", "text": self._pending}
        self._updates(
            Artifact(id=RESPONSE, name=RESPONSE, content=[block], append=self._begun, last=False)
        )
        self._begun, self._pending, self._flushed = True, "", monotonic()


class AgentSkills(Sequence[Mapping[str, Any]]):
    """The skills on an agent's card: those of its manifest, and one for each tool that it may call
    now."""

    def __init__(self, manifest: Manifest, list_tools: Callable[[], list[Tool]]) -> None:
        self._declared = [
            {
                "id": skill.id,
                "name": skill.name or skill.id.replace("_", " "),
                "description": skill.description or f"Can do {skill.id}.",
                "tags": skill.tags or ["agent"],
                "examples": skill.examples,
                "public": skill.public,
            }
            for skill in manifest.a2a.skills
        ]
        self._list_tools = list_tools

    def _list(self) -> list[Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {str(one["id"]): one for one in self._declared}
        for tool in self._list_tools():
            found.setdefault(
                tool.alias,
                {
                    "id": tool.alias,
                    "name": tool.alias.replace("_", " "),
                    "description": tool.description or f"Can use the {tool.alias} tool",
                    "tags": ["tool"],
                    "examples": [],
                    "public": True,
                },
            )
        return list(found.values())

    def __len__(self) -> int:
        return len(self._list())

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._list())

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._list()[index]


async def _refuse_tool(name: str, *_: Any) -> Result:
    raise NotFound(f'there is no tool "{name[:200]}"')


def discard_text(text: str) -> None:
    """Discards the text of an answer, which is used as a whole."""


def _build_skill_tool(prompts: Sequence[SkillPrompt]) -> OfferedTool:
    listed = "\n".join(f"- {one.name}: {one.description}" for one in prompts)
    return OfferedTool(
        SKILL_TOOL,
        f"Reads the instructions of a skill before you do such work, or a file of it:\n{listed}",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [one.name for one in prompts]},
                "file": {"type": "string", "description": "A file of the skill."},
            },
            "required": ["name"],
        },
    )


def build_facts(manifest: Manifest, skills: Sequence[Mapping[str, Any]]) -> AgentFacts:
    return AgentFacts(
        name=manifest.name,
        description=manifest.description or f'The agent "{manifest.name}".',
        version=manifest.version,
        skills=skills,
        has_live_skills=True,
        input_modes=tuple(manifest.list_input_modes()),
        output_modes=tuple(manifest.a2a.output_modes),
    )


# --- messages and results -------------------------------------------------------------------------


def _build_user_message(call: Call) -> Message:
    parts: list[dict[str, Any]] = []
    for block in blocks_from_arguments(call.arguments):
        if not isinstance(block, Mapping):
            continue
        kind = block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": str(block.get("text", ""))})
        elif kind == "image":
            url = f"data:{block.get('mimeType', 'image/png')};base64,{block.get('data', '')}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        elif kind == "data":
            parts.append({"type": "text", "text": encode(block.get("data")).decode()})
        else:
            parts.append({"type": "text", "text": _describe_file(block)})
    if all(one["type"] == "text" for one in parts):
        return {"role": "user", "content": "\n".join(one["text"] for one in parts)}
    return {"role": "user", "content": parts}


def _describe_file(block: Mapping[str, Any]) -> str:
    """Describes a file, with its text if it has one."""
    resource = block.get("resource")
    held: Mapping[str, Any] = resource if isinstance(resource, Mapping) else {}
    media = str(held.get("mimeType") or block.get("mimeType") or "")
    name = f"[file {block.get('uri') or held.get('uri') or media}]"
    text = held.get("text")
    if not isinstance(text, str):
        text = _read_text_file(media, held.get("blob"))
    return name if text is None else f"{name}\n{text}"


def _read_text_file(media: str, data: Any) -> str | None:
    """Reads a file of text that came as bytes; None if it is something else."""
    if not isinstance(data, str) or not _TEXT_MEDIA.fullmatch(media.partition(";")[0].lower()):
        return None
    try:
        text = b64decode(data).decode("utf-8-sig")
    except ValueError:
        return None
    if "\0" in text:
        return None
    more = len(text) - MAX_FILE_TEXT
    note = f"\n[the other {more} characters of the file were left out]"
    return text if more <= 0 else text[:MAX_FILE_TEXT] + note


def _find_schema(call: Call) -> Mapping[str, Any] | None:
    metadata = call.message.metadata if call.message is not None else call.meta
    schema = metadata.get(OUTPUT_SCHEMA) if metadata else None
    if schema is None:
        return None
    if not isinstance(schema, Mapping):
        raise InvalidInput(f'"{OUTPUT_SCHEMA}" must be a JSON Schema')
    return schema


def _build_result(reply: ModelReply, state: LoopState, agent: str) -> Result:
    text = reply.text
    structured: Any = ABSENT
    if state.schema is not None:
        try:
            structured = decode_reply(text.encode())
        except ValueError as error:
            why = "it reached its limit of tokens (model.max_tokens)" if reply.ending else error
            raise WorkFailed(f'agent "{agent}" did not answer in JSON: {why}') from None
    block = {"type": "text", "text": text}
    return Result(
        ending=reply.ending,
        extra={"_meta": {ENDING_META: reply.ending}} if reply.ending else {},
        content=[block],
        structured=structured,
        artifacts=[Artifact(id=RESPONSE, name=RESPONSE, content=[block])],
    )
