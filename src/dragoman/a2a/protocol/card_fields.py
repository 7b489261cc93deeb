"""The fields of an agent card in A2A 1.0 as a table, and the presence rules that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT, FLAG, FREE = "text", "flag", "free"

FIELDS: Mapping[str, Mapping[str, str]] = {
    # A name, a [list] or a {map} of the inner type. `!` is REQUIRED, `?` is marked `optional`.
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


def select_members(value: Mapping[str, Any], message: str = "AgentCard") -> dict[str, Any]:
    """Returns the members of 1.0 by the presence rules (8.4.1): required ones even if empty,
    `optional` ones if set, others unless they have their default. A missing required member stays
    missing, as in the specification's example."""
    kept: dict[str, Any] = {}
    for name, kind in FIELDS[message].items():
        if (given := value.get(name)) is None:  # in proto-JSON, null is unset
            continue
        inner = _select_value(given, kind.rstrip("!?"))
        always = kind[-1] in "!?" or kind in FIELDS or kind == FREE  # a message that is set is set
        if always or inner not in _DEFAULTS:
            kept[name] = inner
    return kept


def _select_value(value: Any, kind: str) -> Any:
    if kind[0] == "[" and isinstance(value, list):
        return [_select_value(item, kind[1:-1]) for item in value]
    if kind[0] == "{" and isinstance(value, dict):
        return {key: _select_value(item, kind[1:-1]) for key, item in value.items()}
    if kind in FIELDS and isinstance(value, dict):
        return select_members(value, kind)
    return value
