"""The form of a card that signatures are made over: the members of 1.0, in the text of RFC 8785.

`FIELDS` is the card's part of a2a.proto v1.0.1 as a table; whoever reads or writes a card goes by
it. Knows nothing of keys, and nothing of the cards of older dialects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dragoman.wire.json import deeper_than

MAX_DEPTH = 64

TEXT, FLAG, FREE = "text", "flag", "free"

FIELDS: Mapping[str, Mapping[str, str]] = {
    # A name, a [list] or a {map} of what stands inside. `!` is REQUIRED, `?` is marked `optional`.
    "AgentCard": {
        "name": "text!",
        "description": "text!",
        "supportedInterfaces": "[AgentInterface]!",
        "provider": "AgentProvider",
        "version": "text!",
        "documentationUrl": "text?",
        "capabilities": "AgentCapabilities!",
        "securitySchemes": "{SecurityScheme}",
        "securityRequirements": "[SecurityRequirement]",
        "defaultInputModes": "[text]!",
        "defaultOutputModes": "[text]!",
        "skills": "[AgentSkill]!",
        "signatures": "[AgentCardSignature]",
        "iconUrl": "text?",
    },
    "AgentInterface": {
        "url": "text!",
        "protocolBinding": "text!",
        "tenant": "text",
        "protocolVersion": "text!",
    },
    "AgentProvider": {"url": "text!", "organization": "text!"},
    "AgentCapabilities": {
        "streaming": "flag?",
        "pushNotifications": "flag?",
        "extensions": "[AgentExtension]",
        "extendedAgentCard": "flag?",
    },
    "AgentExtension": {"uri": "text", "description": "text", "required": "flag", "params": "free"},
    "AgentSkill": {
        "id": "text!",
        "name": "text!",
        "description": "text!",
        "tags": "[text]!",
        "examples": "[text]",
        "inputModes": "[text]",
        "outputModes": "[text]",
        "securityRequirements": "[SecurityRequirement]",
    },
    "AgentCardSignature": {"protected": "text!", "signature": "text!", "header": "free"},
    "SecurityRequirement": {"schemes": "{StringList}"},
    "StringList": {"list": "[text]"},
    "SecurityScheme": {
        "apiKeySecurityScheme": "APIKey",
        "httpAuthSecurityScheme": "HTTPAuth",
        "oauth2SecurityScheme": "OAuth2",
        "openIdConnectSecurityScheme": "OpenIdConnect",
        "mtlsSecurityScheme": "MutualTls",
    },
    "APIKey": {"description": "text", "location": "text!", "name": "text!"},
    "HTTPAuth": {"description": "text", "scheme": "text!", "bearerFormat": "text"},
    "OAuth2": {"description": "text", "flows": "OAuthFlows!", "oauth2MetadataUrl": "text"},
    "OpenIdConnect": {"description": "text", "openIdConnectUrl": "text!"},
    "MutualTls": {"description": "text"},
    "OAuthFlows": {
        "authorizationCode": "AuthorizationCode",
        "clientCredentials": "ClientCredentials",
        "implicit": "Implicit",
        "password": "Password",
        "deviceCode": "DeviceCode",
    },
    "AuthorizationCode": {
        "authorizationUrl": "text!",
        "tokenUrl": "text!",
        "refreshUrl": "text",
        "scopes": "{text}!",
        "pkceRequired": "flag",
    },
    "ClientCredentials": {"tokenUrl": "text!", "refreshUrl": "text", "scopes": "{text}!"},
    "Implicit": {"authorizationUrl": "text", "refreshUrl": "text", "scopes": "{text}"},
    "Password": {"tokenUrl": "text", "refreshUrl": "text", "scopes": "{text}"},
    "DeviceCode": {
        "deviceAuthorizationUrl": "text!",
        "tokenUrl": "text!",
        "refreshUrl": "text",
        "scopes": "{text}!",
    },
}

_DEFAULTS: tuple[Any, ...] = ("", False, [], {})


class NotCanonical(ValueError):
    """It has no canonical form; the text says why."""


def members(value: Mapping[str, Any], message: str = "AgentCard") -> dict[str, Any]:
    """What 1.0 knows of it, by the presence rules (8.4.1): what is required is there even when it
    is empty, what is `optional` where it was set, and no other default. A member that is missing
    though required stays missing, as in the specification's example."""
    kept: dict[str, Any] = {}
    for name, kind in FIELDS[message].items():
        if (given := value.get(name)) is None:  # in proto-JSON, null is unset
            continue
        inner = _settled(given, kind.rstrip("!?"))
        always = kind[-1] in "!?" or kind in FIELDS or kind == FREE  # a message that is set is set
        if always or inner not in _DEFAULTS:
            kept[name] = inner
    return kept


def _settled(value: Any, kind: str) -> Any:
    if kind[0] == "[" and isinstance(value, list):
        return [_settled(item, kind[1:-1]) for item in value]
    if kind[0] == "{" and isinstance(value, dict):
        return {key: _settled(item, kind[1:-1]) for key, item in value.items()}
    if kind in FIELDS and isinstance(value, dict):
        return members(value, kind)
    return value


def unsigned(card: Mapping[str, Any]) -> dict[str, Any]:
    """The card without its signatures, whatever else it has."""
    if deeper_than(card, MAX_DEPTH):
        raise NotCanonical(f"it is nested deeper than {MAX_DEPTH}")
    return {name: value for name, value in card.items() if name != "signatures"}


def pruned(value: Any) -> Any:
    """Without anything empty at any depth, None where nothing is left: what the official SDKs for
    Python and JavaScript sign, though 8.4.1 says otherwise."""
    if isinstance(value, dict):
        kept = {key: left for key, item in value.items() if (left := pruned(item)) is not None}
        return kept or None
    if isinstance(value, list):
        return [left for item in value if (left := pruned(item)) is not None] or None
    return None if value == "" else value


def canonical(value: Any) -> bytes:
    """RFC 8785: members in the order of their UTF-16 code units, numbers as ECMAScript writes
    them."""
    try:
        return _text(value).encode()
    except UnicodeEncodeError:
        raise NotCanonical("it has half of a surrogate pair") from None
    except RecursionError:
        raise NotCanonical("it is nested too deep") from None


def _text(value: Any) -> str:
    if isinstance(value, str):
        # The escapes of Python's encoder are those of section 3.2.2.2.
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_text(name)}:{_text(value[name])}" for name in names) + "}"
    raise NotCanonical(f"{type(value).__name__} is nothing that JSON has")


def _number(value: int | float) -> str:
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
    # repr gives the fewest digits that lead back to the same double, as ECMAScript asks.
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
