"""kubectl in one cluster and namespace."""

from dataclasses import replace
from typing import Any

import orjson

from diptych.cli.cluster.errors import ClusterError
from diptych.cli.cluster.flags import ClusterFlags
from diptych.cli.cluster.programs import find_program, run_program

_TIMEOUT_FLAG = "--request-timeout=15s"


class Kubectl:
    """Runs kubectl; all methods raise `ConfigError` without it, and `ClusterError`."""

    def __init__(self, flags: ClusterFlags) -> None:
        self.flags = flags

    def in_namespace(self, namespace: str) -> "Kubectl":
        """Give kubectl for another namespace of the same cluster."""
        return Kubectl(replace(self.flags, namespace=namespace))

    def command(self, *arguments: str) -> list[str]:
        """Give the whole command line of `kubectl ARGUMENTS`."""
        namespace = self.flags.namespace
        scope = (f"--namespace={namespace}",) if namespace else ()
        return [find_program("kubectl"), *self.flags.as_arguments, *scope, *arguments]

    def text(self, *arguments: str) -> str:
        """Run `kubectl ARGUMENTS` and give its stdout."""
        return run_program(self.command(*arguments, _TIMEOUT_FLAG))

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - an object of the API
        """Run `kubectl ARGUMENTS --output=json` and give the object that it printed."""
        text = self.text(*arguments, "--output=json")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ClusterError("kubectl did not answer in JSON; is it very old?") from error

    def namespace(self) -> str:
        """Give the namespace in use: the flag's, else the context's, else default."""
        if self.flags.namespace:
            return self.flags.namespace
        view = self.command("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return run_program(view).strip() or "default"
