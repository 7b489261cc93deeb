"""What the errors of model servers mean: whether another try, or a shorter conversation, helps."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from dragoman.agents.models.chat import ContextTooLong, ModelUnavailable
from dragoman.core.errors import TargetFailed, WorkFailed
from dragoman.wire.json import decode_reply

_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_TOO_LONG = (
    "context_length_exceeded", "context length", "context size", "context window",
    "maximum context", "prompt is too long", "too many tokens",
)  # fmt: skip
_NO_QUOTA = "insufficient_quota"
"""The code of OpenAI's 429 for an account without money, for which no wait helps."""


def build_failure(
    model: str, status: int, words: str, retry_after: float | None = None
) -> TargetFailed:
    said = f'the model "{model}" answered with status {status}: {words}'
    if status != 429 and any(one in words.lower() for one in _TOO_LONG):  # even with status 500
        return ContextTooLong(said)
    if status == 429 and _NO_QUOTA in words:
        return ModelUnavailable(said, math.inf)
    if status in _BUSY:
        return ModelUnavailable(said, retry_after)
    return WorkFailed(said)


_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d{1,9}(?:\.\d{1,9})?)s"')
"""In the `RetryInfo` of Google's errors."""


def find_pause(headers: Mapping[str, str], text: str) -> float | None:
    """Finds how many seconds a server asks to wait, in its headers or in the text of its error."""
    if _SECONDS.fullmatch(milliseconds := headers.get("retry-after-ms", "").strip()):
        return float(milliseconds) / 1000
    if retry_after := headers.get("retry-after", "").strip():
        if _SECONDS.fullmatch(retry_after):
            return float(retry_after)
        if (then := _parse_date(retry_after)) is not None:  # RFC 9110, 10.2.3
            now = _parse_date(headers.get("date", "")) or time.time()  # by the server's clock
            return max(0.0, then - now)
    found = _RETRY_DELAY.search(text)
    return float(found[1]) if found else None


def _parse_date(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


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
