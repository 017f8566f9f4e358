"""Classifies servers' errors by tables of their phrases: which part of a request was refused.

Pure. When the phrase is ambiguous, each predicate returns False: a missed refusal surfaces as an
error that explains itself, a false one would drop a working feature. `tests/support/
upstream_refusals` and `upstream_limits` have whole bodies and their sources.
"""
# ruff: noqa: ERA001, ISC004 - each pattern follows the sentence that it matches

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diptych.core.budget import MAX_COUNT
from diptych.models.error_report import ErrorReport

MIN_REPLY_TOKENS = 256  # less room counts as none
_MAX_DIGITS = 18  # of a number of tokens
_MAX_CLAUSE = 2000  # characters; anything longer is a dump rather than a sentence

# Statuses whose bodies explain what is wrong with a request. llama.cpp and SGLang respond with 500
# when a chat template raises an error; DeepInfra with 405 and OpenRouter with 404 for a model
# without tools. 0 stands for an error object without a code inside a 200.
_TELLING_STATUSES = frozenset({0, 400, 404, 405, 413, 415, 422, 424, 429, 500, 501})

_NOT_TAKEN = re.compile(
    r"(?:unsupported|unrecognized|unrecognised|unknown|unexpected keyword|unavailable|deprecated"
    r"|(?:is|are|was|were)(?: currently)? not (?:yet )?"
    r"(?:supported|allowed|permitted|recognized|accepted|available|enabled|implemented)"
    r"|not (?:yet )?(?:fully )?supported|not permitted|not enabled|not implemented"
    r"|(?:does not|doesn't|do not|don't|cannot|can't|not) "
    r"(?:currently )?(?:support|accept|allow|recognize)"
    r"|extra_forbidden|extra inputs|extra fields|cannot find field|unexpected (?:parameter|field)"
    r"|(?:cannot|can't) both be specified|incompatible with|only the default)"
)
_NO_STREAMED_TOOLS = re.compile(rf"(?:cannot|can't) (?:use|combine)|{_NOT_TAKEN.pattern}")
_CLAUSE_END = re.compile(r"[\n;]|[.!?] (?=[a-z])|\. ?$")

_TOOLS = (
    r"(?<![\w.'\"\]])[`'\"]?"
    r"(?:tools?|tool[- _](?:calls?|calling|use|uses|choice)"
    r"|functions?|function[- _]?call(?:s|ing)?)"
    r"[`'\"]?(?![\w.\[])"
)
_TOOLS_REFUSED = re.compile(
    r"--enable-auto-tool-choice|--tool-call-parser"  # vLLM
    r"|tools param requires --jinja|unsupported param: tools\b"  # llama.cpp
    r"|no endpoints found that support tool"  # OpenRouter
    # "llama3 does not support tools"
    rf"|(?:not|n't) (?:currently )?(?:support|accept|allow)[^.\n]{{0,30}}?{_TOOLS}"
    # "`tool calling` is not supported with this model"
    rf"|{_TOOLS}(?: param(?:eter)?| field)? (?:is|are)(?: currently)? not (?:yet )?(?:fully )?"
    r"(?:supported|enabled|allowed|available|implemented|permitted)"
    # "Unrecognized request argument supplied: functions"
    r"|(?:unsupported|unrecognized|unknown) (?:request )?(?:parameter|argument|field)s?"
    rf"(?: supplied)?:? {_TOOLS}"
)
_TOOL_ROLE_REFUSED = re.compile(
    r"only (?:user|system)(?:(?!tool)[^.\n]){0,40}?roles?(?: are| is)? (?:supported|allowed)"
    r"|(?:unknown|unexpected|invalid|unsupported) (?:message )?role:? ['\"`]?tool\b"
)
# The position of the faulty tool in the request: `tools[19].function.parameters`, Anthropic's
# `tools.22.custom.input_schema`, pydantic's `'tools', 0, 'function'`. Gemini puts all functions
# into its first tool. `tool_calls[0]` must not match: it is part of a message.
_TOOL_PLACE = re.compile(
    r"\btools\[0\]\.function_?declarations\[(\d+)\]"
    r"|(?<![\w.])tools(?:\[|\.|', )(\d+)(?=[\].,])"
)
_TOOL_NAME = re.compile(
    r"\b(?:function|tool)s?:? [`'\"]?([\w.-]{1,128}?)[`'\"]?(?=[,:;. ]|$)", re.MULTILINE
)
_ONE_TOOL_REFUSED = re.compile(
    r"invalid (?:json )?schema for (?:function|tool)"  # OpenAI, Azure, DeepSeek, Groq
    r"|invalid tool schema"  # Mistral
    r"|invalid '?tools'?: array too long"  # OpenAI
    r"|json schema conversion failed"  # llama.cpp, like the next
    r"|failed to (?:parse|initialize) (?:grammar|samplers)"
    r"|json schema contains features not supported by"  # vLLM, of xgrammar
    r"|cannot unmarshal [^\n]{0,80}\btools\.function\."  # Ollama
    r"|the length of the tool name|(?:tool|function) names? (?:must|cannot)"  # DashScope, Mistral
)
_SYSTEM_REFUSED = re.compile(
    # Gemma's template: "System role not supported"
    r"\bsystem[` '\"]*(?:role|message|prompt|instruction)s?\b[^.\n]{0,60}?"
    r"(?:not (?:be )?|n't |un)(?:supported|allowed|permitted|enabled|accepted)"
    # OpenAI's o1-mini: "'messages[0].role' does not support 'system' with this model"
    r"|(?:not|n't) (?:currently )?(?:support|allow|accept)[^.\n]{0,40}?['\"` ]system\b"
    r"(?! fingerprint)"
    # Mistral's templates: "Only user and assistant roles are supported!"
    r"|only user(?:(?!system)[^.\n]){0,40}?roles?(?: are| is)? (?:supported|allowed)"
    r"|developer instruction is not enabled"  # Gemini, of Gemma
    r"|(?:unknown|unexpected|invalid|unsupported) (?:message )?role:? ['\"`]?system"
    # Mistral 7B's template has no other message for it
    r"|(?<!after the optional system message, )conversation roles must alternate user/assistant"
)
# DeepSeek, DashScope and LM Studio list the values that they support instead.
_FORMAT_REFUSED = re.compile(
    r"response_format[^\n]{0,80}?(?:unavailable|must be '|not valid|must be one of)"
    r"|invalid schema for response_format|(?:schema|grammar)[^\n]{0,60}?(?:too complex|not valid)"
    r"|failed to (?:parse|initialize) (?:grammar|samplers)|messages' must contain the word 'json'"
)
# Other names of parameters.
_ALIASES = {
    "reasoning_effort": ("reasoningeffort", "reasoning.effort", "thinking", "reasoning", "think"),
    "response_format": (
        "response format", "structured output", "structured outputs", "json mode", "json_schema",
        "json schema", "json_object",
    ),
    "stream_options": ("include_usage", "streamoptions"),
    "max_tokens": ("max_completion_tokens", "maxtokens"),
    "max_completion_tokens": ("maxcompletiontokens",),
    "top_p": ("topp",),
}  # fmt: skip
_MALFORMED_CALL = re.compile(
    r"does not match the expected [\w-]+ format"  # llama.cpp: "peg-native" or another format
    r"|failed to call a function\b"  # Groq, when it sends no code
    r"|finish_reason '[\w: ]*malformed_function_call"  # Gemini, as the reason why a reply ended
)


def refuses_tools(report: ErrorReport, *, has_tool_messages: bool = False) -> bool:
    """Whether the endpoint does not support the `tools` field, or messages of the role `tool`."""
    if report.status not in _TELLING_STATUSES:
        return False
    if has_tool_messages and _TOOL_ROLE_REFUSED.search(report.text):
        return True
    if any(path == "tools" and _NOT_TAKEN.search(said) for path, said in report.params):
        return True
    return _TOOLS_REFUSED.search(report.text) is not None


def refused_tool(report: ErrorReport, names: Sequence[str]) -> str | None:
    """Return the tool that the endpoint refuses; `names` are the tools sent, in order.

    Returns "" if it does not name the tool, or refuses their number; None for any other error.
    Each server validates tools more strictly than JSON schema does, in its own way.
    """
    if report.status not in _TELLING_STATUSES:
        return None
    text = "\n".join((report.text, *(path for path, _ in report.params)))
    place = _TOOL_PLACE.search(text)
    if place is None and not _ONE_TOOL_REFUSED.search(text):
        return None
    lowered = {name.lower(): name for name in names}
    named = (lowered[word] for word in _TOOL_NAME.findall(text) if word in lowered)
    if name := next(named, None):
        return name
    number = int(place[1] or place[2]) if place else len(names)
    return names[number] if number < len(names) else ""


def refuses_streamed_tools(report: ErrorReport) -> bool:
    """Whether the endpoint supports tools, but not in streamed replies.

    llama.cpp: "Cannot use tools with stream"; Bedrock: "This model doesn't support tool use in
    streaming mode."
    """
    return report.status in _TELLING_STATUSES and any(
        "stream" in clause and "tool" in clause and _NO_STREAMED_TOOLS.search(clause)
        for clause in _clauses(report.text)
    )


def refuses_system_role(report: ErrorReport) -> bool:
    """Whether the endpoint does not support messages of the role `system`."""
    return report.status in _TELLING_STATUSES and bool(_SYSTEM_REFUSED.search(report.text))


def refuses_format(report: ErrorReport) -> bool:
    """Whether the endpoint does not support this `response_format`."""
    return report.status in _TELLING_STATUSES and bool(
        refused_parameters(report, ("response_format",)) or _FORMAT_REFUSED.search(report.text)
    )


def wants_parameter(report: ErrorReport, name: str) -> bool:
    """Whether the endpoint asks for another parameter, as in "Use 'x' instead"."""
    return bool(re.search(rf"\buse [`'\"]?{name}\b|\b{name}[`'\"]? instead", report.text))


def refused_parameters(report: ErrorReport, names: Collection[str]) -> set[str]:
    """Return the parameters among `names` that the endpoint does not support.

    A parameter with an invalid value is not refused: "Invalid 'temperature'" is a mistake in the
    manifest or the request. "Only the default (1) value is supported" is a refusal.
    """
    if report.status not in _TELLING_STATUSES:
        return set()
    named = {
        name
        for name in names
        for path, said in report.params
        if (path == name or path.startswith(f"{name}."))
        and (_NOT_TAKEN.search(said) or _NOT_TAKEN.search(report.text))
    }
    if "stream_options" in names and "stream_options" in report.text:
        named.add("stream_options")  # whatever the complaint: dropping it costs only the usage
    return named or {name for name in names if _is_refused_in_words(report.text, name)}


def _is_refused_in_words(text: str, name: str) -> bool:
    """Whether a single clause both names the parameter and refuses it."""
    words = "|".join(re.escape(word) for word in (name, *_ALIASES.get(name, ())))
    naming = re.compile(rf"(?<![\w.])(?:{words})(?![\w])")
    return any(_NOT_TAKEN.search(clause) and naming.search(clause) for clause in _clauses(text))


def _clauses(text: str) -> list[str]:
    return [clause for clause in _CLAUSE_END.split(text) if len(clause) < _MAX_CLAUSE]


def is_malformed_call(report: ErrorReport) -> bool:
    """Whether the server could not parse a native call written by its model.

    The fault lies in the reply, not the request or the endpoint (loop.md §3, "Typed errors").
    """
    return "tool_use_failed" in report.codes or bool(_MALFORMED_CALL.search(report.text))


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The context window and the request's length, in tokens; None if the server omits them."""

    max_tokens: int | None = None
    prompt_tokens: int | None = None

    @property
    def room(self) -> int:
        """The tokens left for the reply; 0 if the request itself does not fit."""
        if self.max_tokens is None or self.prompt_tokens is None:
            return 0
        room = self.max_tokens - self.prompt_tokens
        return room if room >= MIN_REPLY_TOKENS else 0


def context_limit(report: ErrorReport) -> ContextLimit | None:
    """Return the limit that a too long request exceeds; None for any other error."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", report.text)
    phrase = next((found for p in _TOO_LONG if (found := p.search(text))), None)
    if phrase is None and not report.codes & _TOO_LONG_CODES:
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
        return None  # a tokens-per-minute limit: the request fits, and can be retried later
    return limit


def _number(digits: str | None) -> int | None:
    return _plausible(int(digits)) if digits and len(digits) <= _MAX_DIGITS else None


def _plausible(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 < tokens <= MAX_COUNT else None


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> str | None:
    return next((found[1] for p in patterns if (found := p.search(text))), None)


_TOO_LONG_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq, Cerebras
        "exceed_context_size_error",  # llama.cpp
        "contextwindowexceedederror",  # LiteLLM
        "request_too_large",  # Anthropic
        "tokens_limit_reached",  # GitHub Models
    }
)

_TOO_LONG = tuple(
    re.compile(phrase)
    for phrase in (
        # Anthropic
        r"prompt is too long(?:: (?P<prompt>\d+) tokens > (?P<max>\d+) maximum)?",
        r"exceed context limit: (?P<prompt>\d+) \+ \d+ > (?P<max>\d+)",
        # Gemini
        r"input token count (?:\((?P<prompt>\d+)\) )?exceeds the maximum number of tokens allowed"
        r"(?: \(?(?P<max>\d+))?",
        # Mistral
        r"prompt contains (?P<prompt>\d+) tokens.{0,80}?too large for model with (?P<max>\d+)",
        # Groq, OpenAI: a request longer than the tokens-per-minute limit
        r"request too large for .{0,200}?limit (?P<max>\d+), requested (?P<requested>\d+)",
        # llama.cpp
        r"request (?:\((?P<prompt>\d+) tokens\) )?exceeds the available context size"
        r"(?: \((?P<max>\d+) tokens\))?",
        # llama-cpp-python
        r"requested tokens \((?P<prompt>\d+)\) exceed context window of (?P<max>\d+)",
        # xAI
        r"maximum prompt length is (?P<max>\d+) but the request contains (?P<prompt>\d+)",
        # SGLang
        r"input \((?P<prompt>\d+) tokens\) is longer than the model's context length"
        r" \((?P<max>\d+) tokens\)",
        # TGI
        r"`max_new_tokens` must be <= (?P<max>\d+)\. given: (?P<prompt>\d+)",
        # Moonshot
        r"exceeded model token limit: (?P<max>\d+)(?: \(requested: (?P<prompt>\d+))?",
        # LM Studio
        r"keep the first (?P<prompt>\d+) tokens when context the overflows"
        r"(?:.{0,120}?context length of only (?P<max>\d+))?",
        # GitHub Models
        r"request body too large for .{0,80}?max size: (?P<max>\d+) tokens",
        # DashScope
        r"range of input length should be \[\d+, (?P<max>\d+)\]",
        # OpenAI, Azure, vLLM, DeepSeek, OpenRouter: more numbers follow in various wordings
        r"maximum context length (?:is|of) (?P<max>\d+)",
        # Ollama, and others with similar wordings
        r"exceed(?:s|ed)? (?:the )?(?:max(?:imum)? )?(?:model'?s? )?context (?:length|window|size)",
        r"context (?:length|window|size) (?:was |is )?exceed",
        r"reduce the length of the (?:messages|input|prompt)",
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
