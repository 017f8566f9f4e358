"""The model providers known by name: where each one's OpenAI-compatible API is, and its key."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from diptych.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Provider:
    """A service or local server with an OpenAI-compatible API.

    `secret` names the Secret whose key `api-key` authenticates; on a laptop that is the environment
    variable `key_variable`. A provider without one needs no key. The key is sent in `key_header`,
    which without a value means a bearer token. `endpoint_variable` overrides `endpoint`, and
    `base_path` completes an endpoint without a path.
    """

    endpoint: str
    example_model: str
    secret: str = ""
    key_header: str = ""
    endpoint_variable: str = ""
    base_path: str = ""
    has_native_tools: bool = True

    @property
    def key_variable(self) -> str:
        return f"{self.secret}_api_key".replace("-", "_").upper() if self.secret else ""

    @property
    def is_public(self) -> bool:
        """Whether `endpoint` is the same from everywhere."""
        return self.endpoint.startswith("https://")

    def find_endpoint(self, environ: Mapping[str, str]) -> str:
        """Return the API's base URL; "" if only the environment could name it and does not."""
        override = environ.get(self.endpoint_variable, "").strip() if self.endpoint_variable else ""
        return self.complete(override or self.endpoint)

    def complete(self, endpoint: str) -> str:
        """Add the base path to an endpoint that has no path."""
        if not (endpoint and self.base_path) or urlsplit(endpoint).path.strip("/"):
            return endpoint
        return endpoint.rstrip("/") + self.base_path


def _hosted(
    endpoint: str, example_model: str, secret: str, endpoint_variable: str = ""
) -> Provider:
    return Provider(endpoint, example_model, secret, endpoint_variable=endpoint_variable)


PROVIDERS: Mapping[str, Provider] = {
    "openai": _hosted("https://api.openai.com/v1", "gpt-5-mini", "openai", "OPENAI_BASE_URL"),
    "anthropic": _hosted("https://api.anthropic.com/v1", "claude-haiku-4-5", "anthropic"),
    "gemini": _hosted(
        "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash", "gemini"
    ),
    "mistral": _hosted("https://api.mistral.ai/v1", "mistral-small-latest", "mistral"),
    "groq": _hosted("https://api.groq.com/openai/v1", "llama-3.3-70b-versatile", "groq"),
    "deepseek": _hosted("https://api.deepseek.com/v1", "deepseek-chat", "deepseek"),
    "openrouter": _hosted("https://openrouter.ai/api/v1", "openai/gpt-5-mini", "openrouter"),
    "together": _hosted(
        "https://api.together.xyz/v1", "meta-llama/Llama-3.3-70B-Instruct-Turbo", "together"
    ),
    "xai": _hosted("https://api.x.ai/v1", "grok-4", "xai"),
    "azure": Provider(
        "",
        "gpt-5-mini",
        "azure-openai",
        key_header="api-key",
        endpoint_variable="AZURE_OPENAI_ENDPOINT",
        base_path="/openai/v1",
    ),
    "ollama": Provider("http://127.0.0.1:11434/v1", "llama3.2"),
    "lmstudio": Provider("http://127.0.0.1:1234/v1", "qwen/qwen3-4b"),
    "llamacpp": Provider("http://127.0.0.1:8080/v1", "default", has_native_tools=False),
    "vllm": Provider("http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B", has_native_tools=False),
}

KEYED = tuple(name for name, provider in PROVIDERS.items() if provider.secret)
PUBLIC = tuple(name for name, provider in PROVIDERS.items() if provider.is_public)
API_KEY = "api-key"
"""The key of each provider's Secret."""


def unknown_provider(name: str) -> str:
    """Say which providers there are, and which one was probably meant."""
    similar = get_close_matches(name.lower(), PROVIDERS, n=1, cutoff=0.7)
    meant = f'; did you mean "{similar[0]}"?' if similar else ""
    return f"must be one of {', '.join(PROVIDERS)}{meant}"


def provider_model(text: str) -> dict[str, Any]:
    """Return `spec.model` for a text such as `openai:gpt-5-mini`. Raises `ConfigError`."""
    provider, colon, name = text.partition(":")
    if provider in PROVIDERS and name.strip():
        return {"provider": provider, "name": name.strip()}
    if provider in PROVIDERS:
        example = PROVIDERS[provider].example_model
        raise ConfigError(
            f'model "{text}": name a model of {provider}, such as {provider}:{example}'
        )
    if not colon:
        raise ConfigError(
            f'model "{text}": name its provider too, such as openai:{text or "gpt-5-mini"}; the '
            f"provider {unknown_provider(text)}"
        )
    raise ConfigError(f'model "{text}": the provider {unknown_provider(provider)}')


def provider_of(environ: Mapping[str, str]) -> str | None:
    """Return the first provider whose key the environment holds."""
    return next(
        (
            name
            for name in KEYED
            if environ.get(PROVIDERS[name].key_variable, "").strip()
            and PROVIDERS[name].find_endpoint(environ)
        ),
        None,
    )
