"""The calls of one step: a graph, of which whatever is unblocked runs at once (loop.md §3, §5).

Not here: reading them from a reply (`actions`), making them (`outgoing`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diptych.errors import CallErrorKind
from diptych.loop import prompt
from diptych.loop.actions.arguments import check_arguments
from diptych.loop.actions.references import fill, referable
from diptych.loop.catalog import Catalog
from diptych.loop.events import Returned
from diptych.loop.messages import Call, Delegation, Result, ToolCall


@dataclass(frozen=True, slots=True)
class Graph:
    """The calls of a step in asked order, those decided on, and the results there are by id."""

    calls: Sequence[Call]
    decided: frozenset[str]
    results: Mapping[str, Result]
    catalog: Catalog

    def startable(self, most: int) -> Iterator[Call | Returned]:
        """Give each call that can be made now, filled, or the result of one that never will be.

        No more than `most` run at once, those that run already included; a `sequential` call
        never overlaps another of its server.
        """
        running = [c for c in self.calls if c.id in self.decided and c.id not in self.results]
        labelled = {c.label: self.results.get(c.id) for c in self.calls if c.label is not None}
        for call in self.calls:
            if call.id in self.decided:
                continue
            needed = {label: labelled[label] for label in call.after}
            if failed := [n for n, result in needed.items() if result and result.error]:
                yield failure(call, "skipped", f"skipped: {failed[0]} failed")
            elif all(needed.values()) and len(running) < most and self._may_join(call, running):
                decision = self._filled(call, needed) if labelled else self._checked(call)
                if not isinstance(decision, Returned):
                    running.append(decision)
                yield decision

    def superseded(self) -> Iterator[Returned]:
        """Give the result of each call that is not decided on, and will not be (loop.md §6)."""
        for call in self.calls:
            if call.id not in self.decided:
                yield failure(call, "skipped", prompt.SUPERSEDED)

    def _filled(self, call: Call, needed: Mapping[str, Result | None]) -> Call | Returned:
        """Fill the references of a call that has all it needs (without labels, `${…}` is text)."""
        filled = fill(call, {n: referable(r.value, r.text) for n, r in needed.items() if r})
        if isinstance(filled, str):
            return failure(call, "invalid_arguments", filled)
        return self._checked(filled)

    def _checked(self, call: Call) -> Call | Returned:
        """Check a filled call once more: its offer may be missing, its arguments may not fit."""
        if isinstance(call, Delegation):
            if self.catalog.agent(call.agent) is None:
                return failure(call, "unavailable", f"unavailable: {call.agent}")
            return call
        tool = self.catalog.tool(call.name)
        if tool is None:
            missing = self.catalog.missing_for_tool(call.name)
            return failure(call, "unavailable", f"unavailable: {missing}")
        problem = check_arguments(tool, call.arguments, references_fit=False)
        return failure(call, "invalid_arguments", problem) if problem else call

    def _may_join(self, call: Call, running: Sequence[Call]) -> bool:
        server, is_sequential = self._server(call)
        others = [self._server(other) for other in running]
        return server is None or not any(
            server == other and (is_sequential or other_is) for other, other_is in others
        )

    def _server(self, call: Call) -> tuple[str | None, bool]:
        """Say which server a call goes to, and whether it must be alone there."""
        tool = self.catalog.tool(call.name) if isinstance(call, ToolCall) else None
        return (tool.server, tool.sequential) if tool else (None, False)


def failure(call: Call, kind: CallErrorKind, text: str) -> Returned:
    """Give the result of a call that is not made, or not to its end."""
    result = Result(call.id, text, error=kind)
    if isinstance(call, Delegation):
        return Returned(result, "agent", call.agent)
    return Returned(result, "tool", call.name)


def is_repeatable(call: Call, catalog: Catalog) -> bool:
    """Say whether a call may be made a second time, when nobody knows what became of the first."""
    tool = catalog.tool(call.name) if isinstance(call, ToolCall) else None
    return tool is not None and (tool.read_only or tool.idempotent)
