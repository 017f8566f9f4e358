"""The calls of one step as a graph: every unblocked call runs at once (loop.md §3, §5)."""

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
    """A step's calls in reply order, with their results by id; the sets hold call ids.

    Calls in `awaiting_decision` (approvals), `awaiting_input` or `awaiting_hooks` do not count
    against the parallel limit. Calls in `needs_hooks` must pass the hooks first. The references of
    those in `filled` are resolved.
    """

    calls: Sequence[Call]
    issued: frozenset[str]
    results: Mapping[str, Result]
    catalog: Catalog
    awaiting_decision: frozenset[str] = frozenset()
    awaiting_input: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    needs_hooks: frozenset[str] = frozenset()
    awaiting_hooks: frozenset[str] = frozenset()

    def startable(self, max_parallel: int) -> Iterator[Call | Returned]:
        """Yield each call that can start now, references resolved, or its failed result.

        At most `max_parallel` run at once, including those in flight. A `sequential` call never
        overlaps another of its server. Calls of the caller's tools start together, when no other
        call can go on without their results.
        """
        is_busy = bool(self.awaiting_hooks)
        for due in self._startable_here(max_parallel):
            is_busy = True
            yield due
        own = (c for c in self.calls if c.id in self.issued and not self._is_callers(c))
        if is_busy or any(c.id not in self.results for c in own):
            return
        for call in self.calls:
            needed = self._needed(call)
            is_due = call.id not in self.issued and all(needed.values())
            if is_due and self._is_callers(call):
                yield self._ready(call, needed)

    def _startable_here(self, max_parallel: int) -> Iterator[Call | Returned]:
        """Yield what `startable` yields first: all but calls of the caller's tools.

        Such a call is yielded only if it needs the hooks, or never can start.
        """
        idle = self.results.keys() | self.awaiting_decision
        running = [c for c in self.calls if c.id in self.issued and c.id not in idle]
        for call in self.calls:
            if call.id in self.issued or call.id in self.awaiting_hooks:
                continue
            needed = self._needed(call)
            if failed := [n for n, result in needed.items() if result and result.error]:
                yield failure(call, "skipped", f"skipped: {failed[0]} failed")
            elif all(needed.values()) and call.id in self.needs_hooks:
                yield self._ready(call, needed)
            elif (
                all(needed.values())
                and not self._is_callers(call)
                and len(running) - len(self.awaiting_input) < max_parallel
                and self._may_run_beside(call, running)
            ):
                decision = self._ready(call, needed)
                if not isinstance(decision, Returned):
                    running.append(decision)
                yield decision

    def _needed(self, call: Call) -> Mapping[str, Result | None]:
        """Return the results that a call needs, by label; None for one that is to come."""
        labelled = {c.label: self.results.get(c.id) for c in self.calls if c.label in call.after}
        return {label: labelled[label] for label in call.after}

    def _is_callers(self, call: Call) -> bool:
        tool = self.catalog.tool(call.name) if isinstance(call, ToolCall) else None
        return tool is not None and tool.is_callers

    def superseded(self) -> Iterator[Returned]:
        """Yield a `skipped` result for each call not issued, or awaiting approval (loop.md §6)."""
        for call in self.calls:
            if call.id not in self.issued or call.id in self.awaiting_decision:
                yield failure(call, "skipped", prompt.SUPERSEDED)

    def _ready(self, call: Call, needed: Mapping[str, Result | None]) -> Call | Returned:
        """Resolve a call's references, unless that has been done, and check it."""
        is_labelled = any(each.label is not None for each in self.calls)
        if is_labelled and call.id not in self.filled:
            return self._filled(call, needed)
        return self._checked(call)

    def _filled(self, call: Call, needed: Mapping[str, Result | None]) -> Call | Returned:
        """Resolve the references of a call whose needed results exist, and check it."""
        filled = fill_references(
            call, {n: reference_value(r.value, r.text) for n, r in needed.items() if r}
        )
        if isinstance(filled, str):
            return failure(call, "invalid_arguments", filled)
        return self._checked(filled)

    def _checked(self, call: Call) -> Call | Returned:
        """Check a resolved call: its server may be unavailable, its arguments invalid."""
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
        """Return a call's server, and whether the call must run alone there."""
        tool = self.catalog.tool(call.name) if isinstance(call, ToolCall) else None
        return (tool.server, tool.sequential) if tool else (None, False)


def _unavailable(name: str, catalog: Catalog) -> str:
    """Name the missing server of a tool, or the servers that may have it."""
    known = catalog.known_missing(name)
    if known:
        return f"unavailable: {known}"
    tools = listed(tool for tool, _ in catalog.listed())
    return f"unavailable: {catalog.possibly_missing(name)}; tools available: {tools}"


def failure(call: Call, kind: CallErrorKind, text: str, child: ChildRun | None = None) -> Returned:
    """Return the failed result of a call; `child` is its task, if it was sent."""
    result = Result(call.id, text, error=kind, child=child)
    if isinstance(call, Delegation):
        return Returned(result, "agent", call.agent)
    return Returned(result, "tool", call.name)


def is_repeatable(call: Call, catalog: Catalog) -> bool:
    """Whether a call may be repeated when its outcome is unknown."""
    tool = catalog.tool(call.name) if isinstance(call, ToolCall) else None
    return tool is not None and (tool.read_only or tool.idempotent or tool.is_callers)
