"""Which cluster and namespace a person means: the options that are kubectl's own.

Not here: asking that cluster (`programs`).
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """What was said of the cluster; what was not said is left to kubectl."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    @property
    def is_given(self) -> bool:
        return (self.kubeconfig, self.context, self.namespace) != (None, None, None)

    @property
    def words(self) -> tuple[str, ...]:
        """Give the options again, as kubectl and diptych both take them; without namespace."""
        return tuple(
            f"--{option}={value}"
            for option, value in (("kubeconfig", self.kubeconfig), ("context", self.context))
            if value is not None
        )
