"""The schemas of the OpenAPI document: bodies, responses and parameters of the operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
QUERY_FLAG: Schema = {"enum": ["0", "1", "false", "true"]}
_TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
_SOME_TEXTS: Schema = {**_TEXTS, "type": ["object", "null"]}
_QUESTION: Schema = {"type": "string", "minLength": 1, "maxLength": 500}
_SECONDS: Schema = {
    "type": "number",
    "minimum": 0,
    "exclusiveMaximum": 1e11,
    "description": "Seconds since 1970.",
}


def _build_object(required: tuple[str, ...], /, **properties: Schema) -> Schema:
    """An object that has no other members."""
    built: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**built, "required": list(required)} if required else built


_AGENT: Mapping[str, Schema] = {
    "trust": {"enum": ["external", "trusted"]},
    "enabled": FLAG,
    "token": {
        "type": ["string", "null"],
        "description": "A reference to a token: env:NAME or file:tokens/NAME.",
    },
    "headers": {
        "type": ["object", "null"],
        "additionalProperties": TEXT,
        "description": "By name; ${NAME} stands for a variable of the environment.",
    },
    "pin": {"enum": ["strict", "first", "off"]},
    "additions": {"enum": ["show", "hold"]},
    "wire": {"enum": ["auto", "skill-only"]},
    "allow_private": FLAG,
    "timeout_secs": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400},
    "public": FLAG,
    "credentials": {"enum": ["shared", "user"]},
}
_PERIOD: Mapping[str, Schema] = {
    "since": _SECONDS,
    "until": _SECONDS,
    "limit": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
}

_QUESTIONS: Mapping[str, Schema] = {
    "can": {
        "type": "array",
        "items": {"enum": ["form", "url"]},
        "description": "The kinds of questions that can be answered.",
    },
    "answers": {
        "type": "object",
        "description": "To the questions of the call before, by their names there.",
    },
    "handle": {"type": "string", "description": "What came with the questions."},
}

SCHEMAS: Mapping[str, Schema] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message"],
                "properties": {
                    "message": TEXT,
                    "kind": TEXT,
                    "trace": {"type": ["string", "null"]},
                    "retry_after": {
                        "type": "number",
                        "description": "With 429: seconds after which there is budget for it.",
                    },
                },
            }
        },
    },
    "Tool": {
        "type": "object",
        "required": ["name", "id", "description", "source", "server"],
        "properties": {
            "name": {"type": "string", "description": "The listed name."},
            "id": {"type": "string", "description": "The canonical name, server.tool."},
            "description": TEXT,
            "source": TEXT,
            "server": TEXT,
            "tokens": {"type": "integer", "description": "Estimated cost of listing it."},
            "definition": {"type": "object", "description": "What the server said of it."},
        },
    },
    "Tools": {
        "type": "object",
        "required": ["tools", "total"],
        "properties": {
            "tools": {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}},
            "total": {"type": "integer"},
            "nextCursor": {"type": ["string", "null"], "description": "Of the next page."},
        },
    },
    "Arguments": {
        **_build_object(
            (),
            arguments={"type": "object"},
            idempotencyKey={
                "type": "string",
                "minLength": 1,
                "maxLength": 200,
                "description": "Calls with another key are other calls; see approvals.",
            },
            **_QUESTIONS,
        ),
        "dependentRequired": {"answers": ["handle"], "handle": ["answers"]},
    },
    "AgentCall": {
        **_build_object(
            ("tool",),
            tool=TEXT,
            arguments={"type": "object"},
            **_QUESTIONS,
        ),
        "dependentRequired": {"answers": ["handle"], "handle": ["answers"]},
    },
    "Result": {
        "type": "object",
        "required": ["content", "failed"],
        "properties": {
            "content": {"type": "array", "items": {"type": "object"}},
            "structured": {},
            "failed": {"type": "boolean", "description": "The tool ran and says it failed."},
            "extra": {"type": "object"},
            "questions": {
                "type": "object",
                "description": "There is no result yet: answer these, and call again.",
            },
            "handle": {"type": "string", "description": "Goes with the answers."},
        },
    },
    "Dispatch": {
        **_build_object(
            ("description",),
            description={"type": "string", "minLength": 1, "maxLength": 100_000},
            workType={"type": "string", "pattern": r"^\w[\w .:/-]{0,63}$"},
            requiredSkills={
                "type": "array",
                "maxItems": 20,
                "items": {"type": "string", "minLength": 1, "maxLength": 200},
            },
            args={"type": "object"},
            maxCost={"type": "number", "exclusiveMinimum": 0},
            maxTokens={"type": "number", "exclusiveMinimum": 0},
            dryRun=FLAG,
            **_QUESTIONS,
        ),
        "dependentRequired": {"answers": ["handle"], "handle": ["answers"]},
    },
    "PromptArguments": _build_object((), arguments={"type": "object"}),
    "ResourceUri": _build_object(("uri",), uri=TEXT),
    "Agent": _build_object(
        ("url",),
        url={"type": "string", "description": "Where its card or its endpoint is."},
        name={"type": ["string", "null"], "description": "Absent: the name in its card."},
        **_AGENT,
    ),
    "Server": _build_object(
        ("name",),
        name={"type": "string", "minLength": 1},
        url=TEXT,
        headers=_TEXTS,
        command={"type": "string", "description": "A program; only the owner may add one."},
        args={"type": "array", "items": TEXT, "maxItems": 100},
        env={"type": "array", "items": TEXT, "description": "Names of variables it gets."},
        sandbox=TEXT,
    ),
    "ConsoleLink": _build_object(
        (), local={"type": "boolean", "description": "For a browser of the hub's own user."}
    ),
    "Login": _build_object(
        (),
        scopes={"type": "array", "items": TEXT, "maxItems": 100},
        device={"type": "boolean", "description": "Enter a code on another device."},
        shared={"type": "boolean", "description": "For all users; needs admin."},
    ),
    "AgentChange": {**_build_object((), **_AGENT), "minProperties": 1},
    "PolicyFile": _build_object(
        ("name", "text"), name=_QUESTION, text={"type": "string", "maxLength": 262_144}, force=FLAG
    ),
    "PolicyChange": _build_object(("enabled",), enabled=FLAG, force=FLAG),
    "PolicyTexts": {
        **_build_object((), text=TEXT, texts=_SOME_TEXTS, name=TEXT),
        "maxProperties": 2,
        "description": "A text, texts by file name, or neither: the folder. With a name and a "
        "text: the folder with this text of one file.",
    },
    "PolicyQuestion": _build_object(
        ("principal", "tool"),
        principal=_QUESTION,
        tool=_QUESTION,
        action={"type": ["string", "null"]},
        context={"type": "object"},
        roles={"type": ["array", "null"], "items": TEXT},
    ),
    "PolicyReplay": _build_object(("since",), texts=_TEXTS, name=TEXT, text=TEXT, **_PERIOD),
    "PolicyPeriod": _build_object(("since",), **_PERIOD),
    "PinApproval": {
        "oneOf": [
            _build_object(("name",), name={"type": "string", "minLength": 1}, digest=TEXT),
            _build_object(
                ("target",), target={"type": "string", "minLength": 1}, digests=_SOME_TEXTS
            ),
            _build_object(("all",), all={"const": True}, digests=_SOME_TEXTS),
        ]
    },
    "PinName": _build_object(("name",), name={"type": "string", "minLength": 1}),
    "PinTarget": _build_object(("target",), target={"type": "string", "minLength": 1}),
    "ApprovalDecision": _build_object((), comment={"type": "string", "maxLength": 1_000}),
    "TaintDeclassification": _build_object(
        ("key", "why"),
        key={"type": "string", "minLength": 1},
        why={"type": "string", "pattern": r"\S"},
        label=TEXT,
    ),
    "Object": {"type": "object"},
}
