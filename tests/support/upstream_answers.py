"""Habits of servers in whole answers and text: what was meant must come out."""

from support.upstream_habits import Habit, Meant, chunk, said, sse, whole
from support.upstream_server import JSON_TYPE, Answer

HELLO = Meant("Hello there.")
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
USED = Meant("Hello there.", usage=(9, 3))
_MESSAGE = {"role": "assistant", "content": "Hello there."}
_A, _B = chunk({"content": "Hello "}), chunk({"content": "there."})
_END = chunk({}, "stop")
_SAFE = {"hate": {"filtered": False, "severity": "safe"}}
_NULLS = {"function_call": None, "tool_calls": None, "audio": None, "refusal": None}


def _raw(text: str) -> bytes:
    return text.encode()


def _answer(name: str, seen: str, streamed: Answer, expected: Meant = HELLO) -> Habit:
    return Habit(name, seen, expected, streamed=streamed)


ANSWERS = [
    Habit(
        "OpenAI: usage in a last chunk without choices",
        "platform.openai.com/docs/api-reference/chat/streaming",
        USED,
        whole({**_MESSAGE, "refusal": None, "annotations": []}, usage=USAGE, service_tier="x"),
        sse(
            chunk({"role": "assistant", "content": "", "refusal": None}),
            _A, _B, _END, {"choices": [], "usage": USAGE}, None,
        ),
    ),
    Habit(
        "OpenAI: a refusal instead of content",
        "platform.openai.com/docs/guides/structured-outputs#refusals",
        HELLO,
        whole({"role": "assistant", "content": None, "refusal": "Hello there."}),
        sse(chunk({"refusal": "Hello "}), chunk({"refusal": "there."}), _END, None),
    ),
    _answer(
        "OpenAI: chunks with obfuscation",
        "platform.openai.com/docs/api-reference/chat/create#chat-create-stream_options",
        sse({**_A, "obfuscation": "x9"}, {**_B, "obfuscation": ""}, _END, None),
    ),
    _answer(
        "Azure: a first chunk without choices holds the prompt's filter results",
        "microsoft/semantic-kernel#3650",
        sse(
            {"id": "", "choices": [], "model": "", "prompt_filter_results": [_SAFE]},
            _A, _B, _END, None,
        ),
    ),
    _answer(
        "Azure: filter results in a choice without delta",
        "langchain-ai/langchain#18977",
        sse(
            _A, _B, _END,
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": _SAFE}]},
            None,
        ),
    ),
    Habit(
        "vLLM: null fields, and usage in every chunk",
        "docs.vllm.ai: stream_options.continuous_usage_stats",
        USED,
        whole({**_MESSAGE, "reasoning_content": None, "tool_calls": []}, usage=USAGE),
        sse(
            {**_A, "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
            {**_B, "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
            {**_END, "usage": USAGE},
            None,
        ),
    ),
    _answer(
        "Ollama: an empty finish_reason in every chunk",
        "ollama/ollama#4357",
        sse(chunk({"content": "Hello "}, ""), chunk({"content": "there."}, ""), _END, None),
    ),
    Habit(
        "Ollama: reasoning in `reasoning`, and the role in every chunk",
        "ollama/ollama#15293",
        Meant("Hello there.", "Hm."),
        whole({**_MESSAGE, "reasoning": "Hm."}),
        sse(
            chunk({"role": "assistant", "content": "", "reasoning": "Hm."}),
            chunk({"role": "assistant", "content": "Hello there."}), _END, None,
        ),
    ),
    Habit(
        "llama.cpp: reasoning_content, null content and timings",
        "ggml-org/llama.cpp: tools/server",
        Meant("Hello there.", "Hm.", usage=(9, 3)),
        whole({**_MESSAGE, "reasoning_content": "Hm."}, usage=USAGE, timings={"prompt_n": 9}),
        sse(
            chunk({"role": "assistant", "content": None}),
            chunk({"reasoning_content": "Hm."}), _A, _B,
            {**_END, "timings": {"prompt_n": 9}}, {"choices": [], "usage": USAGE}, None,
        ),
    ),
    Habit(
        "LiteLLM: all fields in every chunk, another id in each, finish_reason of the provider",
        "BerriAI/litellm#1571",
        Meant("Hello there.", finish_reason="end_turn"),
        whole({**_MESSAGE, **_NULLS}, "end_turn", usage={}),
        sse(
            {**chunk({"content": "Hello ", "role": None, **_NULLS}), "id": "a", "usage": {}},
            {**chunk({"content": "there.", "role": None, **_NULLS}), "id": "b"},
            chunk({"content": None, **_NULLS}, "end_turn"), None,
        ),
    ),
    _answer(
        "OpenRouter: comments while it waits, native_finish_reason",
        "openrouter.ai/docs/api-reference/streaming#additional-information",
        sse(
            b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\n\n", _A, _B,
            {"choices": [{"delta": {"content": ""}, "finish_reason": "stop",
                          "native_finish_reason": "STOP", "logprobs": None}]},
            None,
        ),
    ),
    _answer(
        "Groq: usage in a field of its own",
        "console.groq.com/docs/api-reference#chat-create",
        sse(
            {**chunk({"role": "assistant", "content": ""}), "x_groq": {"id": "req_1"}}, _A, _B,
            {**_END, "x_groq": {"id": "req_1", "usage": {**USAGE, "total_time": 0.1}}}, None,
        ),
        USED,
    ),
    Habit(
        "DeepSeek: keep-alive lines before the body, reasoning_content beside null content",
        "api-docs.deepseek.com/faq#why-are-empty-lines-continuously-returned",
        Meant("Hello there.", "Hm."),
        Answer((b"\n\n\n", *whole({**_MESSAGE, "reasoning_content": "Hm."}).pieces)),
        sse(
            b": keep-alive\n\n", chunk({"content": None, "reasoning_content": "Hm."}),
            chunk({"content": "Hello ", "reasoning_content": None}), _B, _END, None,
        ),
    ),
    Habit(
        "Mistral: thinking in content parts",
        "docs.mistral.ai/capabilities/reasoning",
        Meant("Hello there.", "Hm."),
        whole({"role": "assistant", "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "text", "text": "Hello there."},
        ]}),
        sse(
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text",
                                                                  "text": "Hm."}]}]}),
            chunk({"content": [{"type": "text", "text": "Hello there."}]}), _END, None,
        ),
    ),
    _answer(
        "Gemini: the finish reason comes with the last text, usage in every chunk",
        "ai.google.dev/gemini-api/docs/openai",
        sse({**_A, "usage": USAGE}, {**chunk({"content": "there."}, "stop"), "usage": USAGE}, None),
        USED,
    ),
    _answer(
        "Anthropic's compatible endpoint: pings, and named events",
        "docs.claude.com/en/docs/build-with-claude/streaming#ping-events",
        sse(
            b'event: ping\ndata: {"type": "ping"}\n\n',
            b"event: completion\n" + sse(_A).pieces[0], _B, _END, None,
        ),
    ),
    _answer(
        "Moonshot: usage inside the choice",
        "platform.moonshot.ai/docs/api/chat",
        sse(_A, _B, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop",
                                  "usage": USAGE}]}, None),
        USED,
    ),
    _answer(
        "Perplexity: the message so far beside each delta",
        "docs.perplexity.ai/guides/streaming-responses",
        sse(
            {"choices": [{"index": 0, "delta": {"content": "Hello "},
                          "message": {"content": "Hello "}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"content": "there."},
                          "message": {"content": "Hello there."}, "finish_reason": "stop"}]},
        ),
    ),
    _answer(
        "a gateway that does not stream answers whole",
        "own", whole(_MESSAGE, usage=USAGE), USED,
    ),
    _answer(
        "a gateway that does not stream calls its whole answer a stream",
        "own", Answer(whole(_MESSAGE).pieces, content_type="text/event-stream"),
    ),
    _answer(
        "a gateway streams a whole reply as one chunk with a message",
        "own",
        sse({"choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}]}, None),
    ),
    _answer(
        "no blank after `data:`, CR alone, a byte order mark",
        "html.spec.whatwg.org/multipage/server-sent-events.html",
        Answer((b"\xef\xbb\xbf", *(
            piece.replace(b"data: ", b"data:").replace(b"\n", b"\r")
            for piece in said("Hello ", "there.").pieces
        )), content_type="text/event-stream"),
    ),
    _answer(
        "CRLF, ids and retries",
        "own",
        Answer(tuple(
            b"id: 7\r\nretry: 10\r\n" + piece.replace(b"\n", b"\r\n")
            for piece in said("Hello ", "there.").pieces
        ), content_type="text/event-stream; charset=utf-8"),
    ),
    _answer("a finish reason and no [DONE]", "own",
            sse(_A, _B, _END)),
    _answer("[DONE] and no finish reason", "own", sse(_A, _B, None)),
    _answer("no blank line after the last event", "own",
            sse(_A, _B, _raw('data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'))),
    _answer(
        "no [DONE], and the connection stays open",
        "waybarrios/vllm-mlx#101", sse(_A, _B, _END, end="hang"),
    ),
    _answer(
        "data on several lines", "html.spec.whatwg.org/multipage/server-sent-events.html",
        sse(b'data: {"choices": [{"delta":\ndata: {"content": "Hello there."}}]}\n\n', _END, None),
    ),
    _answer(
        "a character that two network reads share", "own",
        sse(b'data: {"choices":[{"delta":{"content":"gr\xc3',
            b'\xbc\xc3\x9fe"}}]}\n\n', _END, None),
        Meant("grüße"),
    ),
    _answer(
        "a surrogate pair that two chunks share", "own",
        sse(b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
            b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n', _END, None),
        Meant("😀"),
    ),
    Habit(
        "NaN among the logprobs", "own", HELLO,
        Answer((b'{"choices":[{"logprobs":{"x":NaN},"finish_reason":"stop",',
                b'"message":{"content":"Hello there."}}]}')),
        sse(b'data: {"choices":[{"logprobs":{"x":-Infinity},"delta":',
            b'{"content":"Hello there."}}]}\n\n', _END, None),
    ),
    Habit("cut by the model's own limit, and it says so", "own",
          Meant("Hello", finish_reason="length"),
          whole({"content": "Hello"}, "length"), said("Hello", finish_reason="length")),
    Habit("filtered, and it says so", "own", Meant("Hel", finish_reason="content_filter"),
          whole({"content": "Hel"}, "content_filter"), said("Hel", finish_reason="content_filter")),
    *(
        Habit(f"cut or filtered, in other words: {word}", seen, Meant("Hel", finish_reason=meant),
              whole({"content": "Hel"}, word), said("Hel", finish_reason=word))
        for word, meant, seen in (
            ("model_length", "length", "docs.mistral.ai/api"),
            ("max_tokens", "length", "docs.claude.com/en/api/messages, passed on by a gateway"),
            ("MAX_TOKENS", "length", "ai.google.dev/api/generate-content, passed on by a gateway"),
            ("model_context_window_exceeded", "length", "docs.z.ai/api-reference/llm"),
            ("sensitive", "content_filter", "docs.z.ai/api-reference/llm/chat-completion"),
            ("SAFETY", "content_filter", "ai.google.dev/api/generate-content"),
            ("content_filter: RECITATION", "content_filter", "ai.google.dev, of its OpenAI form"),
            ("content-filter", "content_filter", "own"),
        )
    ),
    Habit("LiteLLM: the index of a choice counts the parts of a message",
          "BerriAI/litellm: llms/anthropic", HELLO,
          streamed=sse({"choices": [{"index": 1, "delta": {"content": "Hello "}}]},
                       {"choices": [{"index": 2, "delta": {"content": "there."}}]}, _END, None)),
    Habit("several choices together, where one was asked for", "own", HELLO,
          Answer((b'{"choices":[{"index":1,"message":{"content":"B"},"finish_reason":"length"},',
                  b'{"index":0,"message":{"content":"Hello there."},"finish_reason":"stop"}]}')),
          sse({"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"},
                           {"index": 0, "delta": {"content": "Hello there."}}]}, _END, None)),
    _answer("blanks around [DONE]", "own", sse(_A, _B, _END, b"data:  [DONE] \r\n\r\n")),
    Habit("usage in numbers with a point", "own", USED,
          Answer((b'{"choices":[{"message":{"content":"Hello there."},"finish_reason":"stop"}],',
                  b'"usage":{"prompt_tokens":9.0,"completion_tokens":3.0}}'))),
    Habit("an empty answer", "own", Meant(), whole({"content": ""}), said("")),
    _answer(
        "minimal chunks", "own",
        sse({"choices": [{"delta": {"content": "Hello there."}}]},
            {"choices": [{"finish_reason": "stop"}]}),
    ),
    _answer(
        "usage in a chunk that has no choices field", "own",
        sse(_A, _B, _END, {"response": "", "usage": USAGE}, None), USED,
    ),
    _answer(
        "a stream that calls itself text/plain", "own",
        sse(_A, _B, _END, None, content_type="text/plain"),
    ),
    Habit(
        "GLM: reasoning_content streamed before the text, role in every chunk",
        "docs.z.ai/guides/capabilities/thinking", Meant("Hello there.", "Hm. Yes."),
        streamed=said({"role": "assistant", "reasoning_content": "Hm."},
                      {"role": "assistant", "reasoning_content": " Yes."}, "Hello ", "there."),
    ),
    Habit(
        "error: null beside the choices", "own", HELLO,
        whole(_MESSAGE, error=None), sse({**_A, "error": None}, {**_B, "error": ""}, _END, None),
    ),
    Habit(
        "a charset beside the content type", "own", HELLO,
        Answer(whole(_MESSAGE).pieces, content_type=f"{JSON_TYPE}; charset=utf-8"),
    ),
]  # fmt: skip
