"""kubectl and helm, run as the person would run them.

Not here: what their errors mean (`refusals`), port-forwards, which live on (`forward`).
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from diptych.cli.cluster.errors import ClusterError, refusal
from diptych.cli.cluster.flags import ClusterPlace
from diptych.errors import ConfigError

_WHERE_FROM = {
    "kubectl": "https://kubernetes.io/docs/tasks/tools/",
    "helm": "https://helm.sh/docs/intro/install/",
}
_REQUEST = "--request-timeout=15s"
_SECONDS = 120.0  # after which a program that only reads is given up; kubectl asks several times


class Kubectl:
    """kubectl in one cluster; `read` and `text` raise `ClusterError`, `ConfigError`."""

    def __init__(self, place: ClusterPlace) -> None:
        self.place = place

    def within(self, namespace: str) -> "Kubectl":
        """Give the same, in another namespace."""
        return Kubectl(replace(self.place, namespace=namespace))

    def command(self, *words: str) -> list[str]:
        """Give the whole command line. Raises `ConfigError` where there is no kubectl."""
        namespace = self.place.namespace
        of = (f"--namespace={namespace}",) if namespace else ()
        return [program("kubectl"), *self.place.words, *of, *words]

    def text(self, *words: str) -> str:
        """Run `kubectl WORDS`, and give what it printed."""
        return output(self.command(*words, _REQUEST))

    def read(self, *words: str) -> Any:  # noqa: ANN401 - what the API has
        """Run `kubectl WORDS -o json`, and give what it read."""
        text = self.text(*words, "--output=json")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ClusterError("kubectl did not answer in JSON; is it very old?") from error

    def namespace(self) -> str:
        """Name the namespace that is meant: the one given, else the context's, else default."""
        if self.place.namespace:
            return self.place.namespace
        view = self.command("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return output(view).strip() or "default"


def program(name: str) -> str:
    """Give the path of a program. Raises `ConfigError`, which says where to get it."""
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"{name} is not on PATH, and this command works by it; install it: {_WHERE_FROM[name]}"
        )
    return found


def output(command: Sequence[str], seconds: float = _SECONDS) -> str:
    """Run a program to its end and give its stdout. Raises what its last words mean."""
    name = _name(command)
    try:
        ended = subprocess.run(  # noqa: S603 - the person's own kubectl or helm
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"the cluster cannot be reached: {name} got no answer in {seconds:.0f} s"
        ) from error
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from error
    if ended.returncode:
        raise refusal(name, ended.stderr.decode(errors="replace"))
    return ended.stdout.decode(errors="replace")


def _name(command: Sequence[str]) -> str:
    return command[0].replace("\\", "/").rpartition("/")[2]
