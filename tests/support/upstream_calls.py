"""Habits of servers in native calls: each must arrive as the call that was meant."""

from dataclasses import replace
from typing import Any

from support.upstream_habits import WITH_TOOLS, Habit, Meant, call, chunk, said, sse, whole
from support.upstream_server import Answer

from diptych.core.messages import NativeCall

_ARGUMENTS = '{"city":"Oslo"}'
_ROME = '{"city":"Rome"}'
_ONE = Meant(calls=(call(),), finish_reason="tool_calls")
_TWO = Meant(calls=(call(), call("call_2", "Rome")), finish_reason="tool_calls")
_SIGNATURE = {"google": {"thought_signature": "Ej"}}
_SIGNED = Meant(calls=(replace(call(), extra=_SIGNATURE),), finish_reason="tool_calls")
_UNNAMED = Meant(calls=(call("call00001"),), finish_reason="tool_calls")


def _entry(
    arguments: Any = None,
    *,
    id: Any = None,  # noqa: A002
    name: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """An entry of `tool_calls`; what is None is not there."""
    function = {"name": name, "arguments": arguments}
    function = {key: value for key, value in function.items() if value is not None}
    entry = {"id": id, **more}
    return {key: value for key, value in entry.items() if value is not None} | {
        "type": "function", "function": function,
    }  # fmt: skip


def _w(arguments: Any = None, id: Any = None, **more: Any) -> dict[str, Any]:  # noqa: A002
    return _entry(arguments, id=id, name="get_weather", **more)


def _deltas(*groups: Any, finish_reason: str = "tool_calls") -> Answer:
    """A stream with a chunk for each group of entries of `tool_calls`."""
    deltas = [{"tool_calls": g if isinstance(g, list) else [g]} for g in groups]
    return said(*deltas, finish_reason=finish_reason)


def _whole(*entries: Any, content: Any = None, finish_reason: str = "tool_calls") -> Answer:
    message = {"role": "assistant", "content": content, "tool_calls": list(entries)}
    return whole(message, finish_reason)


def _habit(
    name: str, seen: str, streamed: Answer | None, expected: Meant = _ONE,
    whole: Answer | None = None,
) -> Habit:  # fmt: skip
    return Habit(name, seen, expected, whole, streamed, WITH_TOOLS)


CALLS = [
    _habit(
        "OpenAI: arguments in pieces, the name once, two calls by index",
        "platform.openai.com/docs/guides/function-calling#streaming",
        _deltas(
            _w("", "call_1", index=0), _entry('{"city"', index=0), _entry(':"Oslo"}', index=0),
            _w("", "call_2", index=1), _entry(_ROME, index=1),
        ),
        _TWO, _whole(_w(_ARGUMENTS, "call_1"), _w(_ROME, "call_2")),
    ),
    _habit(
        "the pieces of two calls are mixed", "own",
        _deltas(
            [_w("", "call_1", index=0), _w("", "call_2", index=1)],
            [_entry('{"city"', index=0), _entry('{"city"', index=1)],
            [_entry(':"Rome"}', index=1), _entry(':"Oslo"}', index=0)],
        ), _TWO,
    ),
    _habit(
        "the heads of both calls at index 0, and the tail of the second at index 1", "own",
        _deltas(_w("", "call_1", index=0), _entry(_ARGUMENTS, index=0), _w("", "call_2", index=0),
                _entry('{"city":', index=1), _entry('"Rome"}', index=1)), _TWO,
    ),
    _habit(
        "the same, and the tail with its id", "own",
        _deltas(_w(_ARGUMENTS, "call_1", index=0), _w("", "call_2", index=0),
                _entry(_ROME, id="call_2", index=1)), _TWO,
    ),
    _habit(
        "two heads in one chunk at index 0, and tails that only their ids tell apart", "own",
        _deltas([_w("", "call_1", index=0), _w("", "call_2", index=0)],
                _entry(_ARGUMENTS, id="call_1", index=0),
                _entry(_ROME, id="call_2", index=0)), _TWO,
    ),
    _habit(
        "an index for each head and another for each tail", "own",
        _deltas(_w("", "call_1", index=0), _entry(_ARGUMENTS, index=1),
                _w("", "call_2", index=2), _entry(_ROME, index=3)), _TWO,
    ),
    _habit(
        "Gemini: whole calls in chunks of their own, without index", "noho/dayu-agent#57",
        _deltas(_w(_ARGUMENTS, "call_1"), _w(_ROME, "call_2")), _TWO,
    ),
    _habit(
        "Gemini: several whole calls in one chunk, without index", "noho/dayu-agent#57",
        _deltas([_w(_ARGUMENTS, "call_1"), _w(_ROME, "call_2")]), _TWO,
    ),
    _habit(
        "Gemini behind a gateway: every call has index 0", "su-kaka/gcli2api#406",
        _deltas(_w(_ARGUMENTS, "call_1", index=0), _w(_ROME, "call_2", index=0)), _TWO,
    ),
    _habit(
        "Dynamo: every call has index 0, all in one chunk", "ai-dynamo/dynamo#4723",
        _deltas([_w(_ARGUMENTS, "call_1", index=0), _w(_ROME, "call_2", index=0)]), _TWO,
    ),
    _habit(
        "no index at all, and arguments in pieces", "openai/openai-python#3246",
        _deltas(_w("", "call_1"), _entry('{"city":'), _entry('"Oslo"}')),
    ),
    _habit(
        "no index, arguments of two calls in pieces", "SamSaffron/term-llm#314",
        _deltas(_w("", "call_1"), _entry(_ARGUMENTS), _w("", "call_2"), _entry(_ROME)), _TWO,
    ),
    _habit(
        "no index, no ids, names tell the calls apart", "SamSaffron/term-llm#314",
        _deltas(_w(_ARGUMENTS), _entry("{}", name="get_time")),
        Meant(calls=(call("call00001"), NativeCall("call00002", "get_time", "{}")),
              finish_reason="tool_calls"),
    ),
    _habit(
        "Ollama: a whole call, and finish_reason stop", "BerriAI/litellm#35663",
        _deltas(_w(_ARGUMENTS, "call_1", index=0), finish_reason="stop"),
        Meant(calls=(call(),)), _whole(_w(_ARGUMENTS, "call_1"), content="", finish_reason="stop"),
    ),
    _habit(
        "TGI, LiteLLM: arguments as an object", "huggingface/text-generation-inference#2136",
        _deltas(_w({"city": "Oslo"}, "call_1", index=0)), _ONE,
        _whole(_w({"city": "Oslo"}, "call_1")),
    ),
    _habit(
        "MiniMax: the name in every chunk", "NousResearch/hermes-agent#11984",
        _deltas(_w("", "call_1", index=0), _w('{"city":', index=0), _w('"Oslo"}', index=0)),
    ),
    _habit(
        "Qwen's parser of vLLM: the name in every chunk, and an empty piece at the end",
        "weicj/vLLM-2080Ti-Definitive#127",
        _deltas(_w('{"city":', index=0), _w('"Oslo"', index=0), _w("}", index=0), _w("", index=0)),
        _UNNAMED,
    ),
    _habit(
        "LM Studio: an empty name in every later chunk", "lmstudio-ai/lmstudio-bug-tracker#649",
        _deltas(_w("", "call_1", index=0), _entry('{"city":', name="", index=0),
                _entry('"Oslo"}', name="", index=0)),
    ),
    _habit(
        "vLLM: a null name in every later chunk", "anomalyco/opencode#26412",
        sse(
            chunk({"tool_calls": [_w("", "call_1", index=0)]}),
            chunk({"tool_calls": [{"index": 0, "function": {"name": None,
                                                            "arguments": _ARGUMENTS}}]}),
            chunk({}, "tool_calls"), None,
        ),
    ),
    _habit(
        "Poolside: a second id for the rest of the call", "poolsideai/pool#9",
        _deltas(_w("", "call_1", index=0), _entry('{"city":', id="call_x", index=0),
                _entry('"Oslo"}', id="call_x", index=0)),
    ),
    _habit(
        "a new id in every chunk, with the name", "vllm-project/vllm#23522",
        _deltas(_w('{"city":', "call_1", index=0), _w('"Oslo"}', "call_b", index=0)),
    ),
    _habit(
        "a new id in every chunk, with the name and an empty end", "BerriAI/litellm#28223",
        _deltas(_w('{"city":', "call_1", index=0), _w('"Oslo"}', "b", index=0),
                _w("", "c", index=0)),
    ),
    _habit("no ids", "vllm-project/vllm#18412", _deltas(_w(_ARGUMENTS, index=0)), _UNNAMED,
           _whole(_w(_ARGUMENTS))),
    _habit(
        "empty ids", "own",
        _deltas(_w("", "call_1", index=0), _entry(_ARGUMENTS, id="", index=0)), _ONE,
        _whole(_w(_ARGUMENTS, "call_1")),
    ),
    _habit(
        "the id in every chunk", "own",
        _deltas(_w("", "call_1", index=0), _entry('{"city":', id="call_1", index=0),
                _entry('"Oslo"}', id="call_1", index=0)),
    ),
    _habit(
        "two calls with the same id", "own",
        _deltas(_w(_ARGUMENTS, "same", index=0), _w(_ROME, "same", index=1)),
        Meant(calls=(call("same"), call("call00002", "Rome")), finish_reason="tool_calls"),
        _whole(_w(_ARGUMENTS, "same"), _w(_ROME, "same")),
    ),
    _habit(
        "ids that are numbers", "huggingface/text-generation-inference#2136",
        _deltas(_w(_ARGUMENTS, 0, index=0)),
        Meant(calls=(call("0"),), finish_reason="tool_calls"), _whole(_w(_ARGUMENTS, 0)),
    ),
    _habit(
        "the API before tools: function_call", "567-labs/instructor#155",
        said({"function_call": {"name": "get_weather", "arguments": ""}},
             {"function_call": {"arguments": '{"city":'}},
             {"function_call": {"arguments": '"Oslo"}'}}, finish_reason="function_call"),
        Meant(calls=(call("call00001"),), finish_reason="function_call"),
        whole({"role": "assistant", "content": None,
               "function_call": {"name": "get_weather", "arguments": _ARGUMENTS}},
              "function_call"),
    ),
    _habit(
        "a name in pieces", "own",
        _deltas(_entry("", id="call_1", name="get_", index=0), _entry(name="weather", index=0),
                _entry(_ARGUMENTS, index=0)),
    ),
    _habit(
        "a name that grows", "own",
        _deltas(_entry("", id="call_1", name="get_", index=0),
                _w("", index=0), _entry(_ARGUMENTS, index=0)),
    ),
    _habit(
        "null and empty lists beside text", "own",
        said({"content": "Hello", "tool_calls": None}, {"content": ".", "tool_calls": []}),
        Meant("Hello."), whole({"content": "Hello.", "tool_calls": None, "function_call": None}),
    ),
    _habit(
        "text before the calls", "own",
        said("Let me see.", {"tool_calls": [_w(_ARGUMENTS, "call_1", index=0)]},
             finish_reason="tool_calls"),
        Meant("Let me see.", calls=(call(),), finish_reason="tool_calls"),
        _whole(_w(_ARGUMENTS, "call_1"), content="Let me see."),
    ),
    _habit(
        "reasoning before the calls", "own",
        said({"reasoning_content": "Hm."}, {"tool_calls": [_w(_ARGUMENTS, "call_1", index=0)]},
             finish_reason="tool_calls"),
        Meant("", "Hm.", (call(),), "tool_calls"),
    ),
    _habit(
        "no arguments: an empty text, or null", "own",
        _deltas(_entry("", id="call_1", name="get_time", index=0)),
        Meant(calls=(NativeCall("call_1", "get_time", "{}"),), finish_reason="tool_calls"),
        _whole(_entry(None, id="call_1", name="get_time")),
    ),
    _habit(
        "a placeholder {} before the arguments", "own",
        _deltas(_w("{}", "call_1", index=0), _entry('{"city":', index=0),
                _entry('"Oslo"}', index=0)),
    ),
    _habit(
        "the last piece comes with the finish reason", "own",
        sse(chunk({"tool_calls": [_w(_ARGUMENTS, "call_1", index=0)]}, "tool_calls"), None),
    ),
    _habit(
        "a whole message in a stream's chunk", "own",
        sse({"choices": [{"message": {"tool_calls": [_w(_ARGUMENTS, "call_1", index=0),
                                                     _w(_ROME, "call_2", index=0)]},
                          "finish_reason": "tool_calls"}]}, None), _TWO,
    ),
    _habit(
        "Gemini: a signature beside the call", "earendil-works/pi#6733",
        _deltas(_w(_ARGUMENTS, "call_1", index=0,
                   extra_content={"google": {"thought_signature": "Ej"}})), _SIGNED,
        _whole(_w(_ARGUMENTS, "call_1", extra_content={"google": {"thought_signature": "Ej"}})),
    ),
    _habit(
        "a signature after the arguments, and then an empty one", "own",
        _deltas(_w(_ARGUMENTS, "call_1", index=0),
                _entry(index=0, extra_content={"google": {"thought_signature": "Ej"}}),
                _entry(index=0, extra_content={})), _SIGNED,
    ),
    _habit(
        "a signature that nothing can keep", "own",
        None, _ONE,
        _whole(_w(_ARGUMENTS, "call_1", extra_content="Ej")),
    ),
    _habit(
        "an object in the place of the list", "own",
        said({"tool_calls": _w(_ARGUMENTS, "call_1")}, finish_reason="tool_calls"),
    ),
    _habit(
        "no `function` around name and arguments", "own",
        said({"tool_calls": [{"id": "call_1", "name": "get_weather", "arguments": _ARGUMENTS}]},
             finish_reason="tool_calls"),
    ),
    _habit(
        "cut by the model's own limit in the middle of the arguments, and it says so", "own",
        _deltas(_w('{"ci', "call_1", index=0), finish_reason="length"),
        Meant(calls=(NativeCall("call_1", "get_weather", '{"ci'),), finish_reason="length"),
        _whole(_w('{"ci', "call_1"), finish_reason="length"),
    ),
]  # fmt: skip
