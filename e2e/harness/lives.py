"""An operator that dies at each of its writes: K2 of faults, on a real cluster.

It runs beside the cluster, with the rights and the settings of the release's own, which must be
scaled to none. Its way to the API leads through a gate. The gate lets writes pass until one has
changed something, and kills the operator before it learns of that; then the next life begins. So
every state between two changes is one that some life has found at its start.

Events, claims of namespaces and tokens are no state: those pass without counting.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness.release import Release

_WRITES = {"POST", "PUT", "PATCH", "DELETE"}
_LIFE_SECONDS = 60.0
_NO_STATE = ("/events", "/leases", "/token")
_MAX_LIVES = 60  # some 20 are needed; more are a loop that does not get ahead
_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}


def lives(release: Release, namespace: str, folder: Path, is_done: Callable[[], bool]) -> list[str]:
    """Let operators of a namespace live and die until all is done; name the writes, in order."""
    with _proxy(release) as port, _gate(port) as gate:
        config = folder / "kubeconfig"
        config.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{gate.server_port}")))
        variables = {
            **_settings(release, folder),
            "KUBECONFIG": str(config),
            "NAMESPACES": namespace,
            # It goes on with the claims of the release, as its own pods do.
            "POD_NAME": f"{release.kubectl.namespace}/{release.name}",
        }
        while _life(gate, variables, folder / "operator.log", is_done):
            assert len(gate.writes) < _MAX_LIVES, gate.writes
        return gate.writes


class _Gate(ThreadingHTTPServer):
    """Passes requests on; the first change of a life is its end."""

    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.writes: list[str] = []
        self.operator: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def handle_error(self, *_: object) -> None:
        """Say nothing: the operator was killed in the middle of a request."""

    def write(self, request: str, perform: Callable[[], HTTPResponse]) -> HTTPResponse | None:
        """Perform a write. If it has changed something, the operator dies, and never learns.

        Give the answer otherwise. Writes of an operator that is dead are not performed.
        """
        with self._lock:
            if self.operator is None:
                return None
            response = perform()
            if response.status >= HTTPStatus.BAD_REQUEST:
                return response
            self.operator.kill()
            self.operator = None
            self.writes.append(request)
            return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Gate

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with contextlib.closing(HTTPConnection("127.0.0.1", self.server.upstream)) as upstream:

            def ask() -> HTTPResponse:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_HEADERS}
                upstream.request(self.command, self.path, body or None, headers)
                return upstream.getresponse()

            request = f"{self.command} {self.path.partition('?')[0]}"
            response = self.server.write(request, ask) if self._changes_something() else ask()
            if response is None:
                self.close_connection = True
                return
            with response:
                self._answer(response)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

    def _changes_something(self) -> bool:
        is_write = self.command in _WRITES and "dryRun" not in self.path
        return is_write and not any(kind in self.path for kind in _NO_STATE)

    def _answer(self, response: HTTPResponse) -> None:
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while piece := response.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Keep the test's output free of requests."""


def _life(gate: _Gate, variables: dict[str, str], log: Path, is_done: Callable[[], bool]) -> bool:
    """Live one life; say whether a write was its end, and not that all was done."""
    with log.open("ab") as told, _operator(variables, told.fileno()) as operator:
        gate.operator = operator
        until = time.monotonic() + _LIFE_SECONDS
        while operator.poll() is None:
            if time.monotonic() > until:
                raise AssertionError(f"a life without a write and without an end\n{_last(log)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                operator.wait(0.5)
            if operator.returncode is None and is_done():
                return False
    assert operator.returncode == -signal.SIGKILL, _last(log)
    return True


@contextlib.contextmanager
def _operator(variables: dict[str, str], log: int) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-m", "diptych_operator", "--no-leader-election")
    environment = {**os.environ, **variables, "HEALTH_PORT": "0"}
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _settings(release: Release, folder: Path) -> dict[str, str]:
    """Give what the release's own operator has in its environment."""
    deployment = release.kubectl.get("deployment", release.name)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    files = {
        "POD_TEMPLATE": "pod-template.yaml",
        "AGENTS": "agents.yaml",
        "ACCESS": "access.yaml",
    }
    for name in files.values():
        (folder / name).write_text(release.kubectl.get("configmap", release.name)["data"][name])
    given = {item["name"]: item["value"] for item in container["env"] if item.get("value")}
    namespace = release.kubectl.namespace
    places = {variable: str(folder / name) for variable, name in files.items()}
    return {**given, **places, "POD_NAMESPACE": namespace}


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gate",
        "clusters": [{"name": "gate", "cluster": {"server": server}}],
        "users": [{"name": "gate", "user": {}}],
        "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
    }


@contextlib.contextmanager
def _proxy(release: Release) -> Iterator[int]:
    """Run a way to the API with the rights of the release's own operator; give its port."""
    user = f"system:serviceaccount:{release.kubectl.namespace}:{release.name}"
    process = release.kubectl.start("proxy", "--port=0", "--as", user)
    try:
        assert process.stdout
        yield int(process.stdout.readline().rsplit(":", 1)[1])
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _gate(upstream: int) -> Iterator[_Gate]:
    gate = _Gate(upstream)
    thread = threading.Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield gate
    finally:
        gate.shutdown()
        thread.join()
        gate.server_close()


def _last(log: Path) -> str:
    return log.read_text()[-4000:]
