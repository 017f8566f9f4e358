"""The flags that choose a cluster and a namespace, as kubectl's, and as whom an Agent is asked."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The flags that were given; kubectl decides about the others.

    `service_account` is that of whom an Agent is asked: a name or `namespace/name`.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    service_account: str | None = None

    @property
    def is_given(self) -> bool:
        flags = (self.kubeconfig, self.context, self.namespace, self.service_account)
        return any(flag is not None for flag in flags)

    @property
    def as_arguments(self) -> tuple[str, ...]:
        """Give the flags as kubectl and diptych both take them, except the namespace."""
        return tuple(
            f"--{flag}={value}"
            for flag, value in (("kubeconfig", self.kubeconfig), ("context", self.context))
            if value is not None
        )
