"""The canonical form of a card, which signatures cover (RFC 8785). Knows nothing of keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dragoman.wire.json import is_deeper_than

MAX_DEPTH = 64


class NotCanonical(ValueError):
    """The value has no canonical form; the message says why."""


def remove_signatures(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the card without its signatures, unknown members included."""
    if is_deeper_than(card, MAX_DEPTH):
        raise NotCanonical(f"it is nested deeper than {MAX_DEPTH}")
    return {name: value for name, value in card.items() if name != "signatures"}


def prune(value: Any) -> Any:
    """Removes empty values at any depth; returns None if nothing is left. The official SDKs for
    Python and JavaScript sign this, although 8.4.1 says otherwise."""
    if isinstance(value, dict):
        kept = {key: left for key, item in value.items() if (left := prune(item)) is not None}
        return kept or None
    if isinstance(value, list):
        return [left for item in value if (left := prune(item)) is not None] or None
    return None if value == "" else value


def canonicalize(value: Any) -> bytes:
    """Serializes by RFC 8785: members ordered by UTF-16 code units, numbers as in ECMAScript."""
    try:
        return _serialize(value).encode()
    except UnicodeEncodeError:
        raise NotCanonical("it has a lone surrogate") from None
    except RecursionError:
        raise NotCanonical("it is nested too deeply") from None


def _serialize(value: Any) -> str:
    if isinstance(value, str):
        # The escapes of Python's encoder are those of section 3.2.2.2.
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return _serialize_number(value)
    if isinstance(value, list):
        return f"[{','.join(map(_serialize, value))}]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return (
            "{" + ",".join(f"{_serialize(name)}:{_serialize(value[name])}" for name in names) + "}"
        )
    raise NotCanonical(f"{type(value).__name__} is not a JSON type")


def _serialize_number(value: int | float) -> str:
    """ECMA-262, Number::toString; every number is a double here."""
    try:
        double = float(value)
    except OverflowError:
        raise NotCanonical("it has a number that is too large") from None
    if double - double != 0:
        raise NotCanonical("it has a number that is not finite")
    if double == 0:
        return "0"
    sign = "-" if double < 0 else ""
    # repr gives the fewest digits that parse to the same double, as ECMAScript requires.
    _, digits_, exponent = Decimal(repr(abs(double))).normalize().as_tuple()
    digits = "".join(map(str, digits_))
    point = len(digits) + int(exponent)
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{sign}{mantissa}e{point - 1:+d}"
