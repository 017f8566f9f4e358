"""What of the chat completions API an endpoint takes, learned from what it refuses.

Pure. A request is sent as the API has it; what the endpoint refuses is left out or written in
another way, and the request is sent again. What went through is remembered (decision 65).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from diptych.core.messages import JSONObject
from diptych.core.model_request import ModelRequest
from diptych.models.context_limits import context_limit
from diptych.models.error_report import ErrorReport
from diptych.models.refusals import (
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
_SINGLE_CALL_WORDS = "only supports single tool-calls"  # the templates of Llama 3.x
_ALTERNATION_WORDS = "roles must alternate"  # those of Mistral and Gemma 2
_SIGNATURE_WORDS = re.compile(r"missing (?:a |the )?[`'\"]?thought_signature")  # Gemini 3
_EXTRA_FIELD = "extra_content"
_REASONING_WORDS = re.compile(
    r"reasoning_content[`'\"]?[^.\n]{0,60} must be passed back"  # DeepSeek
    r"|missing [`'\"]?reasoning_content"  # DeepSeek V3.2
    r"|reasoning_content[`'\"]? is missing"  # Moonshot
)
_SCHEMA_WORDS = ("invalid schema", "too complex", "grammar", "samplers")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an endpoint takes; a new one takes everything.

    `dropped` are the parameters that it does not know, `refused_formats` the types of
    `response_format`. Without `takes_system_role` the system's text goes to the first user message.
    Without `streams` it is asked for whole replies, without `streams_tools` where tools are
    offered. `has_short_ids` shortens the ids of calls
    (Mistral), `signs_calls` adds the signature that Gemini 3 wants of them. `has_single_calls`
    gives each call of a message a message of its own (Llama 3.x). Without `takes_tool_messages`
    calls and results are written as text, as in the JSON format (Gemma 2). `wants_reasoning` sends
    the reasoning of replies back (DeepSeek), `no_reasoning` in the place of what is not kept.
    Without `takes_extra` what another endpoint wanted beside its calls is left out.

    `reply_limit`, `skips_format` and `writes_calls` hold for one request only: they depend on what
    is in it. `writes_calls` is the lack of `takes_tool_messages` where a message of the user
    follows a result directly, which some templates of Mistral refuse.
    """

    dropped: frozenset[str] = frozenset()
    max_tokens_name: str = "max_tokens"
    refused_formats: frozenset[str] = frozenset()
    takes_system_role: bool = True
    streams: bool = True
    streams_tools: bool = True
    has_short_ids: bool = False
    signs_calls: bool = False
    has_single_calls: bool = False
    takes_tool_messages: bool = True
    wants_reasoning: bool = False
    no_reasoning: str = ""
    takes_extra: bool = True
    reply_limit: int | None = None
    skips_format: bool = False
    writes_calls: bool = False

    def format_for(self, schema: JSONObject) -> str | None:
        """Give the type of `response_format` to ask with; None if the endpoint takes none.

        An empty schema means any JSON object.
        """
        if self.skips_format:
            return None
        kinds = ("json_schema", "json_object") if schema else ("json_object",)
        return next((kind for kind in kinds if kind not in self.refused_formats), None)

    def has_tool_messages(self, request: ModelRequest) -> bool:
        """Say whether messages of the role `tool` are sent."""
        is_written = self.writes_calls or not self.takes_tool_messages
        return not is_written and any(message.role == "tool" for message in request.messages)

    def merged(self, other: "Dialect") -> "Dialect":
        """Add what another request to the same endpoint has taught; nothing of one request only."""
        names = {self.max_tokens_name, other.max_tokens_name}
        return Dialect(
            dropped=self.dropped | other.dropped,
            max_tokens_name=max(names, key=MAX_TOKENS_NAMES.index),
            refused_formats=self.refused_formats | other.refused_formats,
            takes_system_role=self.takes_system_role and other.takes_system_role,
            streams=self.streams and other.streams,
            streams_tools=self.streams_tools and other.streams_tools,
            has_short_ids=self.has_short_ids or other.has_short_ids,
            signs_calls=self.signs_calls or other.signs_calls,
            has_single_calls=self.has_single_calls or other.has_single_calls,
            takes_tool_messages=self.takes_tool_messages and other.takes_tool_messages,
            wants_reasoning=self.wants_reasoning or other.wants_reasoning,
            no_reasoning=max(self.no_reasoning, other.no_reasoning, key=len),
            takes_extra=self.takes_extra and other.takes_extra,
        )

    def adapted(
        self, report: ErrorReport, fields: Mapping[str, Any], request: ModelRequest
    ) -> "Dialect | None":
        """Give the dialect in which a refused request may go through; None if there is none.

        `fields` are those that were sent. Each step leaves out or changes something that was
        sent, so that steps come to an end.
        """
        limit = context_limit(report)
        if limit is not None:
            may_limit = self.reply_limit is None and self.max_tokens_name in fields and limit.room
            return replace(self, reply_limit=limit.room) if may_limit else None
        for name in MAX_TOKENS_NAMES:
            other = MAX_TOKENS_NAMES[1 - MAX_TOKENS_NAMES.index(name)]
            if name in fields and wants_parameter(report, other):
                return replace(self, max_tokens_name=other)
        return self._without_format(report, fields) or self._otherwise(report, fields, request)

    def _without_format(self, report: ErrorReport, fields: Mapping[str, Any]) -> "Dialect | None":
        if "response_format" not in fields or not refuses_format(report):
            return None
        if _any_of(_SCHEMA_WORDS, report.text):
            return replace(self, skips_format=True)  # another schema may be taken
        kind = str(fields["response_format"]["type"])
        return replace(self, refused_formats=self.refused_formats | {kind})

    def _otherwise(
        self, report: ErrorReport, fields: Mapping[str, Any], request: ModelRequest
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
        if fields["stream"] and "tools" in fields and refuses_streamed_tools(report):
            return replace(self, streams_tools=False)
        if fields["stream"] and refused_parameters(report, ("stream",)):
            return replace(self, streams=False)
        refused = refused_parameters(report, fields.keys() - _REQUIRED)
        return replace(self, dropped=self.dropped | refused) if refused else None

    def _with_reasoning(self, request: ModelRequest) -> "Dialect | None":
        """Send reasoning back; some endpoints refuse an empty one where nothing is kept."""
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
