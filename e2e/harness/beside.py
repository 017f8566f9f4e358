"""A script that runs in a pod beside the test, while a block lasts."""

import json
import subprocess
import threading
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
        assert self._running.stdout
        assert self._running.stderr
        watchdog = threading.Timer(seconds, self._running.kill)
        watchdog.start()
        try:
            # `communicate` would miss the value if it came together with `started`.
            told, complaints = self._running.stdout.read(), self._running.stderr.read()
            assert self._running.wait() == 0, complaints
        finally:
            watchdog.cancel()
        return json.loads(told)
