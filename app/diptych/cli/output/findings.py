"""Says in plain sentences what an online check found: what works, what would serve better.

Pure. Each sentence about something that fails says which field of the manifest to change.
"""

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from diptych.cli.output.screen import Mark
from diptych.core.text import one_line, some

if TYPE_CHECKING:
    from diptych.manifest import AgentManifest
    from diptych.manifest.model import ModelSpec
    from diptych.manifest.model_api import ModelApiSpec
    from diptych.models.probe import Capability, EndpointFindings
    from diptych.serve.examination import AgentFindings, PeerFindings, ToolServerFindings

_MAX_NAMES = 5
_MAX_NAME_CHARS = 80  # of a name that an endpoint lists
_FIELDS = {
    "temperature": "temperature",
    "max_tokens": "maxTokens",
    "reasoning_effort": "reasoningEffort",
}

Sentence: TypeAlias = tuple[Mark, str]


def sentences(found: "AgentFindings", manifest: "AgentManifest") -> Iterator[Sentence]:
    """Return the findings about an agent, the most important first."""
    spec = manifest.spec
    if not found.models:
        yield Mark.NOTE, "model: a script answers (DEBUG_MOCK_RESPONSES); it was not asked"
    has_calls = bool(spec.tools or spec.agents)
    for position, model in enumerate(found.models):
        what = "fallback" if position else "model"
        yield from _model(model, f"{what} {model.name}")
        if spec.model is not None and model.failure is None:
            fields = f"model.fallbacks[{position - 1}]." if position else "model."
            if model.tools is not None:
                yield _tools(model.tools, spec.model.action_format, has_calls=has_calls)
            yield from _advice(model, spec.model, fields, spec.context.max_tokens)
    yield from map(server_sentence, found.servers)
    yield from map(_peer, found.peers)
    for field in found.unmatched:
        mark = Mark.NOTE if field.is_glob else Mark.FAILED
        yield mark, f"{field.place}: {field.reason}"


def api_sentences(found: "EndpointFindings", spec: "ModelApiSpec") -> Iterator[Sentence]:
    """Return the findings about a ModelAPI's endpoint."""
    if found.name:
        yield from _model(found, f"model {found.name}")
    elif found.failure is not None:
        yield Mark.FAILED, f"endpoint: {found.failure.message}"
    if found.models is not None:
        listed = some([one_line(each, _MAX_NAME_CHARS) for each in found.models])
        yield (
            Mark.OK,
            f"{found.origin} lists {len(found.models)} models" + (f": {listed}" if listed else ""),
        )
        for name in spec.models:
            if name != found.name and not fnmatch.filter(found.models, name):
                yield Mark.NOTE, f"models: {name} is none of them"


def server_sentence(found: "ToolServerFindings") -> Sentence:
    """Return the finding about a tool server."""
    what = f"tool server {found.name}"
    if found.reason is not None:
        return Mark.FAILED, f"{what}: {found.reason}"
    listed = some(found.tools)
    count = "1 tool" if len(found.tools) == 1 else f"{len(found.tools)} tools"
    text = f"{what}: {count} in {found.seconds:.1f} s" + (f": {listed}" if listed else "")
    besides = found.left_out
    if found.cut:
        cut = some(found.cut)
        besides = (*besides, f"descriptions over 4,096 characters are cut: {cut}")
    is_well = found.tools and not besides
    return (Mark.OK if is_well else Mark.NOTE), "; ".join((text, *besides))


def _model(found: "EndpointFindings", what: str) -> Iterator[Sentence]:
    unlisted = "" if found.models is None or found.is_listed else _nearest(found.name, found.models)
    if found.failure is None:
        yield Mark.OK, f"{what}: answers at {found.origin}, in {found.seconds or 0:.1f} s"
        if unlisted:
            said = f"it answers, but does not list that name; it lists {unlisted}"
            yield Mark.NOTE, f"{what}: {said}"
        return
    yield Mark.FAILED, f"{what}: {found.failure.message}"
    if unlisted:
        said = f"{found.origin} does not list it: set the name to one of {unlisted}"
        yield Mark.FAILED, f"{what}: {said}"


def _nearest(name: str, models: Sequence[str]) -> str:
    """Name those models that are spelled most like the one that was asked for."""
    near = difflib.get_close_matches(name, models, _MAX_NAMES, cutoff=0.4) or models[:_MAX_NAMES]
    named = ", ".join(one_line(each, _MAX_NAME_CHARS) for each in near)
    more = len(models) - len(near)
    return named + (f" and {more} more" if more else "") if models else "none"


def _tools(tools: "Capability", action_format: str, *, has_calls: bool) -> Sentence:
    """Return the finding about native calls; a format the endpoint cannot serve has failed."""
    is_json = action_format == "json" or not has_calls
    if tools.failure is not None:
        mark, better = (Mark.NOTE, "json serves it") if is_json else (Mark.FAILED, "set it to json")
        failure = tools.failure.message
        return mark, f"  fails when it is sent tools, actionFormat: {better}. {failure}"
    if tools.refusal:
        mark = Mark.OK if is_json else Mark.FAILED if action_format == "native" else Mark.NOTE
        return mark, f"  takes no calls of this agent's tools. {tools.refusal}"
    if not tools.is_taken:
        if action_format == "native" and has_calls:
            return Mark.FAILED, "  takes no tools: set actionFormat to json or auto"
        uses = "auto will use json" if action_format == "auto" else "json serves it"
        return Mark.OK, f"  takes no tools: actionFormat: {uses}"
    if tools.is_used:
        if action_format == "json" and has_calls:
            return Mark.NOTE, "  takes tools natively: actionFormat: native would serve better"
        return Mark.OK, "  takes tools natively"
    text = "  takes the tools field, but made no call when told to:"
    if is_json:
        return Mark.OK, f"{text} actionFormat: json serves it"
    return Mark.NOTE, f"{text} if runs get none either, actionFormat: json would serve better"


def _advice(
    found: "EndpointFindings", model: "ModelSpec", fields: str, window: int | None
) -> Iterator[Sentence]:
    """Advise on an endpoint's parameters; `window` is the manifest's `context.maxTokens`."""
    if found.schema is not None:
        yield _schema(found.schema, found.schema_kind)
    yield _context(found.context, model.parameters.max_tokens, window)
    for clause in found.refused:
        named = (field for name, field in _FIELDS.items() if f"support {name}:" in clause)
        removal = next((f"; remove {fields}parameters.{field}" for field in named), "")
        yield (Mark.NOTE if removal else Mark.OK), f"  {clause}{removal}"


def _schema(schema: "Capability", kind: str | None) -> Sentence:
    if schema.failure is not None:
        return Mark.NOTE, f"  fails when it is sent a JSON schema. {schema.failure.message}"
    if not schema.is_taken:
        return Mark.OK, "  takes no response_format: the prompt describes the schema"
    if kind == "json_object":
        return Mark.OK, "  takes response_format json_object, and no JSON schema"
    if schema.is_used:
        return Mark.OK, "  keeps to a JSON schema (response_format)"
    return Mark.NOTE, "  takes a JSON schema (response_format), but did not keep to it"


def _context(context: int | None, max_tokens: int | None, window: int | None) -> Sentence:
    """Return how long the context is, beside what the manifest says of it."""
    if context is None:
        holds = f"context.maxTokens {window:,} holds" if window else "it will be learned"
        return Mark.OK, f"  does not say how long its context is: {holds}"
    size = f"  context {context:,} tokens"
    if max_tokens is not None and max_tokens >= context:
        said = f"parameters.maxTokens {max_tokens:,} leaves no room in it; set a smaller one"
        return Mark.NOTE, f"{size}: {said}"
    if window is None:
        return Mark.OK, f"{size}: set context.maxTokens, or leave it to be learned"
    if window > context:
        said = f"context.maxTokens {window:,} is more than it takes; set a smaller one"
        return Mark.NOTE, f"{size}: {said}"
    return Mark.OK, f"{size}; context.maxTokens is {window:,}"


def _peer(found: "PeerFindings") -> Sentence:
    what = f"agent {found.name}"
    if not found.is_asked:
        return Mark.OK, f"{what}: is in these files, and was not asked"
    if found.reason is not None:
        return Mark.FAILED, f"{what}: {found.reason}"
    return Mark.OK, f"{what}: its card is there"
