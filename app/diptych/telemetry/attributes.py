"""Names and values of span attributes, after OpenTelemetry's conventions for generative AI.

Attributes outside of the conventions are `diptych.*`. Values contain no text of callers, models or
tools, except for the names of tools and agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from diptych.core.commands import AskModel
from diptych.core.messages import Usage
from diptych.core.text import shortened, well_formed

Value: TypeAlias = str | bool | int | float | tuple[str, ...]
Attributes: TypeAlias = dict[str, Value]

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR = "error.type"
RUN_ID = "diptych.run.id"
STATUS = "diptych.run.status"
OWNERS = "diptych.run.owner_changes"
STEP = "diptych.step"
CALL_ID = "diptych.call.id"
DECISION = "diptych.approval.decision"
CHILD_RUN = "diptych.child.run.id"
PURPOSE = "diptych.model.purpose"
ATTEMPTS = "diptych.model.attempts"

_MAX_WORD = 100  # characters of a reason or code from a model or another agent
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROVIDERS = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
    "ml.cloud.ibm.com": "ibm.watsonx.ai",
    "api.cohere.com": "cohere",
    "api.cohere.ai": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}
_NUMBERS: Mapping[str, tuple[str, type[float]]] = {
    "temperature": ("gen_ai.request.temperature", float),
    "top_p": ("gen_ai.request.top_p", float),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", float),
    "presence_penalty": ("gen_ai.request.presence_penalty", float),
    "max_tokens": ("gen_ai.request.max_tokens", int),
    "max_completion_tokens": ("gen_ai.request.max_tokens", int),
    "seed": ("gen_ai.request.seed", int),
}


@dataclass(frozen=True, slots=True)
class TracedAgent:
    """An agent, as described in its spans. `servers` maps tool servers and agents to their URLs.

    `endpoint` is the model's, "" for an in-process model; `parameters` are the manifest's.
    """

    name: str
    description: str = ""
    version: str = ""
    model: str = ""
    endpoint: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    servers: Mapping[str, str] = field(default_factory=dict)


def agent_attributes(agent: TracedAgent) -> Attributes:
    """Return the attributes of an agent and its model."""
    about = _attributes("invoke_agent", agent)
    if agent.description:
        about["gen_ai.agent.description"] = agent.description
    return about


def chat_attributes(agent: TracedAgent, command: AskModel) -> Attributes:
    """Return the attributes of a model request, without its contents."""
    request = command.request
    about = _attributes("chat", agent) | server_attributes(agent.endpoint)
    about[PURPOSE] = command.purpose
    if command.is_streamed:
        about["gen_ai.request.stream"] = True
    if request.output_schema is not None:
        about["gen_ai.output.type"] = "json"
    return about | _parameters({**agent.parameters, **request.parameters})


def call_attributes(kind: str, target: str, call_id: str, url: str = "") -> Attributes:
    """Return the attributes of a call of a tool or agent."""
    about = server_attributes(url)
    about[CALL_ID] = call_id
    if kind == "agent":
        return {OPERATION: "invoke_agent", PROVIDER: "diptych", AGENT: target, **about}
    about |= {OPERATION: "execute_tool", TOOL: target, TOOL_CALL_ID: call_id}
    return {**about, "gen_ai.tool.type": "extension", "mcp.method.name": "tools/call"}


def usage_attributes(usage: Usage) -> Attributes:
    """Return the token counts, if they are known."""
    if not usage.is_known:
        return {}
    return {INPUT_TOKENS: usage.prompt_tokens, OUTPUT_TOKENS: usage.completion_tokens}


def server_attributes(url: str) -> Attributes:
    """Return host and port of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return {}
    if not parts.hostname:
        return {}
    found: Attributes = {"server.address": parts.hostname}
    return {**found, "server.port": port} if port else found


def provider(endpoint: str) -> str:
    """Return the provider of an endpoint by its host; `openai` for any unknown host.

    An in-process model ("") belongs to no provider of the conventions, and is `diptych`.
    """
    if not endpoint:
        return "diptych"
    host = str(server_attributes(endpoint).get("server.address", ""))
    return next(
        (name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}")),
        "openai",
    )


def word(text: object) -> str:
    """Return external text, cleaned and cut to `_MAX_WORD` characters."""
    return shortened(well_formed(str(text)), _MAX_WORD)


def _attributes(operation: str, agent: TracedAgent) -> Attributes:
    model: Attributes = {REQUEST_MODEL: agent.model} if agent.model else {}
    return {OPERATION: operation, PROVIDER: provider(agent.endpoint), AGENT: agent.name, **model}


def _parameters(given: Mapping[str, Any]) -> Attributes:
    found: Attributes = {}
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name in _NUMBERS:
            attribute, number = _NUMBERS[name]
            found[attribute] = number(value)
    return found
