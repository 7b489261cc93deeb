"""What the errors of model servers mean: whether another try, or a shorter conversation, helps."""

from __future__ import annotations

from typing import Any

from dragoman.agents.models.chat import ContextTooLong, ModelUnavailable
from dragoman.core.errors import TargetFailed, WorkFailed
from dragoman.wire.json import decode_reply

_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_TOO_LONG = (
    "context_length_exceeded", "context length", "context size", "context window",
    "maximum context", "prompt is too long", "too many tokens",
)  # fmt: skip


def build_failure(
    model: str, status: int, words: str, retry_after: float | None = None
) -> TargetFailed:
    said = f'the model "{model}" answered with status {status}: {words}'
    if status != 429 and any(one in words.lower() for one in _TOO_LONG):  # even with status 500
        return ContextTooLong(said)
    if status in _BUSY:
        return ModelUnavailable(said, retry_after)
    return WorkFailed(said)


def find_error(text: str, *secrets: str) -> str:
    """Finds the message in the body of an error: OpenAI's form, or others. Without `secrets`."""
    try:
        body = decode_reply(text.encode())
    except ValueError:
        body = None
    if isinstance(body, list) and body:  # Google's
        body = body[0]
    error: Any = None
    if isinstance(body, dict):  # of others than OpenAI, some have no "error"
        error = body.get("error") or body.get("detail") or body.get("message")
    if isinstance(error, dict):
        words = [str(error[one]) for one in ("code", "message") if error.get(one)]
        text = ": ".join(words) or text
    elif isinstance(error, str):
        text = error
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    return " ".join(text.split())[:300] or "no reason given"
