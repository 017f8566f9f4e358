"""Recognises that an endpoint takes tools, but not those that it was sent: one of them, or so many.

Pure. Servers check tools more strictly than JSON schema does, each in its own way: OpenAI wants an
object with properties, Gemini knows a part of the language, llama.cpp makes a grammar of it, Ollama
reads it into a Go struct. So a tool server that is in order may have tools that one endpoint takes
and another does not.
"""

import re
from collections.abc import Sequence

from diptych.models.error_report import ErrorReport
from diptych.models.failures import AttemptFailure
from diptych.models.refusals import TELLING_STATUSES

# Where in the request something is wrong, as paths write it: `tools[19].function.parameters`,
# Anthropic's `tools.22.custom.input_schema`, pydantic's `'tools', 0, 'function'`. Gemini puts all
# functions into its first tool. Not `tool_calls[0]`, which is in a message.
_PLACE = re.compile(
    r"\btools\[0\]\.function_?declarations\[(\d+)\]"
    r"|(?<![\w.])tools(?:\[|\.|', )(\d+)(?=[\].,])"
)
_NAMED = re.compile(
    r"\b(?:function|tool)s?:? [`'\"]?([\w.-]{1,128}?)[`'\"]?(?=[,:;. ]|$)", re.MULTILINE
)
_REFUSED = re.compile(
    r"invalid (?:json )?schema for (?:function|tool)"  # OpenAI, Azure, DeepSeek, Groq
    r"|invalid tool schema"  # Mistral
    r"|invalid '?tools'?: array too long"  # OpenAI
    r"|json schema conversion failed"  # llama.cpp, as the next
    r"|failed to (?:parse|initialize) (?:grammar|samplers)"
    r"|json schema contains features not supported by"  # vLLM, of xgrammar
    r"|cannot unmarshal [^\n]{0,80}\btools\.function\."  # Ollama
    r"|the length of the tool name|(?:tool|function) names? (?:must|cannot)"  # DashScope, Mistral
)


def refused_tool(report: ErrorReport, names: Sequence[str]) -> str | None:
    """Name the tool that an endpoint does not take; `names` are those that were sent, in order.

    "" if it does not say which one, or refuses their number; None if something else is wrong.
    """
    if report.status not in TELLING_STATUSES:
        return None
    text = "\n".join((report.text, *(path for path, _ in report.params)))
    place = _PLACE.search(text)
    if place is None and not _REFUSED.search(text):
        return None
    lowered = {name.lower(): name for name in names}
    named = (lowered[word] for word in _NAMED.findall(text) if word in lowered)
    if name := next(named, None):
        return name
    number = int(place[1] or place[2]) if place else len(names)
    return names[number] if number < len(names) else ""


def tool_refused(failure: AttemptFailure, name: str) -> AttemptFailure:
    """The same failure, known to be a refusal of a tool; `name` is "" if nobody knows which."""
    what = f"the tool {name!r}" if name else "one of the tools, or so many"
    remedy = "Change its input schema, leave it out" if name else "Leave some out"
    return AttemptFailure(
        "tools_refused",
        f"{failure.message.rstrip('.')}. It does not take {what}. {remedy} (tools[].allow), or "
        "have calls asked for as JSON: actionFormat json, or auto, which then does so.",
        report=failure.report,
    )
