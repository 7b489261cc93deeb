"""Says on the wire which texts of a definition are shorter than its server sent them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

SHORTENED_KEY = "dragoman.hub/shortened"
"""In the `_meta` of a definition: the characters of the whole text, by the JSON Pointer (RFC 6901)
of each text that is shown shorter."""
MAX_NAMED = 20


class ShortenedText(NamedTuple):
    place: str
    """Its JSON Pointer."""
    sent: int
    shown: int
    """Characters."""


def list_shortened(sent: Mapping[str, Any], shown: Mapping[str, Any]) -> list[ShortenedText]:
    """Lists the first texts that are shorter in `shown` than in `sent`."""
    return list(islice(_find_shortened(sent, shown), MAX_NAMED))


def note_shortened(definition: Mapping[str, Any], texts: list[ShortenedText]) -> Mapping[str, Any]:
    """Returns the definition with a note on these texts in its `_meta`."""
    if not texts:
        return definition
    meta = definition.get("_meta")
    known = meta if isinstance(meta, Mapping) else {}
    noted = {text.place: text.sent for text in texts}
    earlier = known.get(SHORTENED_KEY)  # of a hub behind this one, or of the pins
    if isinstance(earlier, Mapping):
        noted |= earlier
    return {**definition, "_meta": {**known, SHORTENED_KEY: noted}}


def _find_shortened(sent: Any, shown: Any, place: str = "") -> Iterator[ShortenedText]:
    if sent is shown:
        return
    if isinstance(sent, str) and isinstance(shown, str):
        if len(shown) < len(sent):
            yield ShortenedText(place, len(sent), len(shown))
    elif isinstance(sent, Mapping) and isinstance(shown, Mapping):
        for name, inner in sent.items():
            if name in shown:
                step = name.replace("~", "~0").replace("/", "~1")
                yield from _find_shortened(inner, shown[name], f"{place}/{step}")
    elif isinstance(sent, list | tuple) and isinstance(shown, list | tuple):
        for number, (inner, other) in enumerate(zip(sent, shown, strict=False)):
            yield from _find_shortened(inner, other, f"{place}/{number}")
