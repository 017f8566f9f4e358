"""The forms in which Python names a model: text, mapping, `ModelAPI`, and objects of its own."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from diptych import ports
from diptych.core.errors import ConfigError, ModelError
from diptych.core.messages import Message
from diptych.core.model_request import ModelRequest
from diptych.manifest.providers import provider_model
from diptych.manifest.secret_sources import Reference
from diptych.ports import Delta, Reply

_IN_PROCESS = {"name": "in-process", "endpoint": "http://in-process.invalid"}
"""The model of the manifest in place of a model object, which has no endpoint; never asked."""
_KEY_REF = {"name": "argument-of-agent", "key": "model-key"}
_FORMS = (
    'give "provider:name" such as "openai:gpt-5-mini", a mapping as in spec.model, a ModelAPI, or '
    "an object with complete and stream, or with generate"
)
_ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


class Model(Protocol):
    """A language model of your own.

    `complete` returns a whole reply, `stream` the pieces of one; the last piece, and only it, has a
    `finish_reason`. Both raise `ModelError` where there is no reply.
    """

    async def complete(self, request: ModelRequest, /) -> Reply: ...

    def stream(self, request: ModelRequest, /) -> AsyncGenerator[Delta, None]: ...


class TextModel(Protocol):
    """A model that continues a prompt. It runs in a thread, unless it is async."""

    def generate(self, prompt: str, **parameters: Any) -> Any: ...  # noqa: ANN401 - a text, maybe awaited


@dataclass(frozen=True, slots=True)
class ModelAPI:
    """A model behind any OpenAI-compatible endpoint."""

    endpoint: str
    name: str
    api_key: str | None = field(default=None, repr=False)


ModelSource: TypeAlias = str | Mapping[str, Any] | ModelAPI | Model | TextModel
"""What `Agent` takes as its model."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model as `spec.model`, with the variables that it refers to; or an object."""

    spec: Mapping[str, Any] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    model: ports.Model | None = None


def choose_model(agent: str, given: ModelSource | None, action_format: str | None) -> ChosenModel:
    """Read what `model=` says. Raises `ConfigError` for anything that is no model."""
    if given is None:
        return ChosenModel()
    environ: dict[str, str] = {}
    model: ports.Model | None = None
    spec: Mapping[str, Any]
    if isinstance(given, str):
        spec = _of_text(agent, given)
    elif isinstance(given, Mapping):
        spec = given
    elif isinstance(given, ModelAPI):
        spec = {"name": given.name, "endpoint": given.endpoint}
        if given.api_key is not None:
            spec["apiKey"] = {"secretKeyRef": _KEY_REF}
            environ[Reference("Secret", **_KEY_REF).variable] = given.api_key
    else:
        spec, model = _IN_PROCESS, _of_object(agent, given)
    if action_format is not None:
        spec = {**spec, "actionFormat": action_format}
    return ChosenModel(spec, environ, model)


def _of_text(agent: str, given: str) -> Mapping[str, Any]:
    try:
        return provider_model(given)
    except ConfigError as error:
        raise ConfigError(f"Agent({agent!r}): {error}") from None


def _of_object(agent: str, given: Any) -> ports.Model:  # noqa: ANN401 - checked here
    place = f"Agent({agent!r}): model:"
    if isinstance(given, type):
        raise ConfigError(
            f"{place} {given.__name__} is a class; make an object: {given.__name__}(…)"
        )
    if ports.Model in type(given).__mro__:
        checked: ports.Model = given
        return checked
    if callable(getattr(given, "complete", None)) and callable(getattr(given, "stream", None)):
        return ObjectModel(given)
    if callable(getattr(given, "generate", None)):
        return GeneratingModel(given)
    raise ConfigError(f"{place} {given!r:.60} is no model; {_FORMS}")


class ObjectModel(ports.Model):
    """An object with `complete` and `stream`; whatever it raises becomes a `ModelError`."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def complete(self, request: ModelRequest) -> Reply:
        try:
            reply = await self._model.complete(request)
        except (Exception, SystemExit) as error:
            raise _failed(error) from error
        checked: Reply = _of_type("complete", reply, Reply)
        return checked

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        is_whole = False
        try:
            async for delta in self._model.stream(request):
                is_whole |= _of_type("stream", delta, Delta).finish_reason is not None
                yield delta
        except (Exception, SystemExit) as error:
            raise _failed(error) from error
        if not is_whole:
            raise ModelError("model_cut", "the last piece of the stream has no finish_reason")


class GeneratingModel(ports.Model):
    """An object with `generate`, which gets the conversation as one prompt."""

    def __init__(self, model: TextModel) -> None:
        self._generate = model.generate

    async def complete(self, request: ModelRequest) -> Reply:
        prompt, parameters = _prompt(request.messages), dict(request.parameters)
        try:
            if inspect.iscoroutinefunction(self._generate):
                text = await self._generate(prompt, **parameters)
            else:
                text = await asyncio.to_thread(self._generate, prompt, **parameters)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # in a thread, not Ctrl-C
            raise _failed(error) from error
        return Reply(_of_type("generate", text, str))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        reply = await self.complete(request)
        yield Delta(reply.text, finish_reason=reply.finish_reason)


def _prompt(messages: tuple[Message, ...]) -> str:
    parts = [f"{_ROLES[message.role]}: {message.content}" for message in messages]
    return "\n\n".join([*parts, "Assistant:"])


def _failed(error: BaseException) -> ModelError:
    if isinstance(error, ModelError):
        return error
    return ModelError("model_failed", f"the model raised {type(error).__name__}: {error}")


def _of_type(method: str, given: Any, kind: type[Any]) -> Any:  # noqa: ANN401 - checked here
    if isinstance(given, kind):
        return given
    raise ModelError(
        "model_garbage", f"{method} of the model gave {type(given).__name__}, not {kind.__name__}"
    )
