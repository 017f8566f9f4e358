"""Recognises a request that is longer than the model's window, in the words of each server.

Pure. The table of phrases says for each who writes it so; `tests/support/upstream_habits` holds
whole bodies and where each was seen.
"""
# ruff: noqa: ERA001, ISC004 - each pattern stands below the sentence that it is for

import re
from dataclasses import dataclass

from diptych.core.budget import MAX_COUNT
from diptych.models.error_report import ErrorReport

MIN_REPLY_TOKENS = 256  # less room than that is none
_MAX_DIGITS = 18  # of a number of tokens


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The window of a model and the length of a request, in tokens; None where nothing is said."""

    max_tokens: int | None = None
    prompt_tokens: int | None = None

    @property
    def room(self) -> int:
        """The tokens that are left for the reply, if the request itself fits; else 0."""
        if self.max_tokens is None or self.prompt_tokens is None:
            return 0
        room = self.max_tokens - self.prompt_tokens
        return room if room >= MIN_REPLY_TOKENS else 0


def context_limit(report: ErrorReport) -> ContextLimit | None:
    """Say whether an error means that the request is too long, and by how much."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", report.text)
    phrase = next((found for p in _PHRASES if (found := p.search(text))), None)
    if phrase is None and not report.codes & _CODES:
        return None
    numbers = report.numbers
    if "n_ctx" in numbers:  # llama.cpp
        return ContextLimit(
            _plausible(numbers["n_ctx"]), _plausible(numbers.get("n_prompt_tokens"))
        )
    named = phrase.groupdict() if phrase else {}
    window = named.get("max") or _first(_WINDOWS, text)
    prompt = named.get("prompt") or _first(_PROMPTS, text)
    limit = ContextLimit(_number(window), _number(prompt))
    requested = _number(named.get("requested"))
    if requested is not None and requested <= (limit.max_tokens or 0):
        return None  # a limit of tokens per minute that a later request can keep
    return limit


def _number(digits: str | None) -> int | None:
    return _plausible(int(digits)) if digits and len(digits) <= _MAX_DIGITS else None


def _plausible(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 < tokens <= MAX_COUNT else None


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> str | None:
    return next((found[1] for p in patterns if (found := p.search(text))), None)


_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq, Cerebras
        "exceed_context_size_error",  # llama.cpp
        "model_context_window_exceeded",
        "contextwindowexceedederror",  # LiteLLM
        "context_window_exceeded",
        "request_too_large",  # Anthropic
        "tokens_limit_reached",  # GitHub Models
    }
)

_PHRASES = tuple(
    re.compile(phrase)
    for phrase in (
        # Anthropic: "prompt is too long: 205000 tokens > 200000 maximum"
        r"prompt is too long(?:: (?P<prompt>\d+) tokens > (?P<max>\d+) maximum)?",
        # Anthropic: "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000"
        r"exceed context limit: (?P<prompt>\d+) \+ \d+ > (?P<max>\d+)",
        # Gemini: "The input token count (1200293) exceeds the maximum number of tokens allowed (…)"
        r"input token count (?:\((?P<prompt>\d+)\) )?exceeds the maximum number of tokens allowed"
        r"(?: \(?(?P<max>\d+))?",
        # Mistral: "Prompt contains 40000 tokens …, too large for model with 32768 maximum …"
        r"prompt contains (?P<prompt>\d+) tokens.{0,80}?too large for model with (?P<max>\d+)",
        # Groq, OpenAI: a request that is longer than what may be sent in a minute
        r"request too large for .{0,200}?limit (?P<max>\d+), requested (?P<requested>\d+)",
        # llama.cpp: "request (5000 tokens) exceeds the available context size (4096 tokens)"
        r"request (?:\((?P<prompt>\d+) tokens\) )?exceeds the available context size"
        r"(?: \((?P<max>\d+) tokens\))?",
        # llama-cpp-python: "Requested tokens (2285) exceed context window of 2048"
        r"requested tokens \((?P<prompt>\d+)\) exceed context window of (?P<max>\d+)",
        # xAI: "maximum prompt length is 131072 but the request contains 537812 tokens"
        r"maximum prompt length is (?P<max>\d+) but the request contains (?P<prompt>\d+)",
        # SGLang: "The input (5000 tokens) is longer than the model's context length (4096 tokens)"
        r"input \((?P<prompt>\d+) tokens\) is longer than the model's context length"
        r" \((?P<max>\d+) tokens\)",
        # Copilot: "prompt token count of 100000 exceeds the limit of 64000"
        r"prompt token count of (?P<prompt>\d+) exceeds the limit of (?P<max>\d+)",
        # Cerebras: "Current length is 10000 while limit is 8192"
        r"current length is (?P<prompt>\d+) while limit is (?P<max>\d+)",
        # TGI: "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens …"
        r"`max_new_tokens` must be <= (?P<max>\d+)\. given: (?P<prompt>\d+)",
        # Together: "`inputs` must have less than 4097 tokens. Given: 5000"
        r"must have less than (?P<max>\d+) tokens\. given: (?P<prompt>\d+)",
        # Cohere: "the prompt cannot exceed 4081 tokens - received 5000"
        r"tokens in the prompt cannot exceed (?P<max>\d+) - received (?P<prompt>\d+)",
        # Moonshot: "Your request exceeded model token limit: 8192 (requested: 10000)"
        r"exceeded model token limit: (?P<max>\d+)(?: \(requested: (?P<prompt>\d+))?",
        # LM Studio: "keep the first 5000 tokens when context the overflows. However, …"
        r"keep the first (?P<prompt>\d+) tokens when context the overflows"
        r"(?:.{0,120}?context length of only (?P<max>\d+))?",
        # GitHub Models: "Request body too large for gpt-4o model. Max size: 8000 tokens."
        r"request body too large for .{0,80}?max size: (?P<max>\d+) tokens",
        # DashScope: "Range of input length should be [1, 30720]"
        r"range of input length should be \[\d+, (?P<max>\d+)\]",
        # OpenAI, Azure, vLLM, DeepSeek, OpenRouter: the numbers follow in many wordings
        r"maximum context length (?:is|of) (?P<max>\d+)",
        # Ollama: "the input length exceeds the context length"
        r"input (?:length )?exceeds (?:the |maximum )?context (?:length|window|size)",
        r"exceed(?:s|ed)? (?:the )?(?:max(?:imum)? )?(?:model'?s? )?context (?:length|window|size)",
        r"context (?:length|window|size) (?:was |is )?exceed",
        r"context window exceeds limit",  # MiniMax
        r"reduce the length of the (?:messages|input|prompt)",  # OpenAI, Groq
        r"input is too long for requested model",  # Bedrock
        r"prompt exceeds max(?:imum)? length",  # GLM
        r"too many (?:input|prompt) tokens",
    )
)

_WINDOWS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:context (?:length|window|size|limit)|limit) (?:is|of|=|:) ?(\d{3,})",
        r"max(?:imum)?(?: size| tokens)?:? (\d{3,})",
    )
)

_PROMPTS = tuple(
    re.compile(pattern)
    for pattern in (
        # "you requested 6616 tokens (568 in the messages, 6048 in the completion)"; OpenRouter:
        # "(39000 of text input, 1000 in the output)"; SGLang: "4500 tokens from the input messages"
        r"(\d+) (?:tokens )?(?:in (?:the|your) (?:messages|prompt)|of text input|"
        r"from the input|in the input)",
        r"(?:resulted in|request has|prompt contains(?: at least)?|messages? (?:has|have)|"
        r"passed(?: in)?) (\d+)",
        r"requested (?:about |a total of )?(\d+) tokens",
        r"(\d+) (?:input|prompt) tokens",
    )
)
