"""Answers from a client's message to the questions of a target: a form is filled in from data, by
the names in its schema, or from a text if one field is missing. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from dragoman.a2a.protocol.parts import block_from_part
from dragoman.core.call import URL, Question
from dragoman.wire.json import Malformed, decode

AUTH = "auth"
"""The name of a question that requires a login."""
SCALARS = ("integer", "number", "boolean")
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def parse_answers(
    questions: Mapping[str, Question], message: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The answer to each question, and the names of the missing fields, joined. `before` has the
    answers of earlier messages to the same questions."""
    data, text = _split_message(message)
    answers: dict[str, Any] = {}
    missing: list[str] = []
    for name, question in questions.items():
        if data.get("action") in ("decline", "cancel"):
            answers[name] = {"action": data["action"]}
        elif question.kind == URL or name == AUTH:
            answers[name] = {"action": "accept"}
        else:
            schema = question.body.get("requestedSchema")
            earlier = before.get(name, {}).get("content", {})
            content = _fill_form(name, schema, data, text, earlier)
            answers[name] = {"action": "accept", "content": content}
            missing += _list_missing(schema, content)
    return answers, ", ".join(missing)


def build_agent_answers(
    questions: Mapping[str, Question], message: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole message as the answer to an agent, unless it declines to answer."""
    parts = message["parts"]
    data = parts[0].get("data") if len(parts) == 1 else None
    if isinstance(data, dict) and data.get("action") in ("decline", "cancel") and len(data) == 1:
        return {name: {"action": data["action"]} for name in questions}
    content = {"parts": [block_from_part(part) for part in parts]}
    return {name: {"action": "accept", "content": content} for name in questions}


def _split_message(message: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    data: dict[str, Any] = {}
    texts = []
    for part in message["parts"]:
        value = part.get("data")
        if "text" in part:
            value = parse_object(part["text"])
            if value is None:
                texts.append(part["text"])
        if isinstance(value, dict):
            data.update(value)
    return data, "\n".join(texts)


def parse_object(text: str) -> dict[str, Any] | None:
    """The object if the text is a JSON object; None otherwise."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = decode(text.encode())
    except (Malformed, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def _fill_form(
    name: str, schema: Any, data: Mapping[str, Any], text: str, earlier: Mapping[str, Any]
) -> dict[str, Any]:
    properties = find_properties(schema)
    own = data.get(name)
    source = own if isinstance(own, dict) and name not in properties else data
    content = {**earlier, **{key: source[key] for key in properties if key in source}}
    if text:
        missing = [key for key in list_required(schema) if key not in content]
        missing = missing or [key for key in properties if key not in content]
        if len(missing) == 1:
            content[missing[0]] = parse_value(text, properties.get(missing[0]))
    return content


def _list_missing(schema: Any, content: Mapping[str, Any]) -> list[str]:
    properties = find_properties(schema)
    return [
        str(properties[key].get("title") or key)
        for key in list_required(schema)
        if key not in content and isinstance(properties.get(key), Mapping)
    ]


def find_properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def list_required(schema: Any) -> list[str]:
    required = schema.get("required") if isinstance(schema, Mapping) else None
    return [key for key in required if isinstance(key, str)] if isinstance(required, list) else []


def _parse_finite(word: str) -> float:
    number = float(word)
    if not isfinite(number):
        raise ValueError("not a JSON number")
    return number


def parse_value(text: str, wanted: Any) -> Any:
    """The text converted to the type of the field; unchanged if it does not convert."""
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    word = text.strip()
    if kind == "boolean":
        return _WORDS.get(word.lower(), text)
    if kind in ("integer", "number"):
        try:
            return int(word) if kind == "integer" or _WHOLE.fullmatch(word) else _parse_finite(word)
        except ValueError:
            return text
    if kind == "array":
        return [one.strip() for one in word.split(",")]
    return text
