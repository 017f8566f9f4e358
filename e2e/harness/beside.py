"""A script that runs in a pod beside the test, while a block lasts."""

import json
import subprocess
from typing import Any, Self

from harness.kubectl import Kubectl


class Beside:
    """Says `started` first, and at its end one JSON value, which `ended` gives."""

    def __init__(self, kubectl: Kubectl, pod: str, script: str, *arguments: str) -> None:
        self._running: subprocess.Popen[str] = kubectl.start(
            "exec", pod, "--", "python", "-c", script, *arguments
        )

    def __enter__(self) -> Self:
        assert self._running.stdout
        assert self._running.stdout.readline().strip() == "started"
        return self

    def __exit__(self, *_: object) -> None:
        self._running.kill()
        self._running.communicate()

    def ended(self, seconds: float = 150) -> Any:
        told, complaints = self._running.communicate(timeout=seconds)
        assert self._running.returncode == 0, complaints
        return json.loads(told)
