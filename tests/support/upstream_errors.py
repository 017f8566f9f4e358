"""Habits of servers in errors: those that they report inside a 200, and cut, wrong or late answers.

None of them may come out as an answer that looks whole.
"""

from typing import Any

from support.upstream_habits import (
    WITH_TOOLS,
    Habit,
    chunk,
    dumps,
    error,
    refusal,
    said,
    sse,
    whole,
)
from support.upstream_server import SSE_TYPE, Answer

_A = chunk({"content": "Hello "})
_END = chunk({}, "stop")
_FAILED = "model_failed"
_HTML = Answer((b"<html><body>Sign in</body></html>",), content_type="text/html")


def _in_200(name: str, seen: str, event: Any, *, code: str = _FAILED, alone: bool = True) -> Habit:
    """An error object: alone, after text and before `[DONE]`."""
    body = Answer((dumps(event),)) if alone else None
    return Habit(name, seen, code, body, sse(_A, event, None))


def _stream(name: str, seen: str, *events: Any, code: str = _FAILED, **more: Any) -> Habit:
    return Habit(name, seen, code, streamed=sse(*events, **more))


ERRORS_IN_200 = [
    _in_200("OpenAI: an error object in the stream", "vercel/ai#2720",
            error("The server had an error", type="server_error", param=None, code=None)),
    _in_200("Ollama: an error that is a sentence", "ollama/ollama#14795",
            {"error": "an error was encountered while running the model"}),
    _in_200("vLLM, Mistral: object is error", "langchain4j/langchain4j#3475",
            {"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}),
    _in_200("vLLM: an error object and then [DONE]", "vllm-project/guidellm#743",
            error("TimeoutError", type="GatewayTimeout", code=504)),
    _stream("vLLM: an error before the first token, and then [DONE]", "vllm-project/vllm#40986",
            error("Internal server error", code=500), None),
    _stream("an event called error with an object", "html.spec.whatwg.org server-sent events", _A,
            b'event: error\ndata: {"message": "overloaded"}\n\n', None),
    _stream("an event called error with a sentence", "cottongeeks/podscript#20", _A,
            b"event: error\ndata: error from LLM: unexpected status code: 500\n\n"),
    Habit("two choices in turns, where one was asked for", "own", "model_garbage",
          streamed=sse(*({"choices": [{"index": n, "delta": {"content": "a"}}]} for n in (0, 1, 0)),
                       chunk({}, "stop"), None)),
    _stream("a code and a sentence without a name for them", "own", _A,
            {"code": 500, "msg": "boom"}, None),
    _in_200("Anthropic: type is error", "docker/docker-agent#569",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    _in_200("OpenRouter: an error and finish_reason error", "damianvtran/local-operator#223",
            {**chunk({"content": ""}, "error"), **error("Provider disconnected", code=502)}),
    _in_200("OpenRouter: empty choices and an error", "diegosouzapw/OmniRoute#8210",
            {"choices": [], **error("Worker local total request limit reached", code=502)}),
    Habit("OpenRouter: an error inside the choice", "genkit-ai/genkit#6079", _FAILED,
          Answer((dumps({"choices": [{"message": {"content": "Hel"}, "finish_reason": None,
                                      "error": {"code": 502, "message": "cut"}}]}),)),
          sse(_A, {"choices": [{"delta": {"content": ""}, "error": {"code": 502}}]}, None)),
    Habit("finish_reason error and nothing else", "damianvtran/local-operator#223", _FAILED,
          whole({"content": "Hel"}, "error"), said("Hel", finish_reason="error")),
    Habit("DeepSeek: insufficient_system_resource",
          "api-docs.deepseek.com/api/create-chat-completion", _FAILED,
          whole({"content": "Hel"}, "insufficient_system_resource"),
          said("Hel", finish_reason="insufficient_system_resource")),
    Habit("GLM: network_error", "docs.z.ai/api-reference/llm/chat-completion", _FAILED,
          whole({"content": "Hel"}, "network_error"), said("Hel", finish_reason="network_error")),
    Habit("vLLM: the request was aborted", "own", _FAILED,
          whole({"content": "Hel"}, "abort"), said("Hel", finish_reason="abort")),
    Habit("Gemini: a malformed function call", "googleapis/python-genai#1836", "malformed_call",
          whole({"role": "assistant"}, "function_call_filter: MALFORMED_FUNCTION_CALL"),
          said(finish_reason="function_call_filter: MALFORMED_FUNCTION_CALL"), WITH_TOOLS),
    _stream("Groq: an error in x_groq", "console.groq.com/docs/api-reference", _A,
            {**_END, "x_groq": {"id": "req_1", "error": "over_capacity"}}, None),
    _stream("[DONE] after a chunk that was cut", "own", _A,
            b'data: {"choices":[{"delta":{"content":"th\n\n', None),
    _stream("[DONE] after a sentence", "own", _A, b"data: Internal Server Error\n\n", None),
    Habit("Gemini: a list with an error", "google-gemini/gemini-cli#6678", _FAILED,
          Answer((dumps([error("Internal error", code=500, status="INTERNAL")]),)),
          sse(_A, [error("Internal error", code=500)], None)),
    _in_200("FastAPI: a detail", "own", {"detail": "Internal server error"}),
    _in_200("DashScope: code and message", "help.aliyun.com/zh/model-studio/error-code",
            {"code": "InternalError", "message": "An internal error", "request_id": "1"}),
    _in_200("Cloudflare: success is false", "developers.cloudflare.com/workers-ai",
            {"success": False, "errors": [{"code": 3040, "message": "Capacity exceeded"}]}),
    _in_200("an error that is text in JSON", "google-gemini/gemini-cli#4231",
            error(dumps(error("boom", code=500)).decode(), code=500)),
    _stream("a stream that is one JSON error", "own",
            dumps(error("no"))),
    Habit("a stream is answered by an error as JSON", "own", _FAILED,
          streamed=Answer((dumps(error("no")),))),
    Habit("HTML in a 200", "own", "model_garbage", _HTML, _HTML),
    Habit("another object", "own", "model_garbage", Answer((b'{"object": "list", "data": []}',)),
          Answer((b'{"object": "list", "data": []}',))),
    Habit("Anthropic's own API", "own", "model_garbage",
          Answer((dumps({"type": "message_start", "content": [{"type": "text"}]}),))),
    Habit("choices that are null", "own", "model_garbage", Answer((b'{"choices": null}',))),
    Habit("a choice without a message", "own", "model_garbage",
          Answer((b'{"choices": [{"finish_reason": "stop"}]}',))),
    Habit("llama.cpp: too long, told in a 200", "oobabooga/textgen#7257", "context_too_long",
          streamed=sse(error("the request exceeds the available context size", code=400,
                             type="exceed_context_size_error", n_prompt_tokens=14429,
                             n_ctx=8192)), max_tokens=8192, prompt_tokens=14429),
]  # fmt: skip

CUT = [
    Habit("nothing at all", "own", "model_garbage", Answer(()), None),
    Habit("half a body", "own", "model_garbage",
          Answer((whole({"content": "Hello there."}).pieces[0][:-20],))),
    _stream("nothing in a stream", "own", code="model_cut"),
    _stream("[DONE] alone", "own", None, code="model_cut"),
    _stream("the role alone", "own", chunk({"role": "assistant"}), code="model_cut"),
    _stream("text, and a proper end of the body", "can1357/oh-my-pi#9433", _A, code="model_cut"),
    _stream("text, and a reset", "can1357/oh-my-pi#9433", _A, end="reset", code="model_cut"),
    _stream("half an event", "own", _A, b'data: {"choices":[{"delta":{"con', code="model_cut"),
    _stream("half an event that is an error", "own", _A, b'data: {"error": {"mess',
            code="model_cut"),
    _stream("a whole last event without a finish reason", "own", _A,
            b'data: {"choices":[{"delta":{"content":"there."}}]}', code="model_cut"),
    _stream("an empty finish reason at the end", "ollama/ollama#4357", chunk({"content": "a"}, ""),
            code="model_cut"),
    _stream("silence before the first byte", "own", end="hang", code="model_timeout"),
    _stream("silence after text", "own", _A, end="hang", code="model_timeout"),
    _stream("comments for ever", "own", *[b": keep-alive\n\n"] * 3, end="hang",
            code="model_timeout"),
    Habit("a whole answer that never comes", "own", "model_timeout", Answer((), end="hang")),
    Habit("a whole answer that stops", "own", "model_timeout", Answer((b'{"cho',), end="hang")),
    Habit("the calls are cut", "own", "model_cut", streamed=sse(chunk({"tool_calls": [
        {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"ci'}}]})),
          request=WITH_TOOLS),
]  # fmt: skip


def _status(status: int, body: Any, code: str, tries: int, seen: str = "own", **h: str) -> Habit:
    said_so = body["error"]["message"] if isinstance(body, dict) and "error" in body else "a page"
    answer = refusal(body, status, **h)
    return Habit(f"HTTP {status}: {said_so}", seen, code, answer, answer, tries=tries)


_PAGE = b"<html><title>502 Bad Gateway</title></html>"
STATUSES = [
    _status(302, b"", "model_refused", 1, Location="https://elsewhere.example.com/"),
    _status(400, error("you must provide a model parameter"), "model_refused", 1),
    _status(401, error("Incorrect API key provided"), "model_unauthorized", 1),
    _status(402, error("Insufficient Balance"), "model_refused", 1,
            "continuedev/continue#10488"),
    _status(403, error("Your region is not supported"), "model_unauthorized", 1),
    _status(404, error("The model `x` does not exist.", type="NotFoundError"), "model_refused", 1),
    _status(408, error("Request timeout"), "model_refused", 3),
    _status(409, error("Conflict"), "model_refused", 3),
    _status(425, error("Too early"), "model_refused", 3),
    _status(429, error("Rate limit reached … Limit 6000, Used 5034, Requested 1443."),
            "model_overloaded", 3, "elizaOS/eliza#4040"),
    _status(429, error("You exceeded your current quota", code="insufficient_quota"),
            "model_overloaded", 1, "platform.openai.com/docs/guides/error-codes"),
    _status(500, error("boom"), "model_failed", 3),
    *(
        Habit(f"Retry-After: {said_[:30]}", "own", "model_overloaded",
              *[refusal(error("busy"), 429, retry_after=said_)] * 2)
        for said_ in ("-5", "1e9", "x", "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
                      "Wed, 21 Oct 2015 99999999999999999999:28:00 GMT")
    ),
    _status(501, error("not implemented"), "model_failed", 1),
    _status(502, _PAGE, "model_failed", 3),
    _status(503, error("Loading model", type="unavailable_error"), "model_overloaded", 3,
            "ggml-org/llama.cpp tools/server/README.md"),
    _status(504, b"upstream request timeout", "model_failed", 3),
    _status(520, _PAGE, "model_failed", 3, "developers.cloudflare.com, 5xx errors"),
    _status(524, _PAGE, "model_failed", 3, "developers.cloudflare.com, 5xx errors"),
    _status(529, error("Overloaded", type="overloaded_error"), "model_overloaded", 3,
            "docs.claude.com/en/api/errors"),
]  # fmt: skip

ERRORS = [
    *ERRORS_IN_200,
    *CUT,
    *STATUSES,
    Habit("a stream that calls itself JSON and is none", "own", "model_garbage",
          streamed=Answer(said("a").pieces)),
    Habit("a JSON error under the name of a stream, after a comment", "own", "model_cut",
          streamed=Answer((b": hi\n", b"nonsense"), content_type=SSE_TYPE)),
]  # fmt: skip
