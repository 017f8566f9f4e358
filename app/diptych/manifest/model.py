"""The part of a manifest that says which model an agent asks, and how."""

from typing import Annotated, ClassVar, TypeAlias

from pydantic import AfterValidator, Field

from diptych.core.run_settings import ActionFormat, RunSettings
from diptych.manifest.budget import PricesSpec
from diptych.manifest.fields import (
    DnsLabel,
    Duration,
    Headers,
    OneLine,
    SecretSource,
    ShortList,
    Url,
    decimal,
)
from diptych.manifest.metadata import SharedName
from diptych.manifest.providers import KEYED, PROVIDERS, PUBLIC, unknown_provider
from diptych.manifest.rules import Rule, StrictModel, rule_error
from diptych.manifest.settings import InputKind, TimeoutConfig

_TIMEOUTS = TimeoutConfig()
KEY_HEADERS = ("authorization", "api-key")
"""Headers that carry a key, in place of `apiKey`."""
NEEDS_ENDPOINT = (
    "a cluster needs endpoint here: this provider is on the agent's machine, or has no common "
    "address"
)
NEEDS_KEY = "a cluster needs apiKey for this provider: {secretKeyRef: {name: …, key: api-key}}"


def _known_provider(name: str) -> str:
    if name not in PROVIDERS:
        raise rule_error(unknown_provider(name))
    return name


ProviderName: TypeAlias = Annotated[
    str, AfterValidator(_known_provider), Field(json_schema_extra={"enum": list(PROVIDERS)})
]


class Parameters(StrictModel):
    """Parameters of each request to the model; the endpoint decides those that are absent."""

    temperature: (
        Annotated[
            float,
            decimal(
                3,
                'must be a decimal from 0 to 2 as a string, such as "0.2"',
                most=2,
                max_length=10,
            ),
            AfterValidator(float),
        ]
        | None
    ) = None
    """From 0 to 2, as a string such as "0.2" (the Kubernetes API has no fractions)."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """The most tokens of one reply."""
    reasoning_effort: OneLine | None = None
    """The reasoning effort, as the endpoint names it, such as `low`."""


class Timeouts(StrictModel):
    """Time limits of requests to the model."""

    connect: Duration = _TIMEOUTS.connect
    """Until the endpoint accepts a connection."""
    first_byte: Duration = _TIMEOUTS.first_byte
    """Until the reply begins, from the start of the attempt or the last keep-alive."""
    idle: Duration = _TIMEOUTS.idle
    """Between two pieces of the reply."""
    total: Duration = _TIMEOUTS.total
    """Until the reply is complete, with all retries."""


class Address(StrictModel):
    """The fields that a model, its fallbacks and a ModelAPI share."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.apiKey) || !has(self.headers)"
            " || self.headers.all(x, x.name.lowerAscii() != 'authorization')",
            "needs only one of apiKey and a header Authorization",
            lambda spec: (
                spec.api_key is None
                or all(header.name.lower() != "authorization" for header in spec.headers)
            ),
        ),
        # On a laptop the environment has what these two ask for; `diptych check` checks them.
        Rule(
            f"has(self.endpoint) || !has(self.provider) || self.provider in {list(PUBLIC)}",
            NEEDS_ENDPOINT,
        ),
        Rule(
            f"has(self.apiKey) || !has(self.provider) || !(self.provider in {list(KEYED)})"
            f" || has(self.headers) && self.headers.exists(x, x.name.lowerAscii() in"
            f" {list(KEY_HEADERS)})",
            NEEDS_KEY,
        ),
    )

    provider: ProviderName | None = None
    """Whose model it is: a service, or a server on this machine. It implies the endpoint, and on a
    laptop the environment variable with the key, such as `OPENAI_API_KEY`. `openai` reads
    `OPENAI_BASE_URL`, `azure` needs `AZURE_OPENAI_ENDPOINT`."""
    endpoint: Url | None = None
    """The base URL of an OpenAI-compatible API, such as https://models.example.com/v1. It may end
    in /chat/completions, and have a query. A bare host gets /v1. It overrides the provider's, and
    is required without one; in a cluster also for azure and servers on the agent's machine."""
    api_key: SecretSource | None = None
    """The Secret that holds the endpoint's API key, which is sent as a bearer token, to azure as
    its header `api-key`. In a cluster it is required where the provider has keys."""
    headers: Headers = ()
    """HTTP headers that every request carries, such as the `api-key` of Azure."""

    @property
    def carries_key(self) -> bool:
        """Whether the manifest says which key to send."""
        is_header = any(header.name.lower() in KEY_HEADERS for header in self.headers)
        return self.api_key is not None or is_header


class ApiRef(StrictModel):
    """A ModelAPI."""

    name: SharedName
    """The ModelAPI's name."""
    namespace: DnsLabel | None = None
    """Its namespace, if it is another one. The ModelAPI's allowedNamespaces must agree."""


class _Endpoint(Address):
    """The fields that a model and its fallbacks share."""

    at_least_one_of = ("provider", "endpoint", "apiRef")
    usual = ("name",)
    rules = (
        Rule(
            "!has(self.apiRef) || !has(self.provider) && !has(self.endpoint)"
            " && !has(self.apiKey) && !has(self.headers)",
            "apiRef takes provider, endpoint, apiKey and headers from the ModelAPI; remove them",
            lambda spec: (
                spec.api_ref is None
                or not (spec.provider or spec.endpoint or spec.api_key or spec.headers)
            ),
        ),
        Rule(
            "has(self.name) || has(self.apiRef)",
            "name is required: the model's name, as its endpoint knows it",
            lambda spec: spec.name is not None or spec.api_ref is not None,
        ),
        *Address.rules,
    )

    api_ref: ApiRef | None = None
    """The ModelAPI that has the endpoint, its key and its limits."""
    name: OneLine | None = None
    """The model's name, as its endpoint knows it. With apiRef the ModelAPI's default if absent."""


class FallbackSpec(_Endpoint):
    """A model that is asked when the one before it gives no reply."""

    parameters: Parameters | None = None
    """Parameters of each request to this model; those of the model itself if absent."""


class ModelSpec(_Endpoint):
    """A model behind any OpenAI-compatible endpoint."""

    action_format: ActionFormat = RunSettings().action_format
    """The form of the model's calls: `json` as JSON in the text of its reply,
    `native` in the API's own `tool_calls`, `auto` natively unless the endpoint refuses tools."""
    inputs: ShortList[InputKind] = ()
    """Inputs that the model takes besides text: `image`, `audio`, `file`. A chat with any other is
    refused."""
    fallbacks: Annotated[tuple[FallbackSpec, ...], Field(strict=False, max_length=8)] = ()
    """Models to ask, one after the other, when this one cannot be reached, fails or is too slow."""
    parameters: Parameters = Field(default_factory=Parameters)
    """Parameters of each request to the model."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """Time limits of requests; `total` includes its fallbacks."""
    prices: PricesSpec | None = None
    """Prices of a million tokens, which budget.cost needs. Fallbacks are charged at the same."""
