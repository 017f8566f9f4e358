"""Habits of servers in refusals: of a parameter, of the system role, of tools, of a format.

And what is no such refusal although it sounds like one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from support.upstream_habits import PLAIN, WITH_TOOLS, Habit, Refusal, error, refusal
from support.upstream_server import Answer

from diptych.core.messages import Message, NativeCall
from diptych.core.model_request import ModelRequest

_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_TYPED = ModelRequest(PLAIN.messages, output_schema=_SCHEMA)
_ANY_OBJECT = ModelRequest(PLAIN.messages, output_schema={})
_ALL_SET = {"temperature": 0.5, "max_tokens": 9, "reasoning_effort": "low"}
_SAMPLED = ModelRequest(PLAIN.messages, parameters={"seed": 7, "top_p": 0.5, "stop": ["x"]})
_HISTORY = (
    Message("user", "Hello"),
    Message("assistant", "", calls=(NativeCall("call_PTLP8x", "get_weather", "{}"),)),
    Message("tool", "Rain.", call_id="call_PTLP8x"),
)
_CALLED = ModelRequest(_HISTORY, tools=WITH_TOOLS.tools)
_SIGNATURE = {"google": {"thought_signature": "Ej"}}
_SIGNED = ModelRequest(
    (_HISTORY[0], Message("assistant", "", (NativeCall("a", "get_time", "{}", _SIGNATURE),)),
     Message("tool", "Noon.", call_id="a")), tools=WITH_TOOLS.tools)  # fmt: skip


def _pydantic(*names: str, kind: str = "extra_forbidden") -> list[dict[str, Any]]:
    said = "Extra inputs are not permitted"
    return [{"type": kind, "loc": ["body", name], "msg": said, "input": "secret"} for name in names]


def _holds(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda body: any(name in body for name in names)


def _has_system(body: Mapping[str, Any]) -> bool:
    return any(message["role"] == "system" for message in body["messages"])


def _param(name: str, seen: str, body: Any, status: int = 400, request: ModelRequest = _SAMPLED
           ) -> Refusal:  # fmt: skip
    return Refusal(f"{name}: {seen}", seen, _holds(name), body, status, request, _ALL_SET)


def _reasoning(seen: str, words: str, least: int = 0) -> Refusal:
    """Reasoning is wanted back; `least` characters of it, where none is kept."""
    return Refusal(f"reasoning: {seen}", seen,
                   lambda body: any(len(m.get("reasoning_content") or "") < least
                                    or "reasoning_content" not in m
                                    for m in body["messages"] if m["role"] == "assistant"),
                   error(words, type="invalid_request_error", code="invalid_request_error"),
                   request=_CALLED)  # fmt: skip


PARAMETERS = [
    _param("temperature", "diffbot/code-gpt-docs#445", error(
        "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default "
        "(1) value is supported.", param="temperature", code="unsupported_value")),
    _param("max_tokens", "CherryHQ/cherry-studio#1403", error(
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead.", param="max_tokens", code="unsupported_parameter")),
    _param("max_tokens", "editor-code-assistant/eca#231", {
        "object": "error", "message": {"detail": _pydantic("max_tokens")},
        "type": "invalid_request_error"}, 422),
    _param("stream_options", "microsoft/semantic-kernel#8189", error(
        "Unknown parameter: 'stream_options'.", param="stream_options", code="unknown_parameter")),
    _param("stream_options", "dnakov/anon-kode#53", {
        "object": "error", "message": {"detail": [{
            "type": "extra_forbidden", "loc": ["body", "stream_options", "include_usage"],
            "msg": "Extra inputs are not permitted", "input": True}]}}, 422),
    _param("seed", "Azure/azure-sdk-for-net#45719", error(
        "Unrecognized request argument supplied: seed. Please contact us through an Azure support "
        "request at: https://go.microsoft.com/fwlink/?linkid=2213926 for further questions.",
        param=None, code=None)),
    _param("seed", "mistralai/platform-docs-public#7", {
        "object": "error", "type": "internal_error_proxy", "code": "1000",
        "message": '{"detail":[{"type":"extra_forbidden","loc":["body","seed"],'
                   '"msg":"Extra inputs are not permitted","input":0.0}]}'}, 422),
    _param("seed", "docs.pydantic.dev/1.10/usage/models", {"detail": [
        {"loc": ["body", "seed"], "msg": "extra fields not permitted",
         "type": "value_error.extra"}]}, 422),
    _param("seed", "ai.google.dev/gemini-api/docs/openai", [error(
        'Invalid JSON payload received. Unknown name "seed": Cannot find field.', code=400,
        status="INVALID_ARGUMENT")]),
    _param("top_p", "docs.claude.com/en/docs/about-claude/models", error(
        "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        type="invalid_request_error")),
    _param("reasoning_effort", "iamsrikanthnani/pluely#242", error(
        "`reasoning_effort` is not supported with this model", type="invalid_request_error")),
    _param("reasoning_effort", "chenyme/grok2api#814", {
        "code": "invalid-argument",
        "error": "Model grok-4.20-0309-reasoning does not support parameter reasoningEffort."}),
    _param("reasoning_effort", "Gitlawb/openclaude#1371", error(
        '"llama3.1:8b" does not support thinking', type="invalid_request_error")),
    _param("reasoning_effort", "BerriAI/litellm#10108", error(
        "litellm.UnsupportedParamsError: openai does not support parameters: "
        "['reasoning_effort'], for model=o4-mini. To drop these, set `litellm.drop_params=True`",
        code="400")),
    _param("top_p", "lollipopkit/flutter_gpt_box#213", error(
        "deepseek-reasoner does not support the parameter `top_p`", param=None,
        code="invalid_request_error")),
    _param("stop", "own", error("Unsupported parameter: 'stop' is not supported with this model.",
                                param="stop", code="unsupported_parameter")),
    _param("seed", "own", error("Provider returned error", code=400, metadata={
        "raw": '{"error":{"message":"property \'seed\' is unsupported"}}', "provider_name": "G"})),
    Refusal("stream: GaiZhenbiao/ChuanhuChatGPT#1160", "GaiZhenbiao/ChuanhuChatGPT#1160",
            lambda body: bool(body["stream"]), error(
                "Unsupported value: 'stream' does not support true with this model. Only the "
                "default (false) value is supported.", param="stream", code="unsupported_value")),
    Refusal("ids of calls: anomalyco/opencode#1680", "anomalyco/opencode#1680",
            lambda body: any(len(m.get("tool_call_id", "x" * 9)) != 9 for m in body["messages"]),
            {"object": "error", "type": "invalid_function_call", "code": "3280", "message":
             "Tool call id was call_PTLP8x but must be a-z, A-Z, 0-9, with a length of 9."},
            request=_CALLED),
    Refusal("signatures of calls: JetBrains/koog#1148", "JetBrains/koog#1148",
            lambda body: any("extra_content" not in c for m in body["messages"]
                             for c in m.get("tool_calls", ())),
            error("Function call is missing a thought_signature in functionCall parts.", code=400,
                  status="INVALID_ARGUMENT"), request=_CALLED),
    Refusal("signatures of calls: openai/codex#7519", "openai/codex#7519",
            lambda body: any("extra_content" not in c for m in body["messages"]
                             for c in m.get("tool_calls", ())),
            error("function call `default_api:look` is missing a `thought_signature`.", code=400),
            request=_CALLED),
    _reasoning("earendil-works/pi#3636", "The `reasoning_content` in the thinking mode must be "
               "passed back to the API."),
    _reasoning("qwersyk/Newelle#404", "The reasoning_content in the thinking mode must be passed "
               "back to the API."),
    _reasoning("abhigyanpatwari/GitNexus#43", "Missing `reasoning_content` field in the assistant "
               "message at message index 2. For more information, please refer to "
               "https://api-docs.deepseek.com/guides/thinking_mode#tool-calls"),
    _reasoning("MoonshotAI/kimi-agent-sdk#169", "thinking is enabled but reasoning_content is "
               "missing in assistant tool call message at index 13"),
    _reasoning("NousResearch/hermes-agent#18263", "The `reasoning_content` in the thinking mode "
               "must be passed back to the API.", least=1),
    Refusal("what came beside a call: own", "own",
            lambda body: any("extra_content" in c for m in body["messages"]
                             for c in m.get("tool_calls", ())),
            {"detail": [{"type": "extra_forbidden", "loc": [
                "body", "messages", 1, "tool_calls", 0, "extra_content"],
                "msg": "Extra inputs are not permitted"}]}, 422, request=_SIGNED),
    Refusal("too many max_tokens: docker/docker-agent#569", "docker/docker-agent#569",
            lambda body: body.get("max_tokens", 0) > 21041, {"type": "error", "error": {
                "type": "invalid_request_error", "message":
                "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, "
                "decrease input length or `max_tokens` and try again"}},
            settings={"max_tokens": 64000}),
    Refusal("too many max_tokens: gpustack/gpustack#929", "gpustack/gpustack#929",
            lambda body: body.get("max_tokens", 0) > 8180, {"object": "error", "code": 400,
                "message": "This model's maximum context length is 8192 tokens. However, you "
                "requested 8204 tokens (12 in the messages, 8192 in the completion). Please reduce "
                "the length of the messages or completion."},
            settings={"max_tokens": 8192}),
]  # fmt: skip


def _system(seen: str, body: Any, status: int = 400) -> Refusal:
    return Refusal(f"system role: {seen}", seen, _has_system, body, status)


SYSTEM_ROLE = [
    _system("huggingface/chat-ui#1386", {"object": "error", "type": "BadRequestError", "code": 400,
                                         "message": "System role not supported"}),
    _system("arcee-ai/fastmlx#22", {"detail": "System role not supported"}, 500),
    _system("ggml-org/llama.cpp common/chat.cpp", error(
        "\n------------\nWhile executing CallExpression at line 1, column 69 in source:\n"
        "Error: Jinja Exception: System role not supported", code=500, type="server_error"), 500),
    _system("animalnots/BetterChatGPT-PLUS#90", error(
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        param="messages[0].role", code="unsupported_value")),
    _system("mistralai/Mistral-7B-Instruct-v0.2 chat_template", error(
        "Conversation roles must alternate user/assistant/user/assistant/...", code=400)),
    _system("mistralai/Mixtral-8x7B-Instruct chat_template", error(
        "Only user and assistant roles are supported!", code=500), 500),
    _system("0xPlaygrounds/rig#788", [error(
        "Developer instruction is not enabled for models/gemma-3-27b-it", code=400,
        status="INVALID_ARGUMENT")]),
    _system("own: a gateway", error("System messages are not supported by this model.")),
]  # fmt: skip


def _kind(body: Mapping[str, Any]) -> str:
    return str(body.get("response_format", {}).get("type", ""))


def _format(seen: str, body: Any, status: int = 400, refused: tuple[str, ...] = ("json_schema",),
            request: ModelRequest = _TYPED) -> Refusal:  # fmt: skip
    return Refusal(f"response_format: {seen}", seen, lambda b: _kind(b) in refused, body, status,
                   request)  # fmt: skip


FORMATS = [
    _format("llm-exe/llm-exe#662", error("This response_format type is unavailable now",
                                         param=None, code="invalid_request_error")),
    _format("BerriAI/litellm#7580", error(
        "Failed to deserialize the JSON body into the target type: response_format: "
        "response_format.type `json_schema` is unavailable now at line 1 column 1193"), 422),
    _format("agno-agi/agno#2553", error(
        "The parameter `response_format.type` specified in the request are not valid: invalid "
        "value: `json_schema`, supported values are: `json_object` and `text`.",
        code="InvalidParameter", param="response_format.type")),
    _format("platform.openai.com/docs/guides/structured-outputs", error(
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this "
        "model.", param=None, code=None)),
    _format("lmstudio-ai/lmstudio-bug-tracker#307",
            {"error": "'response_format.type' must be 'json_schema' or 'text'"},
            refused=("json_object",), request=_ANY_OBJECT),
    _format("own: no format at all", {"detail": _pydantic("response_format")}, 422,
            ("json_schema", "json_object")),
    _format("own: a schema that is not taken", error(
        "Invalid schema for response_format 'answer': In context=(), 'additionalProperties' is "
        "required to be supplied and to be false.", param="response_format")),
]  # fmt: skip


def _refused(seen: str, body: Any, status: int = 400, request: ModelRequest = WITH_TOOLS,
             code: str = "tools_refused") -> Habit:  # fmt: skip
    answer: Answer = refusal(body, status)
    return Habit(f"{code}: {seen}", seen, code, answer, answer, request)


TOOLS = [
    _refused("FoundationAgents/OpenManus#331", {
        "object": "error", "type": "BadRequestError", "param": None, "code": 400, "message":
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'}),
    _refused("pydantic/pydantic-ai#703", error(
        "registry.ollama.ai/library/llama3:8b does not support tools", type="api_error")),
    _refused("ollama/ollama#14795",
             {"error": "registry.ollama.ai/library/Qwen3.5:0.8b does not support tools"}),
    _refused("defilantech/LLMKube#126", error("tools param requires --jinja flag", code=500,
                                              type="server_error"), 500),
    _refused("ggml-org/llama.cpp#10920", {"code": 500, "message": "Unsupported param: tools",
                                          "type": "server_error"}, 500),
    _refused("ikawrakow/ik_llama.cpp#677", error("tools param is not fully supported yet",
                                                 code=500), 500),
    _refused("anonymous OpenRouter: dnakov/anon-kode#2", error(
        "No endpoints found that support tool use. To learn more about provider routing, visit: "
        "https://openrouter.ai/docs/provider-routing", code=404), 404),
    _refused("dnakov/anon-kode#10", error("deepseek-reasoner does not support Function Calling",
                                          code="invalid_request_error")),
    _refused("agno-agi/agno#3505", [error(
        "Function calling is not enabled for models/gemma-3-12b-it", code=400)]),
    _refused("truefoundry/models#944", error(
        "deepinfra error: Tool calling is not supported for model: NousResearch/Hermes-3",
        code="405"), 405),
    _refused("console.groq.com/docs/tool-use", error(
        "`tool calling` is not supported with this model", type="invalid_request_error")),
    _refused("openinterpreter/openinterpreter#618", error(
        "Unrecognized request argument supplied: tools", param=None)),
    _refused("partITech/php-mistral#76", {"object": "Error", "detail": _pydantic("tools"),
                                          "message": _pydantic("tools"), "code": 3001}, 422),
    _refused("songquanpeng/one-api#2214", error("The tool call is not supported")),
    _refused("a template without the role tool", error(
        "Jinja Exception: Only user and assistant roles are supported!", code=500), 500,
        ModelRequest(_HISTORY)),
    # What is no refusal of tools
    _refused("order", error("messages with role 'tool' must be a response to a preceeding message "
                            "with 'tool_calls'."), code="model_refused"),
    _refused("no such model", error("The model `x` does not exist.", code=404), 404,
             code="model_refused"),
    _refused("a call of the model's that does not fit: ItzCrazyKns/Vane#980", error(
        "tool call validation failed: parameters for tool get_weather did not match schema: errors:"
        " [missing properties: 'city']", type="invalid_request_error", code="tool_use_failed"),
             code="malformed_call"),
    _refused("a call in the history", error(
        "The arguments to a tool_call with ID 'a' are not a valid JSON string.",
        param="messages[1].tool_calls[0].function.arguments"), code="model_refused"),
    _refused("a schema, and no tools were sent", error(
        "Invalid schema for function 'get_weather': schema must have a 'type' key.",
        param="tools[0].function.parameters"), request=PLAIN, code="model_refused"),
    _refused("no tools were sent", error("x does not support tools"), request=PLAIN,
             code="model_refused"),
    _refused("a value out of range", error(
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2.",
        param="temperature", code="decimal_above_max_value"), code="model_refused"),
]  # fmt: skip


@dataclass(frozen=True)
class OneTool:
    """How a server refuses the tool that is called `name`; "" if it does not say which."""

    habit: Habit
    name: str


def _one(seen: str, name: str, body: Any, status: int = 400) -> OneTool:
    return OneTool(_refused(seen, body, status), name)


# Bodies are as seen, with the names and places of our own two tools: get_weather, get_time.
ONE_TOOL = [
    _one("Azure/azure-mcp#197", "get_time", error(
        "Invalid schema for function 'get_time': In context=(), object schema missing properties.",
        type="invalid_request_error", param="tools[1].function.parameters",
        code="invalid_function_parameters")),
    _one("anomalyco/opencode#441", "get_weather", error(
        "Invalid schema for function 'get_weather': In context=(), 'required' is required to be "
        "supplied and to be an array including every key in properties. Missing 'city'.",
        type="invalid_request_error", param="tools[0].function.parameters",
        code="invalid_function_parameters")),
    _one("farion1231/cc-switch#5490", "get_weather", error(  # DeepSeek names no parameter
        "Invalid schema for function 'get_weather': schema must be a JSON Schema of 'type: "
        "\"object\"', got 'type: null'.", type="invalid_request_error", param=None,
        code="invalid_request_error")),
    _one("usestrix/strix#1088", "get_time", error(  # Groq
        "invalid JSON schema for tool get_time, tools[1].function.parameters: 'required' present "
        "but 'properties' is missing", type="invalid_request_error",
        param="tool get_time, tools[1].function.parameters")),
    _one("SylphxAI/pdf-reader-mcp#63", "", {  # Mistral
        "object": "error", "message": "Invalid tool schema: {'anyOf': [{'type': 'array'}]} is not "
        "valid under any of the given schemas", "type": "invalid_request_error", "param": None,
        "code": None}),
    _one("mistralai/client-python#91", "get_weather", {"object": "error", "message": {"detail": [{
        "type": "extra_forbidden", "loc": ["body", "tools", 0, "function", "required"],
        "msg": "Extra inputs are not permitted", "input": ["content"]}]},
        "type": "invalid_request_error", "param": None, "code": None}, 422),
    _one("own: pydantic's errors as a text, as vLLM has them", "get_time", {
        "object": "error", "type": "BadRequestError", "param": None, "code": 400, "message":
        "[{'type': 'missing', 'loc': ('body', 'tools', 1, 'function', 'name'), 'msg': 'Field "
        "required', 'input': {}}]"}),
    _one("vllm-project/vllm#16321", "", {
        "object": "error", "message": "The provided JSON schema contains features not supported by "
        "xgrammar.", "type": "BadRequestError", "param": None, "code": 400}),
    _one("browser-use/browser-use#7", "get_time", [error(
        "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties[action]"
        ".properties: should be non-empty for OBJECT type\n", code=400,
        status="INVALID_ARGUMENT")]),
    _one("zed-industries/zed#44875", "get_time", [error(
        "Invalid JSON payload received. Unknown name \"const\" at 'tools[0].function_declarations"
        "[1].parameters.properties[8].value.any_of[0]': Cannot find field.", code=400,
        status="INVALID_ARGUMENT")]),
    _one("can1357/oh-my-pi#1101", "get_time", {"type": "error", "error": {  # Anthropic
        "type": "invalid_request_error", "message": "tools.1.custom.input_schema: JSON schema is "
        "invalid. It must match JSON Schema draft 2020-12."}}),
    _one("browseros-ai/BrowserOS#255", "", error(  # llama.cpp, as the next two
        'JSON schema conversion failed:\nUnrecognized schema: {"description":"Arguments"}',
        code=400, type="invalid_request_error")),
    _one("openclaw/openclaw#107430", "", error(
        "Unable to generate parser for this template. Automatic parser generation failed: JSON "
        "schema conversion failed:\nPattern must start with '^' and end with '$'", code=400)),
    _one("lidge-jun/opencodex#2135", "", error(
        "Failed to initialize samplers: failed to parse grammar", code=400,
        type="invalid_request_error")),
    _one("ollama/ollama#10328", "", error(
        "json: cannot unmarshal array into Go struct field .tools.function.parameters.properties"
        ".type of type string", type="invalid_request_error", param=None, code=None)),
    _one("leonardcser/smelt#26", "", error(
        "json: cannot unmarshal object into Go struct field ToolFunctionParameters.tools.function."
        "parameters.required of type []string", type="invalid_request_error")),
    _one("mrexodia/ida-pro-mcp#129", "get_time", error(
        "Invalid 'tools[1].function.name': string too long. Expected a string with maximum length "
        "64, but got a string with length 71 instead.", type="invalid_request_error")),
    _one("getsentry/sentry-mcp#106", "get_weather", error(
        "Invalid 'tools[0].function.description': string too long. Expected a string with maximum "
        "length 1024, but got a string with length 1103 instead.", type="invalid_request_error",
        param="tools[0].function.description", code="string_above_max_length")),
    _one("QwenLM/Qwen3-VL#2069", "", error(
        "<400> InternalError.Algo.InvalidParameter: The length of the tool name cannot exceed 64.",
        type="invalid_request_error", code="invalid_parameter_error")),
    _one("vishalmysore/Tools4AI#16", "", error(
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an "
        "array with length 325 instead.", type="invalid_request_error", param="tools",
        code="array_above_max_length")),
]  # fmt: skip
