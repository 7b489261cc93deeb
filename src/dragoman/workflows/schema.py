"""The form of a definition, as JSON Schema: one table that the loader checks and the docs publish.

`docs/workflow.schema.json` is `build_schema()`; editors use it. A `title` is a noun phrase, because
the messages of `json_schema` contain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.workflows import durations, json_schema
from dragoman.workflows.model import (
    ALL,
    APPROVAL,
    CHILD,
    CONTINUE,
    DISPATCH,
    EVENT,
    FAIL,
    FOREACH,
    INVOKE,
    MANUAL,
    NODES,
    ONCE,
    PARALLEL,
    SCHEDULE,
    SKIP,
    TOOL_CALL,
    TRANSFORM,
    WAIT,
    WEBHOOK,
)  # fmt: skip

MAX_STEPS = 500
"""Of a workflow, with those inside other steps."""
MAX_CONCURRENCY = 100
MAX_ATTEMPTS = 10
ID = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
SCHEMA_URI = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def _refer(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _text(title: str = "a text", **more: Any) -> Schema:
    return {"type": "string", "title": title, **more}


def _object(title: str, properties: Schema, **more: Any) -> Schema:
    return {
        "type": "object",
        "title": title,
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


def _allow_template(schema: Schema, title: str) -> Schema:
    return {"anyOf": [schema, _refer("template")], "title": f"{title}, or a template"}


def _need_one(*keys: str) -> list[Schema]:
    return [{"required": [key]} for key in keys]


def _describe(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_ANY_OBJECT: Final[Schema] = _allow_template({"type": "object"}, "an object")
_TEXTS: Final[Schema] = _allow_template(
    {"type": "array", "items": _text(), "maxItems": 100}, "a list of texts"
)
_NUMBER: Final[Schema] = _allow_template({"type": "number", "exclusiveMinimum": 0}, "a number")
_COUNT: Final[Schema] = {
    "type": "integer", "minimum": 1, "maximum": MAX_CONCURRENCY, "title": "a whole number",
}  # fmt: skip
_STEPS: Final[Schema] = {
    "type": "array", "title": "a list of steps", "minItems": 1, "maxItems": MAX_STEPS,
    "items": _refer("step"),
}  # fmt: skip
_INVOKE: Final = _object(
    f'the config of "{INVOKE}"',
    {
        "agentCardId": _text(description="The id or the name of the agent, or a template."),
        "agent": _text(description="The same as agentCardId."),
        "skillId": _text(description="The skill of the agent; without it, the agent is sent the "
                         "message."),
        "args": _describe(_ANY_OBJECT, "The arguments of the skill."),
        "message": _text(description="The message to the agent, if it has no skill or the skill "
                         "takes text."),
    },
    oneOf=_need_one("agentCardId", "agent"),
)  # fmt: skip
_DISPATCH: Final = _object(
    f'the config of "{DISPATCH}"',
    {
        "description": _text(description="The work, with all that the agent needs to know."),
        "workType": _text(description='The kind of work, as agents have it in their tags: "qa".'),
        "requiredSkills": _describe(_TEXTS, "Skills that the agent must have, all of them."),
        "args": _describe(_ANY_OBJECT, "The arguments of the skill, if one is required."),
        "maxCost": _describe(_NUMBER, "US dollars that such work may cost on average."),
        "maxTokens": _describe(_NUMBER, "Tokens that such work may use on average."),
    },
    required=["description"],
)
_TOOL_CALL: Final = _object(
    f'the config of "{TOOL_CALL}"',
    {
        "tool": _text(description="The name of any tool that the run may call."),
        "arguments": _describe(_ANY_OBJECT, "The arguments of the tool."),
    },
    required=["tool"],
)
_APPROVAL: Final = _object(
    f'the config of "{APPROVAL}"',
    {
        "title": _text(description="What is to be approved, in a line."),
        "reason": _text(description="Why a person has to decide."),
        "message": _text(description="The same as reason."),
        "details": {"description": "What the person is shown: any value."},
        "approvers": _describe(_TEXTS, "Who may decide, beside administrators."),
        "expires": _describe(_refer("templatedDuration"), "After this time it is denied."),
    },
)
_WAIT: Final = _object(
    f'the config of "{WAIT}"',
    {
        "seconds": _describe(_refer("templatedDuration"), "How long to wait."),
        "until": _text(description="A time with its zone, such as 2027-01-31T09:00:00Z."),
        "event": _text(description="The name of an event of the hub to wait for."),
        "match": _describe({"type": "object"}, "Members that the event must have."),
        "timeout": _describe(_refer("templatedDuration"), "How long to wait for the event."),
    },
    oneOf=_need_one("seconds", "until", "event"),
)
_FOREACH: Final = _object(
    f'the config of "{FOREACH}"',
    {
        "items": _allow_template({"type": "array"}, "a list"),
        "steps": _STEPS,
        "concurrency": _describe(_COUNT, "How many items are worked on at once."),
    },
    required=["items", "steps"],
)
_PARALLEL: Final = _object(
    f'the config of "{PARALLEL}"',
    {"steps": _STEPS, "concurrency": _describe(_COUNT, "How many steps run at once.")},
    required=["steps"],
)
_CHILD: Final = _object(
    f'the config of "{CHILD}"',
    {
        "workflow": _text(description="The name of a workflow."),
        "inputs": _describe(_ANY_OBJECT, "Its inputs."),
    },
    required=["workflow"],
)
_TRANSFORM: Final = _object(
    f'the config of "{TRANSFORM}"',
    {"value": {"description": "The output of the step: any value with templates."}},
    required=["value"],
)
CONFIGS: Final[Mapping[str, Schema]] = {
    INVOKE: _INVOKE, DISPATCH: _DISPATCH, TOOL_CALL: _TOOL_CALL, APPROVAL: _APPROVAL, WAIT: _WAIT,
    TRANSFORM: _TRANSFORM, FOREACH: _FOREACH, PARALLEL: _PARALLEL, CHILD: _CHILD,
}  # fmt: skip
"""The config of each node."""
NAMING: Final = frozenset({
    "tool", "event", "agent", "agentCardId", "skillId", "workflow", "workType", "requiredSkills",
})  # fmt: skip
"""The members of a config that say what is called, awaited or started."""

_STEP: Final = _object(
    "a step",
    {
        "id": _text("up to 64 letters, digits, hyphens and underscores", pattern=ID,
                    description="Unique in the workflow."),
        "type": _text(description='A label such as "action"; it has no effect.'),
        "nodeId": _text("node", enum=list(NODES), description="What the step does."),
        "description": _text(),
        "config": {"type": "object", "description": "The settings of the node."},
        "dependsOn": {
            "anyOf": [_text(), {"type": "array", "items": _text(), "maxItems": MAX_STEPS}],
            "title": "a list of steps",
            "description": "Steps that come before this one. A template that reads the output of a "
            "step makes this one depend on it too.",
        },
        "when": {
            "anyOf": [{"type": "boolean"}, _text()],
            "title": "a template, true or false",
            "description": "The step is skipped if this is false.",
        },
        "retry": {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS},
                _refer("retry"),
            ],
            "title": f"the number of attempts, up to {MAX_ATTEMPTS}, or an object",
        },
        "timeout": _describe(_refer("duration"), "How long the step may take."),
        "onError": {
            "anyOf": [{"type": "string", "enum": [FAIL, CONTINUE]}, _refer("compensation")],
            "title": f'"{FAIL}", "{CONTINUE}" or {{compensate: STEP}}',
        },
        "repeatable": {
            "type": "boolean",
            "description": "Whether the step may run again if it is unknown whether it ran.",
        },
    },
    required=["id", "nodeId"],
    allOf=[
        {
            "if": {"properties": {"nodeId": {"const": node}}, "required": ["nodeId"]},
            "then": {"properties": {"config": _refer(node)}, "required": ["config"],
                     "title": "a step"},
        }
        for node in NODES
        if node != APPROVAL
    ]
    + [
        {
            "if": {"properties": {"nodeId": {"const": APPROVAL}}, "required": ["nodeId"]},
            "then": {"properties": {"config": _refer(APPROVAL)}, "title": "a step"},
        }
    ],
)  # fmt: skip

_TRIGGER_INPUTS: Final[Schema] = {
    "type": "object",
    "description": "The inputs of the run; templates may read $event.",
}
TRIGGERS: Final[Mapping[str, Schema]] = {
    MANUAL: _object("a manual trigger", {"type": {"const": MANUAL}}),
    WEBHOOK: _object(
        "a webhook",
        {
            "type": {"const": WEBHOOK},
            "secret": _text("a reference such as env:HOOK_SECRET or file:hook.secret",
                            pattern=r"^(env|file|keyring|exec):\S",
                            description="Where the secret is that signs the requests."),
            "match": _describe({"type": "object"}, "Members that the body must have."),
            "inputs": _TRIGGER_INPUTS,
        },
        required=["secret"],
    ),
    SCHEDULE: _object(
        "a schedule",
        {
            "type": {"const": SCHEDULE},
            "cron": _text(description='Five fields such as "0 9 * * 1-5".'),
            "every": _text('an interval such as "15m"',
                           description="An interval of a minute to a year."),
            "zone": _text(description='A time zone such as "Europe/Berlin"; default: UTC.'),
            "catchUp": _text("way to catch up", enum=[SKIP, ONCE, ALL],
                             description="What to do about the runs that were missed while the hub "
                             "was stopped; default: once."),
            "inputs": _describe({"type": "object"}, "The inputs of the run."),
        },
        oneOf=_need_one("cron", "every"),
    ),
    EVENT: _object(
        "an event trigger",
        {
            "type": {"const": EVENT},
            "event": _text(description='The name of an event of the hub, such as "agent-changed".'),
            "match": _describe({"type": "object"}, "Members that the event must have."),
            "inputs": _TRIGGER_INPUTS,
        },
        required=["event"],
    ),
}  # fmt: skip
"""By type."""

_TRIGGER: Final[Schema] = {
    "type": "object",
    "title": "a trigger",
    "properties": {"type": _text("type of trigger", enum=list(TRIGGERS))},
    "required": ["type"],
    "allOf": [
        {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
         "then": _refer(f"{kind}Trigger")}
        for kind in TRIGGERS
    ],
}  # fmt: skip

_INPUT_SCHEMA: Final = _object(
    "the schema of an input",
    {
        "type": {
            "anyOf": [
                _text("type", enum=list(json_schema.TYPES)),
                {"type": "array", "items": {"enum": list(json_schema.TYPES)}, "minItems": 1},
            ],
            "title": f"one of {', '.join(json_schema.TYPES)}",
        },
        "enum": {"type": "array", "minItems": 1},
        "const": {},
        "properties": {"type": "object", "additionalProperties": _refer("inputSchema")},
        "required": {
            "anyOf": [{"type": "boolean"}, {"type": "array", "items": _text()}],
            "title": "true or false, or the list of an object's required members",
        },
        "additionalProperties": {
            "anyOf": [{"type": "boolean"}, _refer("inputSchema")],
            "title": "true or false, or a schema",
        },
        "items": _refer("inputSchema"),
        **{
            key: {"type": "number"}
            for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        },
        **{
            key: {"type": "integer", "minimum": 0}
            for key in ("minLength", "maxLength", "minItems", "maxItems")
        },
        "default": {},
        "title": _text(),
        "description": _text(),
        "format": _text(),
        "examples": {"type": "array"},
    },
)

WORKFLOW: Final = _object(
    "the workflow",
    {
        "name": _text("up to 64 letters, digits, hyphens and underscores", pattern=ID,
                      description="Default: the name of the file."),
        "description": _text(maxLength=10_000),
        "trigger": _describe(_refer("anyTrigger"), "What starts it, beside people."),
        "triggers": {"type": "array", "items": _refer("anyTrigger"), "maxItems": 20},
        "inputs": {
            "type": "object",
            "title": "an object with the inputs by name",
            "propertyNames": {"pattern": ID, "title": "letters, digits, hyphens and underscores"},
            "additionalProperties": {
                "anyOf": [
                    _text("type", enum=list(json_schema.TYPES)), _refer("inputSchema"),
                ],
                "title": f"a type ({', '.join(json_schema.TYPES)}) or a schema",
            },
            "maxProperties": 100,
            "description": "What a run is given; templates read $trigger.NAME.",
        },
        "env": {
            "type": "array",
            "items": _text("the name of a variable", pattern=ENV_NAME),
            "maxItems": 100,
            "description": "The variables of the environment that templates may read as $env.NAME.",
        },
        "agents": {
            "type": "object",
            "propertyNames": {"pattern": ID, "title": "letters, digits, hyphens and underscores"},
            "additionalProperties": _text("the name or the id of an agent", minLength=1),
            "maxProperties": 100,
            "description": "Agents by reference: templates read nodes.NAME.agentCardId.",
        },
        "steps": _STEPS,
        "output": {"description": "What a run returns; default: the outputs of its last steps."},
        "expose": {"type": "boolean",
                   "description": "Whether clients get it as the tool workflow.NAME."},
        "concurrency": _describe(_COUNT, "How many steps of a run work at once; default: 10."),
        "timeout": _describe(_refer("duration"), "How long a run may take."),
    },
    required=["steps"],
)  # fmt: skip

_DURATION_PATTERN: Final = rf"^\s*{durations.PATTERN}\s*$"
_DURATION_OPTIONS: Final[list[Schema]] = [
    {"type": "number", "minimum": 0, "maximum": durations.MAX_SECONDS},
    _text(pattern=_DURATION_PATTERN),
]
_A_TIME: Final = "a time such as 30s, 5m or 2h, or a number of seconds"
DEFINITIONS: Final[Mapping[str, Schema]] = {
    "template": _text("a template", pattern=r"\{\{"),
    "duration": {"anyOf": _DURATION_OPTIONS, "title": _A_TIME},
    "templatedDuration": {
        "anyOf": [*_DURATION_OPTIONS, {"$ref": "#/$defs/template"}],
        "title": f"{_A_TIME}, or a template",
    },
    "retry": _object(
        '"retry"',
        {
            "attempts": {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS},
            "backoff": _describe(_refer("duration"), "Before the second attempt; then doubled."),
            "maxBackoff": _describe(_refer("duration"), "The longest pause."),
        },
        required=["attempts"],
    ),
    "compensation": _object(
        '"onError"',
        {"compensate": _text(description="The step that runs if this one fails.")},
        required=["compensate"],
    ),
    "step": _STEP,
    **CONFIGS,
    "anyTrigger": {
        "anyOf": [{"type": "string", "enum": [MANUAL]}, _refer("trigger")],
        "title": f'"{MANUAL}", or an object with a type',
    },
    "trigger": _TRIGGER,
    **{f"{kind}Trigger": schema for kind, schema in TRIGGERS.items()},
    "inputSchema": _INPUT_SCHEMA,
}


def build_schema() -> Schema:
    """Builds the JSON Schema of definitions that the docs publish."""
    return {
        "$schema": SCHEMA_URI,
        "$id": "urn:dragoman:workflow",
        **WORKFLOW,
        "title": "A workflow of Dragoman",
        "$defs": dict(DEFINITIONS),
    }
