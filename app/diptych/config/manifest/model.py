"""The part of a manifest that says which model an agent asks, and how."""

from typing import Annotated, Literal

from pydantic import Field

from diptych.config.manifest.durations import Duration
from diptych.config.manifest.field_types import OneLine, Temperature, Unsupported
from diptych.config.manifest.references import SecretSource
from diptych.config.manifest.rules import SupportedValues
from diptych.config.manifest.strict_model import StrictModel
from diptych.config.manifest.urls import Url
from diptych.config.settings import TimeoutConfig

_TIMEOUTS = TimeoutConfig()


class Parameters(StrictModel):
    """Parameters of each request to the model; the endpoint decides those that are absent."""

    temperature: Temperature | None = None
    """From 0 to 2, as a string such as "0.2" (the Kubernetes API has no fractions)."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """The most tokens of one reply."""
    reasoning_effort: OneLine | None = None
    """How much a reasoning model reasons, in the endpoint's words, such as `low`."""


class Timeouts(StrictModel):
    """How long a model may take."""

    connect: Duration = _TIMEOUTS.connect
    """Until the endpoint accepts a connection."""
    first_byte: Duration = _TIMEOUTS.first_byte
    """Until the reply begins, from the start of the attempt."""
    idle: Duration = _TIMEOUTS.idle
    """Between two pieces of the reply."""
    total: Duration = _TIMEOUTS.total
    """Until the reply is complete, with all retries."""


class ModelSpec(StrictModel):
    """A model behind any OpenAI-compatible endpoint."""

    name: OneLine
    """The model's name, as its endpoint knows it."""
    endpoint: Url
    """The base URL of an OpenAI-compatible API, such as https://models.example.com/v1."""
    api_key: SecretSource | None = None
    """The Secret that holds the endpoint's API key."""
    action_format: Annotated[Literal["json", "native", "auto"], SupportedValues(("json",))] = "json"
    """How the model says which tools to call: `json` means as JSON in the text of its reply."""
    fallbacks: Unsupported = None
    parameters: Parameters = Field(default_factory=Parameters)
    """Parameters of each request to the model."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """How long the model may take."""
    prices: Unsupported = None
