"""Builds the models of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from dragoman.agents.manifest import Manifest, ModelSettings
from dragoman.agents.models.chat import ChatModel
from dragoman.agents.models.provider import (
    PROVIDERS,
    ProviderModel,
    ProviderSettings,
    check_installed,
)
from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import SecretResolver
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.wire.http import HttpClient
from dragoman.wire.secret_headers import SecretHeadersClient, build_placeholder

OpenHttp = Callable[[str, bool], HttpClient]
"""Opens the client for a configured URL; the second argument allows private addresses."""

BASE_URLS: Mapping[str, tuple[str, str]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "together": ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "ollama": ("http://127.0.0.1:11434/v1", ""),
    "lmstudio": ("http://127.0.0.1:1234/v1", ""),
    "vllm": ("http://127.0.0.1:8000/v1", ""),
    "llamacpp": ("http://127.0.0.1:8080/v1", ""),
}
"""Providers with OpenAI's chat completions: their URL, and the variable with the key."""
SCRIPT, CLIENT = "script", "client"
MAX_IDLE = 60.0
"""Seconds between two pieces of an answer, unless it must begin sooner."""


class ModelKeys(NamedTuple):
    """Where the keys of models come from."""

    variables: Mapping[str, str]
    secrets: SecretResolver


def build_models(manifest: Manifest, open_http: OpenHttp, keys: ModelKeys) -> Sequence[ChatModel]:
    """The model of a manifest, and its fallbacks. Raises `ConfigError`."""
    settings = [manifest.model, *manifest.fallback_models]
    if _is_only_script(manifest):
        return [_build_script(manifest)]
    return [_build_model(one, manifest, open_http, keys) for one in settings]


def _is_only_script(manifest: Manifest) -> bool:
    """Whether the manifest has a script and names no model."""
    settings = manifest.model
    return bool(manifest.script) and not settings.model and settings.provider == "openai"


def _build_script(manifest: Manifest) -> ChatModel:
    from dragoman.agents.models.script import ScriptModel

    if not manifest.script:
        raise ConfigError(f'agent "{manifest.name}" has no [[script]] steps')
    try:
        return ScriptModel(manifest.script)
    except ValueError as error:
        raise ConfigError(f'agent "{manifest.name}": {error}') from None


def _build_model(
    settings: ModelSettings, manifest: Manifest, open_http: OpenHttp, keys: ModelKeys
) -> ChatModel:
    if settings.provider == SCRIPT:
        return _build_script(manifest)
    if settings.provider == CLIENT:
        from dragoman.agents.models.client import ClientModel

        return ClientModel(settings.max_tokens, settings.temperature)
    where = f'agent "{manifest.name}"'
    if settings.provider in PROVIDERS:
        model: ChatModel = _build_provider_model(settings, where, open_http, keys)
    else:
        model = _build_openai_model(settings, where, open_http, keys)
    if settings.tool_mode != "constrained":
        return model
    from dragoman.agents.models.constrained import ConstrainedModel

    return ConstrainedModel(model)


def _build_provider_model(
    settings: ModelSettings, where: str, open_http: OpenHttp, keys: ModelKeys
) -> ChatModel:
    provider = PROVIDERS[settings.provider]
    check_installed(where, settings.provider)
    if not settings.model:
        raise ConfigError(f"{where}: model.model is missing: name the model")
    if settings.omit:
        raise ConfigError(
            f"{where}: model.omit is for servers with OpenAI's interfaces, not for the provider "
            f"{settings.provider}"
        )
    if settings.api_key.startswith(("keyring:", "exec:")):
        raise ConfigError(
            f"{where}: the provider {settings.provider} takes its key from env: or file: only"
        )
    key = _find_key(settings, provider.key, where, keys)
    if provider.needs_key and not key:
        if settings.base_url:
            raise ConfigError(
                f"{where}: model.api_key_env is missing: name the variable with the key"
            )
        raise _build_missing_key(where, provider.key)
    base = settings.base_url or provider.url
    return ProviderModel(
        ProviderSettings(
            provider=settings.provider,
            model=settings.model,
            base_url=settings.base_url,
            api_key=key,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            timeout=settings.timeout_secs,
            idle_timeout=min(settings.timeout_secs, MAX_IDLE),
            extra=settings.extra,
        ),
        open_http(base, settings.allow_private) if provider.url else None,
    )


def _build_openai_model(
    settings: ModelSettings, where: str, open_http: OpenHttp, keys: ModelKeys
) -> ChatModel:
    if settings.provider not in BASE_URLS and not settings.base_url:
        known = ", ".join([*BASE_URLS, *PROVIDERS, SCRIPT, CLIENT])
        raise ConfigError(
            f'{where}: unknown model provider "{settings.provider}": use {known}, or give a '
            "base_url"
        )
    if not settings.model:
        raise ConfigError(f"{where}: model.model is missing: name the model")
    from dragoman.agents.models.openai import OpenAiModel, OpenAiSettings

    kind = OpenAiModel
    if settings.api == "responses":
        from dragoman.agents.models.responses import ResponsesModel

        kind = ResponsesModel
    default_url, default_key = BASE_URLS.get(settings.provider, ("", ""))
    if settings.api_key.startswith(("keyring:", "exec:")):
        key, open_http = _hold_key(settings.api_key, where, open_http, keys.secrets)
    else:
        key = _find_key(settings, default_key, where, keys)
    base = settings.base_url or default_url
    return kind(
        OpenAiSettings(
            model=settings.model,
            base_url=base,
            api_key=key,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            timeout=settings.timeout_secs,
            idle_timeout=min(settings.timeout_secs, MAX_IDLE),
            extra=settings.extra,
            omit=settings.omit,
        ),
        open_http(base, settings.allow_private),
    )


class ModelEndpoint(NamedTuple):
    """Where a model is asked, for people."""

    label: str
    """`provider/model`, or `script`."""
    url: str
    """Empty for a script."""
    key_variable: str
    """The variable that has the key; empty if none is sent."""
    needs_key: bool
    """Whether the agent does not start without the variable."""


def describe_models(manifest: Manifest) -> list[ModelEndpoint]:
    """Describes the model of a manifest and its fallbacks, without building them."""
    if _is_only_script(manifest):
        return [ModelEndpoint(SCRIPT, "", "", False)]
    return [_describe_model(one) for one in (manifest.model, *manifest.fallback_models)]


def _describe_model(settings: ModelSettings) -> ModelEndpoint:
    if settings.provider in (SCRIPT, CLIENT):
        return ModelEndpoint(settings.provider, "", "", False)
    url, variable = BASE_URLS.get(settings.provider, ("", ""))
    needs_key = bool(settings.api_key_env or settings.api_key.startswith("env:"))
    if (provider := PROVIDERS.get(settings.provider)) is not None:
        url, variable = provider.url, provider.key
        needs_key = needs_key or provider.needs_key
    return ModelEndpoint(
        f"{settings.provider}/{settings.model}",
        settings.base_url or url,
        _find_key_variable(settings, variable),
        needs_key,
    )


def _hold_key(
    reference: str, where: str, open_http: OpenHttp, secrets: SecretResolver
) -> tuple[str, OpenHttp]:
    """A placeholder for the key, and clients that put the key in its place."""
    placeholder = build_placeholder()

    def open_with_key(url: str, allow_private: bool) -> HttpClient:
        return SecretHeadersClient(
            open_http(url, allow_private),
            {placeholder: reference},
            partial(secrets.resolve_to_send, use=_build_use(where)),
            secrets.forget,
        )

    return placeholder, open_with_key


def _find_key(settings: ModelSettings, default: str, where: str, keys: ModelKeys) -> str:
    if settings.api_key:
        return keys.secrets.resolve_local(settings.api_key, _build_use(where))
    variable = _find_key_variable(settings, default)
    key = keys.variables.get(variable, "") if variable else ""
    if settings.api_key_env and not key:
        raise _build_missing_key(where, settings.api_key_env)
    return key


def _build_use(where: str) -> SecretUse:
    """Manifests are files of the owner; one that an agent writes has the keys of its parent alone
    (`manifest.bind_to_parent`)."""
    return SecretUse(Author.OWNER, where)


def _find_key_variable(settings: ModelSettings, default: str) -> str:
    """The key of a provider goes to that provider only: for a `base_url` it must be named."""
    if settings.api_key:
        kind, _, name = settings.api_key.partition(":")
        return name if kind == "env" else ""
    return settings.api_key_env or ("" if settings.base_url else default)


def _build_missing_key(where: str, variable: str) -> ConfigError:
    return ConfigError(
        f'{where}: the variable "{variable}" is not set: set it in the environment or in the '
        "home's env file"
    )
