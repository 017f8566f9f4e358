"""The part of a manifest that says which model an agent thinks with."""

from typing import Annotated, Literal

from pydantic import Field

from diptych.config.manifest.field_types import Duration, Later, Temperature, Url, Word, only_yet
from diptych.config.manifest.strict_model import SecretSource, Wire


class Parameters(Wire):
    """What the model is asked with; what is absent is left to the endpoint."""

    temperature: Temperature | None = None
    """From 0 to 2, as a string such as "0.2" (the Kubernetes API knows no fractions)."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """How long one reply may be."""
    reasoning_effort: Word | None = None
    """How much a reasoning model is to think, in its endpoint's words, such as `low`."""


class Timeouts(Wire):
    """How long a model may take; durations such as 500ms, 30s, 1m30s."""

    connect: Duration = 5.0
    """To accept a connection."""
    first_byte: Duration = 60.0
    """To begin its reply."""
    idle: Duration = 30.0
    """Between two pieces of its reply."""
    total: Duration = 300.0
    """For one whole reply."""


class ModelSpec(Wire):
    """A model behind any OpenAI-compatible endpoint."""

    name: Word
    """The model's name, as its endpoint knows it."""
    endpoint: Url
    """The base URL of an OpenAI-compatible API, such as https://models.example.com/v1."""
    api_key: SecretSource | None = None
    """The key that is sent to the endpoint."""
    action_format: Annotated[Literal["json", "native", "auto"], only_yet("json")] = "json"
    """How the model says which tools to call: as JSON in its text."""
    fallbacks: Later = None
    parameters: Parameters = Field(default_factory=Parameters)
    """What the model is asked with."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """How long the model may take."""
    prices: Later = None
