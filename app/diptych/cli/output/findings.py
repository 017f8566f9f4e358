"""Says what an online check found out, in plain sentences: what works, what would serve better.

Pure. Each sentence about something that fails says which field of the manifest to change.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diptych.cli.output.marks import Mark
from diptych.core.text import one_line

if TYPE_CHECKING:
    from diptych.manifest import AgentManifest
    from diptych.manifest.model import ModelSpec
    from diptych.models.probe import Capability, EndpointFindings
    from diptych.serve.examination import AgentFindings, PeerFindings, ToolServerFindings

MAX_NAMES = 5
MAX_NAME_CHARS = 80  # of a name that an endpoint lists
_FIELDS = {
    "temperature": "temperature",
    "max_tokens": "maxTokens",
    "reasoning_effort": "reasoningEffort",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line of a report, with the mark that stands before it."""

    mark: Mark
    text: str


def sentences(found: "AgentFindings", manifest: "AgentManifest") -> Iterator[Sentence]:
    """Say what was found out about an agent, most important things first."""
    spec = manifest.spec
    if not found.models:
        yield Sentence(
            Mark.NOTE, "model: a script answers (DEBUG_MOCK_RESPONSES); it was not asked"
        )
    has_calls = bool(spec.tools or spec.agents)
    for position, model in enumerate(found.models):
        what = "fallback" if position else "model"
        yield from _model(model, f"{what} {model.name}")
        if spec.model is not None and model.failure is None:
            fields = f"model.fallbacks[{position - 1}]." if position else "model."
            window = spec.context.max_tokens
            yield from _advice(model, spec.model, fields, window, has_calls=has_calls)
    yield from map(_server, found.servers)
    yield from map(_peer, found.peers)
    for field in found.unmatched:
        mark = Mark.NOTE if field.is_glob else Mark.FAILED
        yield Sentence(mark, f"{field.place}: {field.reason}")


def _model(found: "EndpointFindings", what: str) -> Iterator[Sentence]:
    missing = found.models is not None and not found.is_listed
    if found.failure is not None:
        yield Sentence(Mark.FAILED, f"{what}: {found.failure.message}")
        if missing and found.models is not None:
            yield Sentence(
                Mark.FAILED,
                f"{what}: {found.origin} does not list it: set the name to one of "
                f"{_nearest(found.name, found.models)}",
            )
        return
    yield Sentence(Mark.OK, f"{what}: answers at {found.origin}, in {found.seconds or 0:.1f} s")
    if missing and found.models is not None:
        yield Sentence(
            Mark.NOTE,
            f"{what}: it answers, but does not list that name; it lists "
            f"{_nearest(found.name, found.models)}",
        )


def _advice(
    found: "EndpointFindings",
    model: "ModelSpec",
    fields: str,
    window: int | None,
    *,
    has_calls: bool,
) -> Iterator[Sentence]:
    """Advise on an endpoint; `window` is the manifest's `context.maxTokens`."""
    if found.tools is not None:
        yield _tools(found.tools, model.action_format, has_calls=has_calls)
    if found.schema is not None:
        yield _schema(found.schema, found.schema_kind)
    yield _context(found.context, model.parameters.max_tokens, window)
    for clause in found.refused:
        removal = _removal(clause, fields)
        yield Sentence(Mark.NOTE if removal else Mark.OK, f"  {clause}{removal}")


def _tools(tools: "Capability", action_format: str, *, has_calls: bool) -> Sentence:
    """Say what becomes of native calls; a format that cannot work with the endpoint has failed."""
    is_json = action_format == "json" or not has_calls
    if tools.failure is not None:
        mark = Mark.NOTE if is_json else Mark.FAILED
        better = "json serves it" if is_json else "set it to json"
        return Sentence(mark, f"  fails when it is sent tools, actionFormat: {better}. "
                        f"{tools.failure.message}")  # fmt: skip
    if tools.refusal:
        mark = Mark.OK if is_json else Mark.FAILED if action_format == "native" else Mark.NOTE
        return Sentence(mark, f"  takes no calls of this agent's tools. {tools.refusal}")
    if not tools.is_taken:
        match action_format:
            case "native" if has_calls:
                return Sentence(Mark.FAILED, "  takes no tools: set actionFormat to json or auto")
            case "auto":
                return Sentence(Mark.OK, "  takes no tools: actionFormat: auto will use json")
            case _:
                return Sentence(Mark.OK, "  takes no tools: actionFormat: json serves it")
    if tools.is_used:
        if action_format == "json" and has_calls:
            return Sentence(
                Mark.NOTE, "  takes tools natively: actionFormat: native would serve better"
            )
        return Sentence(Mark.OK, "  takes tools natively")
    if is_json:
        return Sentence(
            Mark.OK,
            "  takes the tools field, but made no call when told to: actionFormat: json serves it",
        )
    return Sentence(
        Mark.NOTE,
        "  takes the tools field, but made no call when told to: if it makes none in runs either, "
        "actionFormat: json would serve better",
    )


def _schema(schema: "Capability", kind: str | None) -> Sentence:
    if schema.failure is not None:
        return Sentence(
            Mark.NOTE, f"  fails when it is sent a JSON schema. {schema.failure.message}"
        )
    if not schema.is_taken:
        return Sentence(Mark.OK, "  takes no response_format: a schema is told in words")
    if kind == "json_object":
        return Sentence(Mark.OK, "  takes response_format json_object, and no JSON schema")
    if schema.is_used:
        return Sentence(Mark.OK, "  keeps to a JSON schema (response_format)")
    return Sentence(Mark.NOTE, "  takes a JSON schema (response_format), but did not keep to it")


def _context(context: int | None, max_tokens: int | None, is_set_to: int | None) -> Sentence:
    """Say how long the context is; `is_set_to` is what the manifest says of it."""
    if context is None and is_set_to is not None:
        said = f"  does not say how long its context is: context.maxTokens {is_set_to:,} holds"
        return Sentence(Mark.OK, said)
    if context is None:
        return Sentence(Mark.OK, "  does not say how long its context is: it will be learned")
    size = f"  context {context:,} tokens"
    if max_tokens is not None and max_tokens >= context:
        return Sentence(Mark.NOTE, f"{size}: parameters.maxTokens {max_tokens:,} leaves no room in "
                        "it; set a smaller one")  # fmt: skip
    if is_set_to is not None and is_set_to > context:
        return Sentence(Mark.NOTE, f"{size}: context.maxTokens {is_set_to:,} is more than it "
                        "takes; set a smaller one")  # fmt: skip
    if is_set_to is not None:
        return Sentence(Mark.OK, f"{size}; context.maxTokens is {is_set_to:,}")
    return Sentence(Mark.OK, f"{size}: set context.maxTokens, or leave it to be learned")


def _removal(clause: str, fields: str) -> str:
    named = (field for name, field in _FIELDS.items() if f"take {name}:" in clause)
    return next((f"; remove {fields}parameters.{field}" for field in named), "")


def _nearest(name: str, models: Sequence[str]) -> str:
    """Name those models that are spelled most like the one that was asked for."""
    near = difflib.get_close_matches(name, models, MAX_NAMES, cutoff=0.4) or models[:MAX_NAMES]
    more = len(models) - len(near)
    named = ", ".join(one_line(each, MAX_NAME_CHARS) for each in near)
    return named + (f" and {more} more" if more else "") if models else "none"


def _server(found: "ToolServerFindings") -> Sentence:
    what = f"tool server {found.name}"
    if found.reason is not None:
        return Sentence(Mark.FAILED, f"{what}: {found.reason}")
    listed = _few(found.tools)
    count = "1 tool" if len(found.tools) == 1 else f"{len(found.tools)} tools"
    text = f"{what}: {count} in {found.seconds:.1f} s" + (f": {listed}" if listed else "")
    besides = found.left_out
    if found.cut:
        besides = (*besides, f"descriptions over 4,096 characters are cut: {_few(found.cut)}")
    is_well = found.tools and not besides
    return Sentence(Mark.OK if is_well else Mark.NOTE, "; ".join((text, *besides)))


def _few(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _peer(found: "PeerFindings") -> Sentence:
    what = f"agent {found.name}"
    if not found.is_asked:
        return Sentence(Mark.OK, f"{what}: is in these files, and was not asked")
    if found.reason is not None:
        return Sentence(Mark.FAILED, f"{what}: {found.reason}")
    return Sentence(Mark.OK, f"{what}: its card is there")
