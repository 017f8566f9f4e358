"""Runs the person's own kubectl, and turns its errors into one sentence each.

There is no Kubernetes client library: kubectl handles kubeconfig, contexts and credential plugins
as its user expects (docs/decisions/0030-kubectl-is-the-engine.md).
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diptych.core.errors import ConfigError, DiptychError

_INSTALL_PAGE = "https://kubernetes.io/docs/tasks/tools/"
_TIMEOUT_FLAG = "--request-timeout=15s"
_TIMEOUT_SECONDS = 120.0  # kubectl retries within it
_NOT_INSTALLED = (
    "this cluster has no Agent CRD; install it and the operator with helm: "
    "charts/diptych/README.md says how"
)
_NAME = re.compile(
    r"(?:(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/)?(?P<name>[a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)
_NOT_A_MESSAGE = re.compile(r"[EWIF]\d{4} |\s|warning:", re.IGNORECASE)  # log entries, their rest
_PREFIX = re.compile(r"error: |Error in configuration: |Error from server \(\w+\): ")
_NO_KIND = re.compile(
    r"doesn't have a resource type \"agents\"|no matches for kind \"Agent\""
    r"|could not find the requested resource"
)
_BAD_CONFIG = re.compile(r"context .*(not found|not exist)|locate context|config file|no such file")
_NO_CLUSTER = "localhost:8080"  # where kubectl connects without a kubeconfig


class ClusterError(DiptychError):
    """The cluster cannot be reached, or refused a request; the message is for a person."""


class NotFound(ClusterError):
    """The object does not exist."""


class Forbidden(ClusterError):
    """The person is not permitted to do this."""


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The flags that were given; kubectl decides about the others.

    `service_account`, a name or `namespace/name`, is the one whose token an Agent is asked with.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    service_account: str | None = None

    @property
    def is_given(self) -> bool:
        return self != ClusterFlags()

    @property
    def as_arguments(self) -> tuple[str, ...]:
        """The flags that kubectl and diptych both take, except the namespace."""
        flags = {"kubeconfig": self.kubeconfig, "context": self.context}
        return tuple(f"--{name}={value}" for name, value in flags.items() if value is not None)


@dataclass(frozen=True, slots=True)
class AgentName:
    """The name of an Agent: `helper`, or `legal/helper` with its namespace."""

    name: str
    namespace: str | None

    @classmethod
    def parse(cls, text: str) -> "AgentName | None":
        """Read a name; None if the text cannot be one."""
        match = _NAME.fullmatch(text)
        return cls(match["name"], match["namespace"]) if match else None


class Kubectl:
    """Runs kubectl; all methods raise `ConfigError` without it, and `ClusterError`."""

    def __init__(self, flags: ClusterFlags) -> None:
        self.flags = flags

    def in_namespace(self, namespace: str) -> "Kubectl":
        """Return kubectl for another namespace of the same cluster."""
        return Kubectl(replace(self.flags, namespace=namespace))

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line of `kubectl ARGUMENTS`."""
        program = shutil.which("kubectl")
        if program is None:
            raise ConfigError(
                f"kubectl is not on PATH, and this command works by it; install it: {_INSTALL_PAGE}"
            )
        namespace = self.flags.namespace
        scope = (f"--namespace={namespace}",) if namespace else ()
        return [program, *self.flags.as_arguments, *scope, *arguments]

    def text(self, *arguments: str) -> str:
        """Run `kubectl ARGUMENTS` and return its stdout."""
        return _run(self.command(*arguments, _TIMEOUT_FLAG))

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - an object of the API
        """Run `kubectl ARGUMENTS --output=json` and return the object that it printed."""
        import orjson

        text = self.text(*arguments, "--output=json")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ClusterError("kubectl did not answer in JSON; is it very old?") from error

    def namespace(self) -> str:
        """Return the namespace in use: the flag's, else the context's, else default."""
        if self.flags.namespace:
            return self.flags.namespace
        view = self.command("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return _run(view).strip() or "default"


def _run(command: Sequence[str]) -> str:
    try:
        result = subprocess.run(  # noqa: S603 - the person's own kubectl
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"the cluster cannot be reached: kubectl got no answer in {_TIMEOUT_SECONDS:.0f} s"
        ) from error
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from error
    if result.returncode:
        raise kubectl_error(result.stderr.decode(errors="replace"))
    return result.stdout.decode(errors="replace")


def kubectl_error(stderr: str) -> DiptychError:
    """Return the error that kubectl's stderr means. Its own words stay."""
    lines = (line for line in stderr.splitlines() if line and not _NOT_A_MESSAGE.match(line))
    line = next(lines, "it failed, and did not say why")
    message = _PREFIX.sub("", line, count=1)
    if _NO_CLUSTER in line:
        return ConfigError(
            "no cluster is configured: set KUBECONFIG, or give --kubeconfig and --context"
        )
    if _NO_KIND.search(line):
        return ClusterError(_NOT_INSTALLED)
    if "(Forbidden)" in line or "is forbidden" in line:
        return Forbidden(f"the cluster does not allow it: {message}")
    if _BAD_CONFIG.search(line):
        return ConfigError(f"kubectl: {message}")
    if "(NotFound)" in line or line.endswith('" not found'):
        return NotFound(f"the cluster says: {message}")
    return ClusterError(f"kubectl: {message}")
