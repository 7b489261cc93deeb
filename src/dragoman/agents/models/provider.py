"""Models of providers without OpenAI's chat completions, by the library of the extra `agents`.

The library takes about a second to load, so that is done with the first message, in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dragoman.agents.models.chat import ChatModel, Message, ModelReply, OfferedTool, TakeText
from dragoman.agents.threads import AgentThreads
from dragoman.core.errors import ConfigError
from dragoman.core.structs import Struct
from dragoman.wire.http import HttpClient


class Provider(Struct, frozen=True):
    package: str
    """The provider's own library, which the model library uses."""
    url: str = ""
    """Where requests go that the hub's HTTP client sends; empty if the library sends its own."""
    key: str = ""
    """The variable with the key."""
    needs_key: bool = True


PROVIDERS: Mapping[str, Provider] = {
    "anthropic": Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "google": Provider(
        "google.genai", "https://generativelanguage.googleapis.com", "GOOGLE_API_KEY"
    ),
    "google-cloud": Provider("google.genai", needs_key=False),
    "bedrock": Provider("boto3", key="AWS_BEARER_TOKEN_BEDROCK", needs_key=False),
    "cohere": Provider("cohere", key="CO_API_KEY"),
    "huggingface": Provider("huggingface_hub", key="HF_TOKEN"),
    "xai": Provider("xai_sdk", key="XAI_API_KEY"),
}


class ProviderSettings(Struct, frozen=True, kw_only=True):
    provider: str
    model: str
    base_url: str = ""
    api_key: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float = 120.0
    """Seconds until the answer begins."""
    idle_timeout: float = 60.0
    """Seconds between two pieces of it."""
    extra: Mapping[str, Any] = {}
    """Further members of the request."""


_threads = AgentThreads(1, "model-library")
"""One: two models that are used for the first time at once load the library after another."""


class ProviderModel:
    """Implements `ChatModel`."""

    def __init__(self, settings: ProviderSettings, http: HttpClient | None) -> None:
        """`http` sends the requests, for providers that have a `url`."""
        self.settings = settings
        self.name = settings.model
        self._http = http
        self._model: ChatModel | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        if self._model is None:
            self._model = await _threads.run(_load, (self.settings, self._http))
        return await self._model.complete(messages, tools, on_text, schema)


def _load(given: tuple[ProviderSettings, HttpClient | None]) -> ChatModel:
    from dragoman.agents.models.pydantic_ai import PydanticAiModel

    return PydanticAiModel(*given)


def check_installed(
    where: str, provider: str, is_installed: Callable[[str], bool] | None = None
) -> None:
    """Raises `ConfigError` if a library that the provider needs is missing."""
    is_installed = is_installed or _is_installed
    for package in ("pydantic_ai", PROVIDERS[provider].package):
        if not is_installed(package):
            how = "pip install 'dragoman-hub[agents]'"
            if package != "pydantic_ai":
                how += f" 'pydantic-ai-slim[{provider}]'"
            raise ConfigError(
                f'{where}: the model provider "{provider}" needs the library "{package}", which is '
                f"not installed: {how}"
            )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is part of
        return False
