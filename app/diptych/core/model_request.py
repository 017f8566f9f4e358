"""A request to a language model, independent of any API."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from diptych.core.messages import JSON, JSONObject, Message
from diptych.core.tokens import message_weight, weight


@dataclass(frozen=True)
class FunctionTool:
    """A function that a model may call natively; `parameters` is a JSON schema.

    `is_callers`: it is of one run's caller, not of the agent.
    """

    name: str
    description: str
    parameters: JSONObject
    is_callers: bool = False

    @cached_property
    def weight(self) -> int:
        """The estimated tokens, cached, as many requests offer the function."""
        return weight(f"{self.name} {self.description} {json.dumps(self.parameters)}")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The input of one model call.

    `index` counts the run's earlier model calls; a scripted model replies with that entry.
    `output_schema` is the JSON schema for the reply; `{}` means any JSON object. `parameters`
    override the manifest's, under the names of the chat completions API. `seconds_left` is the
    run's remaining time, set by the runner, as the loop has no clock. `nonce` marks results when
    native messages must be written as text. `on_wait` receives the fields of a notice when the
    reply is slow, retried, or asked of a fallback; it must not block.
    """

    messages: tuple[Message, ...]
    index: int = 0
    tools: tuple[FunctionTool, ...] = ()
    output_schema: JSONObject | None = None
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    nonce: str = ""
    seconds_left: float | None = field(default=None, compare=False)
    on_wait: Callable[[JSONObject], None] | None = field(default=None, compare=False)


def request_weight(request: ModelRequest, known: Mapping[int, int] | None = None) -> int:
    """Estimate a request's tokens, with its functions.

    `known` has weights that were computed before, by `id(message)`.
    """
    functions = functions_weight(request.tools) if request.tools else 0
    if not known:
        return functions + sum(map(message_weight, request.messages))
    return functions + sum(known.get(id(m)) or message_weight(m) for m in request.messages)


def functions_weight(functions: Iterable[FunctionTool]) -> int:
    """Estimate the tokens of a request's functions."""
    return sum(function.weight for function in functions)
