"""How servers say that a request is longer than the model's context, with the numbers they give."""

from typing import Any

from support.upstream_habits import Habit, error, refusal

_OPENAI = "This model's maximum context length is 4096 tokens. However, "


def _limit(seen: str, body: Any, status: int = 400, *, max_tokens: int | None = None,
           prompt_tokens: int | None = None) -> Habit:  # fmt: skip
    answer = refusal(body, status)
    return Habit(f"too long: {seen}", seen, "context_too_long", answer, answer,
                 max_tokens=max_tokens, prompt_tokens=prompt_tokens, tries=1)  # fmt: skip


LIMITS = [
    _limit("crewAIInc/crewAI#701", error(
        _OPENAI + "your messages resulted in 4777 tokens. Please reduce the length of the "
        "messages.", param="messages", code="context_length_exceeded"),
        max_tokens=4096, prompt_tokens=4777),
    _limit("The-Vibe-Company/quivr#505", error(
        "This model's maximum context length is 4097 tokens. However, you requested 4203 tokens "
        "(4203 in the messages, 500 in the completion). Please reduce the length of the messages "
        "or completion."), max_tokens=4097, prompt_tokens=4203),
    _limit("THUDM/LongBench#104", {"object": "error", "message":
        "This model's maximum context length is 131072 tokens. However, you requested 351430 "
        "tokens. Please reduce the length of the messages or completion.", "code": 400},
        max_tokens=131072, prompt_tokens=351430),
    _limit("vllm-project/vllm#33418", error(
        _OPENAI + "your request has 5000 input tokens. Please reduce the length of the input "
        "messages.", type="BadRequestError", code=400), max_tokens=4096, prompt_tokens=5000),
    _limit("openrouter.ai/docs/api-reference/errors", error(
        "This endpoint's maximum context length is 32768 tokens. However, you requested about "
        "40000 tokens (39000 of text input, 1000 in the output).", code=400),
        max_tokens=32768, prompt_tokens=39000),
    _limit("ggml-org/llama.cpp#15780", error(
        "the request exceeds the available context size. try increasing the context size or "
        "enable context shift", code=500, type="exceed_context_size_error", n_prompt_tokens=1407,
        n_ctx=256), 500, max_tokens=256, prompt_tokens=1407),
    _limit("llama.cpp's server", error(
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing "
        "it", code=400, type="exceed_context_size_error", n_prompt_tokens=5000, n_ctx=4096),
        max_tokens=4096, prompt_tokens=5000),
    _limit("fedora-copr/logdetective-website#193", error(
        "Requested tokens (2285) exceed context window of 2048"), 500,
        max_tokens=2048, prompt_tokens=2285),
    _limit("Ollama", {"error": "the input length exceeds the context length"}),
    _limit("docs.claude.com/en/api/errors", {"type": "error", "error": {
        "type": "invalid_request_error",
        "message": "prompt is too long: 205,000 tokens > 200,000 maximum"}},
        max_tokens=200000, prompt_tokens=205000),
    _limit("Anthropic's 413", {"type": "error", "error": {
        "type": "request_too_large", "message": "Request exceeds the maximum size"}}, 413),
    _limit("google-gemini/gemini-cli#6678", [error(
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        code=400, status="INVALID_ARGUMENT")], max_tokens=1048576, prompt_tokens=1200293),
    _limit("google-gemini/gemini-cli#4231", error(
        '{\n "error": {\n "code": 400,\n "message": "The input token count (3475108) exceeds the '
        'maximum number of tokens allowed (1048576).",\n "status": "INVALID_ARGUMENT"\n }\n}\n',
        code=400), max_tokens=1048576, prompt_tokens=3475108),
    _limit("docs.mistral.ai", {"object": "error", "type": "invalid_request_error", "message":
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length", "code": "3051"}, max_tokens=32768, prompt_tokens=40000),
    _limit("thepersonalaicompany/amurex-backend#51", error(
        "Please reduce the length of the messages or completion.", param="messages",
        code="context_length_exceeded")),
    _limit("continuedev/continue#10218", error(
        "Request too large for model `llama-3.3-70b-versatile` in organization `org_1` service "
        "tier `on_demand` on tokens per minute (TPM): Limit 12000, Requested 14137, please reduce "
        "your message size and try again.", type="tokens", code="rate_limit_exceeded"), 413,
        max_tokens=12000),
    _limit("vanna-ai/vanna-flask#11", error(
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389. The "
        "input or output tokens must be reduced in order to run successfully."), 429,
        max_tokens=30000),
    _limit("DeepSeek", error(
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens "
        "(66000 in the messages, 4000 in the completion). Please reduce the length of the "
        "messages or completion.", code="invalid_request_error"),
        max_tokens=65536, prompt_tokens=66000),
    _limit("xAI", {"code": "invalid-argument", "error":
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens."},
        max_tokens=131072, prompt_tokens=537812),
    _limit("SGLang", error(
        "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        max_tokens=4096, prompt_tokens=5000),
    _limit("LM Studio", {"error":
        "Trying to keep the first 5000 tokens when context the overflows. However, the model is "
        "loaded with context length of only 4096 tokens, which is not enough."},
        max_tokens=4096, prompt_tokens=5000),
    _limit("TGI", {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be "
                            "<= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`"}, 422,
           max_tokens=4096, prompt_tokens=5000),
    _limit("Moonshot", error("Invalid request: Your request exceeded model token limit: 8192 "
                             "(requested: 10000)"), max_tokens=8192, prompt_tokens=10000),
    _limit("GitHub Models", error("Request body too large for gpt-4o model. Max size: 8000 "
                                  "tokens.", code="tokens_limit_reached"), 413, max_tokens=8000),
    _limit("DashScope", error("<400> InternalError.Algo.InvalidParameter: Range of input length "
                              "should be [1, 30720]"), max_tokens=30720),
    _limit("LiteLLM", error(
        "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - This "
        "model's maximum context length is 128000 tokens. However, your messages resulted in "
        "204308 tokens.", code="400"), max_tokens=128000, prompt_tokens=204308),
    _limit("own: numbers that no window has", error(
        f"This model's maximum context length is {'9' * 5000} tokens. However, your messages "
        f"resulted in {'9' * 30} tokens.")),
    _limit("own: numbers below zero", error(
        "too long", code="exceed_context_size_error", n_ctx=-5, n_prompt_tokens=0)),
]  # fmt: skip
