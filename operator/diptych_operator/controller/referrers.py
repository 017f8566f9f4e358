"""Which Agents refer to which objects, as an index of both ways."""

from collections import defaultdict

from diptych_operator.desired.references import Reference
from diptych_operator.resources.kinds import NamespacedName


class ReferrerIndex:
    """Which Agents refer to an object."""

    def __init__(self) -> None:
        self._referrers: dict[Reference, set[NamespacedName]] = defaultdict(set)
        self._references: dict[NamespacedName, frozenset[Reference]] = {}

    def of(self, reference: Reference) -> set[NamespacedName]:
        return self._referrers.get(reference, set())

    def references_of(self, name: NamespacedName) -> frozenset[Reference]:
        """Give what an Agent refers to, as far as it is known."""
        return self._references.get(name, frozenset())

    def set_references(
        self, name: NamespacedName, wanted: frozenset[Reference]
    ) -> frozenset[Reference]:
        """Replace the references of an Agent; give the former ones."""
        before = self._references.pop(name, frozenset())
        for reference in before - wanted:
            self._referrers[reference].discard(name)
            if not self._referrers[reference]:
                del self._referrers[reference]
        for reference in wanted - before:
            self._referrers[reference].add(name)
        if wanted:
            self._references[name] = wanted
        return before
