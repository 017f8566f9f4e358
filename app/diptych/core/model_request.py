"""A request to a language model, in no API's words."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from diptych.core.messages import JSON, JSONObject, Message
from diptych.core.tokens import message_weight, weight


@dataclass(frozen=True)
class FunctionTool:
    """A function that a model may call natively; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: JSONObject

    @cached_property
    def weight(self) -> int:
        """Our estimate of its tokens; made once, as it is offered with many requests."""
        return weight(f"{self.name} {self.description} {json.dumps(self.parameters)}")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """All that a model is asked with.

    `index` is the number of model calls that the run has on record: a real model does not care, a
    scripted one takes that entry. Without `tools` the model has no native calls to make.
    `output_schema` is the JSON schema that the reply must fit; `{}` means any JSON object.
    `parameters` overlay the manifest's, by the names of the chat completions API. `seconds_left` is
    what the run has left of its time; who asks sets it, as the loop knows no clock. `nonce` is the
    run's, for marks around results if messages with native calls must be written as text.
    `on_wait` is called with the fields of a notice when the reply is waited for: it takes long to
    begin, or is asked for again, or of another model. It must not block.
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
    """Estimate the tokens of a request, with the functions that it offers.

    `known` has the weights of messages that were weighed before, by the ids of these objects.
    """
    functions = functions_weight(request.tools) if request.tools else 0
    if not known:
        return functions + sum(map(message_weight, request.messages))
    return functions + sum(known.get(id(m)) or message_weight(m) for m in request.messages)


def functions_weight(functions: Iterable[FunctionTool]) -> int:
    """Estimate the tokens of functions that a request offers."""
    return sum(function.weight for function in functions)
