"""The kubectl flags that choose a cluster and a namespace.

Not here: running kubectl with them (`kubectl`).
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The flags that were given; kubectl decides about the others."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    @property
    def is_given(self) -> bool:
        return (self.kubeconfig, self.context, self.namespace) != (None, None, None)

    @property
    def as_arguments(self) -> tuple[str, ...]:
        """Give the flags as kubectl and diptych both take them, except the namespace."""
        return tuple(
            f"--{flag}={value}"
            for flag, value in (("kubeconfig", self.kubeconfig), ("context", self.context))
            if value is not None
        )
