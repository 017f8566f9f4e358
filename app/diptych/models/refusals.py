"""Recognises what of a request an endpoint refuses: tools, the system role, a parameter, a format.

Pure. Each question is only asked of what the request holds, and says no where the words may mean
something else: a wrong no costs an error that says what is wrong, a wrong yes drops what works.
"""
# ruff: noqa: ERA001, ISC004 - each pattern stands below the sentence that it is for

import re
from collections.abc import Collection

from diptych.models.error_report import ErrorReport

# Statuses whose bodies say what is wrong with a request. llama.cpp and SGLang answer 500 when a
# template refuses, DeepInfra 405 where a model has no tools, OpenRouter 404. 0 is an error object
# in a 200 that has no code of its own.
TELLING_STATUSES = frozenset({0, 400, 404, 405, 413, 415, 422, 424, 429, 500, 501})

_NOT_TAKEN = (
    r"(?:unsupported|unrecognized|unrecognised|unknown|unexpected keyword|unavailable|deprecated"
    r"|(?:is|are|was|were)(?: currently)? not (?:yet )?"
    r"(?:supported|allowed|permitted|recognized|accepted|available|enabled|implemented)"
    r"|not (?:yet )?(?:fully )?supported|not permitted|not enabled|not implemented"
    r"|(?:does not|doesn't|do not|don't|cannot|can't|not) "
    r"(?:currently )?(?:support|accept|allow|recognize)"
    r"|extra_forbidden|extra inputs|extra fields|cannot find field|unexpected (?:parameter|field)"
    r"|(?:cannot|can't) both be specified|incompatible with|only the default)"
)
_NOT_TAKEN_PATTERN = re.compile(_NOT_TAKEN)
_NO_STREAMED_TOOLS = re.compile(rf"(?:cannot|can't) (?:use|combine)|{_NOT_TAKEN}")
MAX_CLAUSE = 2000  # characters: what is longer is no sentence, but a dump
_CLAUSE_END = re.compile(r"[\n;]|[.!?] (?=[a-z])|\. ?$")

_TOOLS = (
    r"(?<![\w.'\"\]])[`'\"]?"
    r"(?:tools?|tool[- _](?:calls?|calling|use|uses|choice)"
    r"|functions?|function[- _]?call(?:s|ing)?)"
    r"[`'\"]?(?![\w.\[])"
)
_TOOLS_REFUSED = tuple(
    re.compile(pattern)
    for pattern in (
        r"--enable-auto-tool-choice|--tool-call-parser",  # vLLM
        r"tools param requires --jinja",  # llama.cpp
        r"unsupported param: tools\b",  # llama.cpp
        r"no endpoints found that support tool",  # OpenRouter
        # Ollama: "llama3 does not support tools"; DeepSeek: "does not support Function Calling"
        rf"(?:not|n't) (?:currently )?(?:support|accept|allow)[^.\n]{{0,30}}?{_TOOLS}",
        # Groq: "`tool calling` is not supported with this model"; Gemini: "Function calling is not
        # enabled for models/gemma-3-12b-it"; ik_llama.cpp: "tools param is not fully supported yet"
        rf"{_TOOLS}(?: param(?:eter)?| field)? (?:is|are)(?: currently)? not (?:yet )?(?:fully )?"
        r"(?:supported|enabled|allowed|available|implemented|permitted)",
        # Azure: "Unrecognized request argument supplied: functions"
        rf"(?:unsupported|unrecognized|unknown) (?:request )?(?:parameter|argument|field)s?"
        rf"(?: supplied)?:? {_TOOLS}",
    )
)
_SYSTEM_REFUSED = tuple(
    re.compile(pattern)
    for pattern in (
        # Gemma's template: "System role not supported"
        r"\bsystem[` '\"]*(?:role|message|prompt|instruction)s?\b[^.\n]{0,60}?"
        r"(?:not (?:be )?|n't |un)(?:supported|allowed|permitted|enabled|accepted)",
        # OpenAI's o1-mini: "'messages[0].role' does not support 'system' with this model"
        r"(?:not|n't) (?:currently )?(?:support|allow|accept)[^.\n]{0,40}?['\"` ]system\b"
        r"(?! fingerprint)",
        # Mistral's templates: "Only user and assistant roles are supported!"
        r"only user(?:(?!system)[^.\n]){0,40}?roles?(?: are| is)? (?:supported|allowed)",
        r"developer instruction is not enabled",  # Gemini, of Gemma
        r"(?:unknown|unexpected|invalid|unsupported) (?:message )?role:? ['\"`]?system",
        # Mistral 7B's template has no other word for it
        r"(?<!after the optional system message, )conversation roles must alternate user/assistant",
    )
)
_TOOL_ROLE_REFUSED = re.compile(
    r"only (?:user|system)(?:(?!tool)[^.\n]){0,40}?roles?(?: are| is)? (?:supported|allowed)"
    r"|(?:unknown|unexpected|invalid|unsupported) (?:message )?role:? ['\"`]?tool\b"
)
# Other words for a parameter than its name.
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
# DeepSeek, DashScope and LM Studio name the values that they take instead.
_FORMAT_REFUSED = re.compile(
    r"response_format[^\n]{0,80}?(?:unavailable|must be '|not valid|must be one of)"
    r"|invalid schema for response_format|(?:schema|grammar)[^\n]{0,60}?(?:too complex|not valid)"
    r"|failed to (?:parse|initialize) (?:grammar|samplers)|messages' must contain the word 'json'"
)


def refuses_tools(report: ErrorReport, *, has_tool_messages: bool = False) -> bool:
    """Say whether the endpoint does not take the `tools` field, or messages of the role `tool`."""
    if report.status not in TELLING_STATUSES:
        return False
    if has_tool_messages and _TOOL_ROLE_REFUSED.search(report.text):
        return True
    if any(path == "tools" and _NOT_TAKEN_PATTERN.search(said) for path, said in report.params):
        return True
    return any(pattern.search(report.text) for pattern in _TOOLS_REFUSED)


def refuses_streamed_tools(report: ErrorReport) -> bool:
    """Say whether the endpoint takes tools, but not where the reply is streamed.

    llama.cpp: "Cannot use tools with stream"; Bedrock: "This model doesn't support tool use in
    streaming mode."
    """
    return report.status in TELLING_STATUSES and any(
        "stream" in clause and "tool" in clause and _NO_STREAMED_TOOLS.search(clause)
        for clause in _CLAUSE_END.split(report.text)
        if len(clause) < MAX_CLAUSE
    )


def refuses_system_role(report: ErrorReport) -> bool:
    """Say whether the endpoint takes no messages of the role `system`."""
    if report.status not in TELLING_STATUSES:
        return False
    return any(pattern.search(report.text) for pattern in _SYSTEM_REFUSED)


def refuses_format(report: ErrorReport) -> bool:
    """Say whether the endpoint takes no such `response_format`."""
    if report.status not in TELLING_STATUSES:
        return False
    return bool(
        refused_parameters(report, ("response_format",)) or _FORMAT_REFUSED.search(report.text)
    )


def wants_parameter(report: ErrorReport, name: str) -> bool:
    """Say whether the endpoint asks to use another parameter, as in "Use 'x' instead"."""
    return bool(re.search(rf"\buse [`'\"]?{name}\b|\b{name}[`'\"]? instead", report.text))


def refused_parameters(report: ErrorReport, names: Collection[str]) -> set[str]:
    """Give those of the names that the endpoint says it does not take.

    A parameter that it takes with other values is not refused: "Invalid 'temperature'" is an error
    of the one who set it. "Only the default (1) value is supported" is a refusal.
    """
    if report.status not in TELLING_STATUSES:
        return set()
    named = {
        name
        for name in names
        for path, said in report.params
        if (path == name or path.startswith(f"{name}."))
        and (_NOT_TAKEN_PATTERN.search(said) or _NOT_TAKEN_PATTERN.search(report.text))
    }
    if "stream_options" in names and "stream_options" in report.text:
        named.add("stream_options")  # whatever is said of it: only usage is lost without it
    return named or {name for name in names if _is_refused_in_words(report.text, name)}


def _is_refused_in_words(text: str, name: str) -> bool:
    """Say whether a clause both names a parameter and says that it is not taken."""
    words = "|".join(re.escape(word) for word in (name, *_ALIASES.get(name, ())))
    naming = re.compile(rf"(?<![\w.]){'(?:' + words + ')'}(?![\w])")
    return any(
        _NOT_TAKEN_PATTERN.search(clause) and naming.search(clause)
        for clause in _CLAUSE_END.split(text)
        if len(clause) < MAX_CLAUSE
    )
