"""The calls of one step as a graph: whatever is unblocked runs at once (loop.md §3, §5)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diptych.core import prompt
from diptych.core.catalog import Catalog
from diptych.core.errors import CallErrorKind
from diptych.core.events import Returned
from diptych.core.messages import Call, ChildRun, Delegation, Result, ToolCall
from diptych.core.reading.arguments import check_arguments
from diptych.core.reading.references import fill_references, reference_value
from diptych.core.reading.verdict import listed


@dataclass(frozen=True, slots=True)
class Graph:
    """The calls of a step in the order of the reply, the ids of those issued, results by id.

    Of the issued ones some are `awaiting_decision`: they take no place beside others, nor do
    those in `awaiting_hooks`, about which hooks are being asked. Hooks have to see those in
    `needs_hooks` first. What was `filled` has its references filled.
    """

    calls: Sequence[Call]
    issued: frozenset[str]
    results: Mapping[str, Result]
    catalog: Catalog
    awaiting_decision: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    needs_hooks: frozenset[str] = frozenset()
    awaiting_hooks: frozenset[str] = frozenset()

    def startable(self, max_parallel: int) -> Iterator[Call | Returned]:
        """Return each call that can be made now, with its references filled, or its failed result.

        At most `max_parallel` run at once, those in flight included. A `sequential` call never
        overlaps another of its server.
        """
        idle = self.results.keys() | self.awaiting_decision
        running = [c for c in self.calls if c.id in self.issued and c.id not in idle]
        labelled = {c.label: self.results.get(c.id) for c in self.calls if c.label is not None}
        for call in self.calls:
            if call.id in self.issued or call.id in self.awaiting_hooks:
                continue
            needed = {label: labelled[label] for label in call.after}
            if failed := [n for n, result in needed.items() if result and result.error]:
                yield failure(call, "skipped", f"skipped: {failed[0]} failed")
            elif all(needed.values()) and call.id in self.needs_hooks:
                yield self._ready(call, needed)
            elif (
                all(needed.values())
                and len(running) < max_parallel
                and self._may_run_beside(call, running)
            ):
                decision = self._ready(call, needed)
                if not isinstance(decision, Returned):
                    running.append(decision)
                yield decision

    def superseded(self) -> Iterator[Returned]:
        """Return the result `skipped` of each call that was not issued, or waits (loop.md §6)."""
        for call in self.calls:
            if call.id not in self.issued or call.id in self.awaiting_decision:
                yield failure(call, "skipped", prompt.SUPERSEDED)

    def _ready(self, call: Call, needed: Mapping[str, Result | None]) -> Call | Returned:
        """Fill the references of a call, if it may have any, and check it."""
        is_labelled = any(each.label is not None for each in self.calls)
        if is_labelled and call.id not in self.filled:
            return self._filled(call, needed)
        return self._checked(call)

    def _filled(self, call: Call, needed: Mapping[str, Result | None]) -> Call | Returned:
        """Fill the references of a call whose needed results are there."""
        filled = fill_references(
            call, {n: reference_value(r.value, r.text) for n, r in needed.items() if r}
        )
        if isinstance(filled, str):
            return failure(call, "invalid_arguments", filled)
        return self._checked(filled)

    def _checked(self, call: Call) -> Call | Returned:
        """Check a filled call again: its server may be unavailable, its arguments invalid."""
        if isinstance(call, Delegation):
            if self.catalog.agent(call.agent) is None:
                return failure(call, "unavailable", f"unavailable: {call.agent}")
            return call
        tool = self.catalog.tool(call.name)
        if tool is None:
            return failure(call, "unavailable", _unavailable(call.name, self.catalog))
        problem = check_arguments(tool, call.arguments, references_fit=False)
        return failure(call, "invalid_arguments", problem) if problem else call

    def _may_run_beside(self, call: Call, running: Sequence[Call]) -> bool:
        server, is_sequential = self._server(call)
        others = [self._server(other) for other in running]
        return not any(
            server == other and (is_sequential or other_is) for other, other_is in others
        )

    def _server(self, call: Call) -> tuple[str | None, bool]:
        """The server of a call, and whether the call must be alone there."""
        tool = self.catalog.tool(call.name) if isinstance(call, ToolCall) else None
        return (tool.server, tool.sequential) if tool else (None, False)


def _unavailable(name: str, catalog: Catalog) -> str:
    """Say which server a tool belongs to that cannot be had, or may belong to."""
    known = catalog.known_missing(name)
    if known:
        return f"unavailable: {known}"
    tools = listed(tool for tool, _ in catalog.listed())
    return f"unavailable: {catalog.possibly_missing(name)}; tools available: {tools}"


def failure(call: Call, kind: CallErrorKind, text: str, child: ChildRun | None = None) -> Returned:
    """The result of a call that was not made, or that did not end; `child` is its task, if any."""
    result = Result(call.id, text, error=kind, child=child)
    if isinstance(call, Delegation):
        return Returned(result, "agent", call.agent)
    return Returned(result, "tool", call.name)


def is_repeatable(call: Call, catalog: Catalog) -> bool:
    """Whether a call may be made a second time when the first outcome is unknown."""
    tool = catalog.tool(call.name) if isinstance(call, ToolCall) else None
    return tool is not None and (tool.read_only or tool.idempotent)
