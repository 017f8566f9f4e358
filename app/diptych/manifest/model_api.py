"""The `ModelAPI` manifest: a model endpoint, its key and its limits, for many Agents."""

from typing import Annotated, Literal

from pydantic import Field

from diptych.manifest.budget import Count, Money, PricesSpec
from diptych.manifest.cluster import AllowedNamespaces, ImageName, Quantity, Resources
from diptych.manifest.fields import LongList, ObjectName, OneLine, Port, Text
from diptych.manifest.metadata import SharedManifest
from diptych.manifest.model import Address, FallbackSpec, Parameters, Timeouts
from diptych.manifest.rules import Rule, StrictModel
from diptych.manifest.sessions import RedisSpec


class ApiLimits(StrictModel):
    """The limits of a day."""

    tokens: Count | None = None
    """Tokens of prompts and replies together, as the model counts them."""
    cost: Money | None = None
    """Money, as a string such as "40". It needs prices, and is in their currency."""


class ApiBudget(StrictModel):
    """How much all Agents that use the ModelAPI may use together."""

    per_day: ApiLimits
    """How much they may use on a day, which begins at midnight UTC."""


class ProxySpec(StrictModel):
    """Pods that hold the key and pass the Agents' requests on."""

    replicas: Annotated[int, Field(ge=0, le=100)] = 1
    """How many pods there are."""
    resources: Resources | None = None
    """Requests and limits in place of the operator's defaults."""


class ModelStorage(StrictModel):
    """A volume for the weights of models, which outlives the pod."""

    size: Quantity
    """The size of the volume, such as 50Gi."""
    storage_class_name: ObjectName | None = None
    """The StorageClass; the cluster's default if absent."""


class HostedSpec(StrictModel):
    """A model server in the cluster: a Deployment and a Service."""

    engine: Literal["ollama", "vllm", "llamacpp"]
    """The server. It decides the port, and the folder of the weights."""
    image: ImageName
    """The server's image."""
    args: LongList[Text] = ()
    """The arguments of the server, such as the model to load."""
    port: Port | None = None
    """The port that it listens at; the engine's usual one if absent."""
    resources: Resources | None = None
    """The resources that the server requests, and its limits, such as nvidia.com/gpu."""
    storage: ModelStorage | None = None
    """A volume for the weights. If absent, they are loaded again with each pod."""


class ModelApiSpec(Address):
    """A model endpoint, its key and its limits."""

    at_least_one_of = ("provider", "endpoint", "hosted")
    rules = (
        Rule(
            "!has(self.hosted) || !has(self.endpoint) && !has(self.provider)",
            "needs only one of hosted and an endpoint or provider",
            lambda spec: spec.hosted is None or not (spec.endpoint or spec.provider),
        ),
        *Address.rules,
        Rule(
            "!has(self.default) || !has(self.models) || self.default in self.models",
            "default must stand in models, letter for letter",
            lambda spec: spec.default is None or not spec.models or spec.default in spec.models,
        ),
        Rule(
            "!has(self.budget) || has(self.proxy) && has(self.redis)",
            "budget needs proxy, which counts, and redis, where its pods count together",
            lambda spec: spec.budget is None or (spec.proxy and spec.redis),
        ),
        Rule(
            "!has(self.budget) || !has(self.budget.perDay.cost) || has(self.prices)",
            "budget.perDay.cost needs prices: input and output of a million tokens, by model",
            lambda spec: spec.budget is None or not spec.budget.per_day.cost or spec.prices,
        ),
        Rule(
            "!has(self.allowedNamespaces) || self.allowedNamespaces.from == 'Same'"
            " || has(self.proxy)",
            "allowedNamespaces needs proxy: the key does not leave its namespace",
            lambda spec: (
                spec.allowed_namespaces is None
                or spec.allowed_namespaces.from_ == "Same"
                or spec.proxy
            ),
        ),
    )

    models: LongList[OneLine] = ()
    """The models that Agents may name: names or globs such as "gpt-5*". All if absent."""
    default: OneLine | None = None
    """The model of Agents that name none. It stands in `models`, too, if there are any."""
    parameters: Parameters = Field(default_factory=Parameters)
    """Parameters of each request. An Agent's own come before them."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """Time limits of requests. An Agent's own come before them."""
    prices: Annotated[dict[OneLine, PricesSpec], Field(max_length=64)] = Field(default_factory=dict)
    """Prices of a million tokens, by the model's name. An Agent's own come before them."""
    fallbacks: Annotated[tuple[FallbackSpec, ...], Field(strict=False, max_length=8)] = ()
    """Models to ask, one after the other, when this endpoint cannot be reached, fails or is too
    slow. An Agent's own come before them."""
    budget: ApiBudget | None = None
    """How much all Agents that use it may use together. It needs proxy and redis."""
    redis: RedisSpec | None = None
    """The Redis in which the budget is counted."""
    allowed_namespaces: AllowedNamespaces | None = None
    """The namespaces whose Agents may use it; its own namespace if absent. Others need proxy."""
    proxy: ProxySpec | None = None
    """Pods that hold the key and pass requests on. Without them, the pods of the Agents hold it."""
    hosted: HostedSpec | None = None
    """A model server in the cluster, in place of an endpoint."""


class ModelApiManifest(SharedManifest):
    """An endpoint of models with its keys and limits, which Agents refer to."""

    kind: Literal["ModelAPI"]
    """The kind of the manifest."""
    spec: ModelApiSpec
    """The endpoint, its key and its limits."""
