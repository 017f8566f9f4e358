"""Tests of agents without a model and without effects, for any test runner.

from diptych import Agent
from diptych.testing import RecordedTool, ScriptedModel, call

def test_the_cashier_pays_once():
    pay = RecordedTool(cashier.pay, returns="paid")
    model = ScriptedModel(call("pay", amount=5), "Paid.", "You are welcome.")
    agent = Agent("cashier", model=model, tools=[pay])
    assert agent.run_sync("Pay 5 €.", session_id="s").text == "Paid."
    assert agent.run_sync("Thanks!", session_id="s").text == "You are welcome."
    assert pay.calls == [{"amount": 5}]
    assert "Thanks!" in model.requests[-1][-1].content
    assert model.left == 0
"""

import inspect
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from diptych.core.errors import ModelError
from diptych.core.messages import Message, Usage
from diptych.core.model_request import ModelRequest
from diptych.ports import Delta, Reply

__all__ = ["Call", "Raw", "RecordedTool", "ScriptedModel", "call", "delegate", "raw"]

_NOTHING: Any = object()
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Call:
    """A reply that makes calls, as the model writes them."""

    written: str

    def __and__(self, other: "Call") -> "Call":
        """Make the calls of both in one step."""
        return Call(json.dumps(_calls(self) + _calls(other)))


@dataclass(frozen=True, slots=True)
class Raw:
    """A reply as it is, in whatever phase the model is asked."""

    text: str


def call(tool: str, /, **arguments: Any) -> Call:  # noqa: ANN401 - any JSON
    """Return a reply that calls a tool; two of them joined by `&` are one step."""
    return Call(json.dumps({"tool": tool, "arguments": arguments}))


def delegate(agent: str, task: str) -> Call:
    """Return a reply that delegates a task to another agent."""
    return Call(json.dumps({"agent": agent, "task": task}))


def raw(text: str) -> Raw:
    """Return a reply that is no call and no answer, such as broken JSON."""
    return Raw(text)


class ScriptedModel:
    """A model that replies in order, across all runs: several turns are one script.

    A text is an answer. Where the model is asked for calls and an answer is next, it calls nothing,
    so scripts need no `{}`. When there is no reply left the run fails with `mock_exhausted`.
    `requests` holds the messages of each request.
    """

    def __init__(self, *replies: str | Call | Raw) -> None:
        self._replies = list(replies)
        self.requests: list[tuple[Message, ...]] = []

    @property
    def left(self) -> int:
        """How many replies were not asked for."""
        return len(self._replies)

    def then(self, *replies: str | Call | Raw) -> None:
        """Add replies."""
        self._replies += replies

    async def complete(self, request: ModelRequest, /) -> Reply:
        """Reply to a request for calls."""
        self.requests.append(request.messages)
        if self._replies and isinstance(self._replies[0], str):
            return _reply("{}", request)
        return _reply(self._next(), request)

    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[Delta, None]:
        """Reply to a request for the answer, in one piece."""
        self.requests.append(request.messages)
        reply = _reply(self._next(), request)
        yield Delta(reply.text, usage=reply.usage, finish_reason=reply.finish_reason)

    def _next(self) -> str:
        if not self._replies:
            raise ModelError("mock_exhausted", "the ScriptedModel has no reply left; add one")
        reply = self._replies.pop(0)
        if isinstance(reply, str):
            return reply
        return reply.text if isinstance(reply, Raw) else reply.written


class RecordedTool(Generic[_Parameters, _Result]):
    """A tool that records the arguments of its calls in `calls`, by name.

    It has the name, types, docstring and marks of `function`. With `returns` or `raises` the
    function itself is never called.
    """

    def __init__(
        self,
        function: Callable[_Parameters, _Result],
        *,
        returns: Any = _NOTHING,  # noqa: ANN401 - the author's own type
        raises: BaseException | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.calls: list[Mapping[str, Any]] = []
        self._function = function
        self._returns = returns
        self._raises = raises

    def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        bound = inspect.signature(self._function).bind(*args, **kwargs)
        self.calls.append(dict(bound.arguments))
        if self._raises is not None:
            raise self._raises
        if self._returns is not _NOTHING:
            returned: _Result = self._returns
            return returned
        return self._function(*args, **kwargs)


def _calls(reply: Call) -> list[Any]:
    made = json.loads(reply.written)
    return made if isinstance(made, list) else [made]


def _reply(text: str, request: ModelRequest) -> Reply:
    """Return a reply whose usage is in words, so that every run has some."""
    words = sum(len(message.content.split()) for message in request.messages)
    return Reply(text, Usage(words, len(text.split())))
