"""Reads a chat: the request for a run that its body makes, and how the reply is to be written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastapi import Request

from diptych.core.errors import InvalidRequest
from diptych.http.answer_form import TypedOutput
from diptych.http.bodies import ChatBody, read_body
from diptych.http.caller_tools import AskedForm, read_answer_form
from diptych.http.chat_terms import ChatTerms, check_model
from diptych.http.messages import read_conversation
from diptych.http.parameters import read_parameters, warning
from diptych.http.run_request import read_run_request
from diptych.manifest.settings import ChatConfig
from diptych.runs.request import RunRequest


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
    older = {
        "functions": fields.pop("functions", None),
        "function_call": fields.pop("function_call", None),
    }
    asked = AskedForm(body.response_format, body.tools, body.tool_choice, older)
    return await read_answer_form(asked, config.caller_tools)
