"""The subset of the chat completions API that an endpoint supports, learned from its refusals.

Pure. The first request follows the API. When the endpoint refuses a part, that part is left out or
rewritten, and the request is sent again. The form that worked is remembered (decision 65).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

from diptych.core.messages import JSONObject
from diptych.core.model_request import ModelRequest
from diptych.models.error_report import ErrorReport
from diptych.models.refusals import (
    context_limit,
    refused_parameters,
    refuses_format,
    refuses_streamed_tools,
    refuses_system_role,
    wants_parameter,
)

MAX_TOKENS_NAMES: Final = ("max_tokens", "max_completion_tokens")
_REQUIRED = frozenset({"model", "messages", "stream", "tools", "response_format"})
_SHORT_ID_WORDS = (  # lower-cased
    "must be a-z, a-z, 0-9, with a length of 9",  # Mistral's API
    "should be alphanumeric strings with length 9",  # its templates
)
_SINGLE_CALL_WORDS = "only supports single tool-calls"  # chat templates of Llama 3.x
_ALTERNATION_WORDS = "roles must alternate"  # chat templates of Mistral and Gemma 2
_SIGNATURE_WORDS = re.compile(r"missing (?:a |the )?[`'\"]?thought_signature")  # Gemini 3
_EXTRA_FIELD = "extra_content"
_REASONING_WORDS = re.compile(
    r"reasoning_content[`'\"]?[^.\n]{0,60} must be passed back"  # DeepSeek
    r"|missing [`'\"]?reasoning_content"  # DeepSeek V3.2
    r"|reasoning_content[`'\"]? is missing"  # Moonshot
)
_SCHEMA_WORDS = ("invalid schema", "too complex", "grammar", "samplers")
_OF_ONE_REQUEST = frozenset({"reply_limit", "skips_format", "writes_calls"})
_CLAUSES = {
    "takes_system_role": (
        "does not support the system role: its text is sent in the first user message"
    ),
    "takes_tool_messages": "does not support tool messages: calls and results are sent as text",
    "wants_reasoning": "requires reasoning to be sent back with tool calls: it is kept with them",
    "max_tokens_name": "requires max_completion_tokens",
    "streams": "does not support streaming: replies are requested whole",
    "streams_tools": (
        "does not stream tool calls: replies are requested whole where tools are offered"
    ),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """An endpoint's supported features; assumed complete until it refuses something.

    `reply_limit`, `skips_format` and `writes_calls` apply to a single request.
    """

    dropped: frozenset[str] = frozenset()  # unsupported parameters
    max_tokens_name: str = "max_tokens"
    refused_formats: frozenset[str] = frozenset()  # types of `response_format`
    takes_system_role: bool = True  # else the system text goes into the first user message
    streams: bool = True  # else replies are requested whole
    streams_tools: bool = True  # else replies are requested whole where tools are offered
    has_short_ids: bool = False  # call ids of nine characters (Mistral)
    signs_calls: bool = False  # add the signature that Gemini 3 requires
    has_single_calls: bool = False  # one call per message (Llama 3.x)
    takes_tool_messages: bool = True  # else calls and results are written as text (Gemma 2)
    wants_reasoning: bool = False  # send the reasoning of earlier replies back (DeepSeek)
    no_reasoning: str = ""  # placeholder for reasoning that was not kept
    takes_extra: bool = True  # else drop `extra_content` of calls made by another endpoint
    reply_limit: int | None = None  # tokens left for the reply in the context window
    skips_format: bool = False  # this schema was refused; another may be accepted
    writes_calls: bool = False  # calls as text: a user message follows a result directly (Mistral)

    def format_for(self, schema: JSONObject) -> str | None:
        """Return the type of `response_format` to send; None if the endpoint supports none.

        An empty schema means any JSON object.
        """
        if self.skips_format:
            return None
        kinds = ("json_schema", "json_object") if schema else ("json_object",)
        return next((kind for kind in kinds if kind not in self.refused_formats), None)

    def has_tool_messages(self, request: ModelRequest) -> bool:
        """Whether the request is sent with messages of the role `tool`."""
        is_written = self.writes_calls or not self.takes_tool_messages
        return not is_written and any(message.role == "tool" for message in request.messages)

    def merged(self, other: "Dialect") -> "Dialect":
        """Merge what another request has learned, except for its single-request settings."""
        learned: dict[str, Any] = {}
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(ours, frozenset):
                learned[field.name] = ours | theirs
            elif field.name not in _OF_ONE_REQUEST:
                learned[field.name] = theirs if theirs != field.default else ours
        return Dialect(**learned)

    def refused(self, known: "Dialect | None" = None) -> list[str]:
        """Describe the unsupported features that `known` lacks, one clause each."""
        known = known or Dialect()
        dropped = sorted(self.dropped - known.dropped)
        clauses = [f"does not support {name}: it is left out" for name in dropped]
        if kinds := ", ".join(sorted(self.refused_formats - known.refused_formats)):
            clauses.append(f"does not support response_format {kinds}: it is left out")
        for name, clause in _CLAUSES.items():
            if getattr(self, name) != getattr(known, name):
                clauses.append(clause)
        return clauses

    def adapted(
        self, report: ErrorReport, sent: Mapping[str, Any], request: ModelRequest
    ) -> "Dialect | None":
        """Return the dialect to retry a refused request with; None if nothing is left to change.

        `sent` are the fields of the request. Each retry drops or changes one more thing, so the
        retries end.
        """
        limit = context_limit(report)
        if limit is not None:
            may_limit = self.reply_limit is None and self.max_tokens_name in sent and limit.room
            return replace(self, reply_limit=limit.room) if may_limit else None
        for name in MAX_TOKENS_NAMES:
            other = MAX_TOKENS_NAMES[1 - MAX_TOKENS_NAMES.index(name)]
            if name in sent and wants_parameter(report, other):
                return replace(self, max_tokens_name=other)
        return self._without_format(report, sent) or self._otherwise(report, sent, request)

    def _without_format(self, report: ErrorReport, sent: Mapping[str, Any]) -> "Dialect | None":
        if "response_format" not in sent or not refuses_format(report):
            return None
        if _any_of(_SCHEMA_WORDS, report.text):
            return replace(self, skips_format=True)  # another schema may be accepted
        kind = str(sent["response_format"]["type"])
        return replace(self, refused_formats=self.refused_formats | {kind})

    def _otherwise(
        self, report: ErrorReport, sent: Mapping[str, Any], request: ModelRequest
    ) -> "Dialect | None":
        has_calls = any(message.calls for message in request.messages)
        if has_calls and not self.has_short_ids and _any_of(_SHORT_ID_WORDS, report.text):
            return replace(self, has_short_ids=True)
        if has_calls and not self.signs_calls and _SIGNATURE_WORDS.search(report.text):
            return replace(self, signs_calls=True)
        if has_calls and not self.has_single_calls and _SINGLE_CALL_WORDS in report.text:
            return replace(self, has_single_calls=True)
        if _REASONING_WORDS.search(report.text):
            return self._with_reasoning(request)
        has_extra = any(call.extra for message in request.messages for call in message.calls)
        if has_extra and self.takes_extra and _EXTRA_FIELD in report.text:
            return replace(self, takes_extra=False)
        has_system = any(message.role == "system" for message in request.messages)
        if has_system and self.takes_system_role and refuses_system_role(report):
            return replace(self, takes_system_role=False)
        if _ALTERNATION_WORDS in report.text and self.has_tool_messages(request):
            return self._with_calls_as_text(request)
        if sent["stream"] and "tools" in sent and refuses_streamed_tools(report):
            return replace(self, streams_tools=False)
        if sent["stream"] and refused_parameters(report, ("stream",)):
            return replace(self, streams=False)
        refused = refused_parameters(report, sent.keys() - _REQUIRED)
        return replace(self, dropped=self.dropped | refused) if refused else None

    def _with_reasoning(self, request: ModelRequest) -> "Dialect | None":
        """Send reasoning back; where none was kept, some endpoints refuse an empty string."""
        said = [message for message in request.messages if message.role == "assistant"]
        if said and not self.wants_reasoning:
            return replace(self, wants_reasoning=True)
        if not self.no_reasoning and any(not message.reasoning for message in said):
            return replace(self, no_reasoning=" ")
        return None

    def _with_calls_as_text(self, request: ModelRequest) -> "Dialect":
        roles = [message.role for message in request.messages]
        if ("tool", "user") in pairwise(roles):
            return replace(self, writes_calls=True)
        return replace(self, takes_tool_messages=False)


def _any_of(phrases: Collection[str], text: str) -> bool:
    return any(phrase in text for phrase in phrases)
