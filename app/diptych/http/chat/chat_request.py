"""Reads a chat: the request for a run that its body makes, and how the reply is to be written.

Not here: what all requests for runs have in common (`http.run_request`), reading the run
(`http.chat.routes`).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fastapi import Request

from diptych.config.settings import ChatConfig
from diptych.errors import InvalidRequest
from diptych.http.bodies import ChatBody, read_body
from diptych.http.chat.parameters import read_parameters, warning
from diptych.http.messages import read_conversation
from diptych.http.run_request import read_run_request
from diptych.http.typed_output import TypedOutput, read_forced_tools, read_response_format
from diptych.runtime.request import RunRequest

_TOOL_FIELDS = ("tools", "tool_choice", "functions", "function_call")
_SAY_NOTHING: tuple[object, ...] = (None, [], "none", "auto")
_NO_TOOLS = (
    "this agent calls its own tools, and no others. Remove it; or force a call by tool_choice, "
    "or send a response_format, to get an answer of that form; or let the agent's manifest say "
    "chat.callerTools: ignore"
)


@dataclass(frozen=True, slots=True)
class ChatTerms:
    """What chats of an agent may bring; `inputs` is what its model takes besides text."""

    name: str
    config: ChatConfig = field(default_factory=ChatConfig)
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat that was read. `tools` are the caller's tools of one of which the answer is a call.

    `warnings` are headers for the response: they name what of the chat has no effect.
    """

    run_request: RunRequest
    tools: tuple[str, ...]
    streams: bool
    includes_usage: bool
    warnings: Mapping[str, str]


async def read_chat(request: Request, terms: ChatTerms) -> ChatRequest:
    """Read a chat. Raises `InvalidRequest`."""
    body = await read_body(request, ChatBody)
    check_model(body.model, terms.name)
    fields = dict(body.model_extra or {})
    output, ignored_tools = await _read_tools(body, fields, terms.config)
    parameters = read_parameters(fields, terms.config.allow_parameters)
    run = await read_run_request(
        request,
        read_conversation(body.messages, terms.inputs),
        session_id=body.session_id,
        on_disconnect=body.on_disconnect,
    )
    options = body.stream_options
    is_left_out = bool(run.system) and terms.config.caller_system == "off"
    left_out = ("system",) if is_left_out else ()
    return ChatRequest(
        run_request=replace(
            run,
            output_schema=output.schema,
            parameters=parameters.allowed,
            max_steps=body.max_steps,
            when_busy=body.when_busy,
        ),
        tools=output.tools,
        streams=bool(body.stream),
        includes_usage=bool(options and options.include_usage),
        warnings=warning((*left_out, *ignored_tools, *parameters.ignored)),
    )


async def _read_tools(
    body: ChatBody, fields: dict[str, object], config: ChatConfig
) -> tuple[TypedOutput, tuple[str, ...]]:
    """Read the form of the answer, and name the fields of tools that have no effect.

    What was read is taken out of `fields`, the body's other fields.
    """
    if fields.pop("output_schema", None) is not None:
        raise InvalidRequest(
            "output_schema: a chat says it by response_format",
            param="output_schema",
            code="unsupported_parameter",
        )
    given = {
        "tools": body.tools,
        "tool_choice": body.tool_choice,
        "functions": fields.pop("functions", None),
        "function_call": fields.pop("function_call", None),
    }
    output, forced = TypedOutput(), None
    if body.response_format is not None or body.tools:
        output, forced = await asyncio.to_thread(_read_forms, body)
    if forced:
        return forced, ()
    present = tuple(name for name in _TOOL_FIELDS if given[name] not in _SAY_NOTHING)
    if body.tool_choice == "none":  # OpenAI's own way to say that the tools are not to be used
        present = tuple(name for name in present if name != "tools")
    refused = next((name for name in present if name in ("tools", "functions")), None)
    if refused and config.caller_tools == "refuse":
        raise InvalidRequest(f"{refused}: {_NO_TOOLS}", param=refused, code="unsupported_parameter")
    return output, present


def _read_forms(body: ChatBody) -> tuple[TypedOutput, TypedOutput | None]:
    output = TypedOutput(read_response_format(body.response_format))
    return output, read_forced_tools(body.tools, body.tool_choice)


def check_model(model: str | None, name: str) -> None:
    """Refuse a chat with another model than the agent. Raises `InvalidRequest`."""
    if model is not None and model != name:
        raise InvalidRequest(
            f"this agent is called {name!r}; use that as the model, or leave it out",
            param="model",
            code="model_not_found",
        )
