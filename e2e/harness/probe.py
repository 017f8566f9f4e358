"""Asks agents from inside the cluster, through their Services, as another pod would.

Each request is a Python of its own in a pod that a test has made (`objects.probe`). It proves who
asks by a token of the default ServiceAccount of that pod's namespace.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from harness.beside import Beside
from harness.kubectl import Kubectl

_REQUEST = """
import json, sys, urllib.error, urllib.request
asked = json.loads(sys.argv[1])
request = urllib.request.Request(asked["url"], method=asked["method"], headers=asked["headers"],
    data=None if asked["body"] is None else json.dumps(asked["body"]).encode())
try:
    reply = urllib.request.urlopen(request, timeout=asked["timeout"])
except urllib.error.HTTPError as error:
    reply = error
except OSError as error:
    print(json.dumps({"unreachable": str(error)}))
    sys.exit()
with reply:
    headers = {name.lower(): value for name, value in reply.headers.items()}
    print(json.dumps({"status": reply.status, "headers": headers, "text": reply.read().decode()}))
"""

_LOOP = """
import json, sys, time, urllib.error, urllib.request
url, seconds, token = sys.argv[1], float(sys.argv[2]), sys.argv[3]
body = json.dumps({"messages": [{"role": "user", "content": "Are you there?"}]}).encode()
until, answers, failures = time.monotonic() + seconds, [], []
print("started", flush=True)
while time.monotonic() < until:
    request = urllib.request.Request(url + "/v1/chat/completions", data=body,
        headers={"content-type": "application/json", "authorization": "Bearer " + token})
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            answers.append(json.load(reply)["choices"][0]["message"]["content"])
    except Exception as error:
        detail = error.read().decode()[:300] if isinstance(error, urllib.error.HTTPError) else ""
        failures.append(f"{error!r} {detail} after {time.monotonic() - began:.2f} s")
    time.sleep(0.05)
print(json.dumps({"answers": answers, "failures": failures}))
"""


@dataclass(frozen=True)
class Answer:
    """What came back; `unreachable` says why nothing did."""

    status: int = 0
    headers: dict[str, str] | None = None
    text: str = ""
    unreachable: str = ""

    @cached_property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def content(self) -> str:
        """The answer of a chat."""
        assert self.status == 200, f"{self.status} {self.unreachable} {self.text}"
        return str(self.json["choices"][0]["message"]["content"])


class Probe:
    """A pod that asks, in the namespace of `kubectl`."""

    def __init__(self, kubectl: Kubectl, name: str = "probe") -> None:
        self._kubectl = kubectl
        self._name = name
        self._tokens: dict[str, str] = {}

    def token(self, agent: str) -> str:
        """Give a token for an agent, by its name or `name.namespace`."""
        if agent not in self._tokens:
            name, _, namespace = agent.partition(".")
            audience = f"diptych.dev/{namespace or self._kubectl.namespace}/{name}"
            self._tokens[agent] = self._kubectl.token(audience)
        return self._tokens[agent]

    def request(
        self,
        url: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
        agent: str | None = None,
    ) -> Answer:
        """GET, or POST a body, and give what came back, whatever the status.

        `agent` is whom the token is for, if the URL's host is not its name. An empty header
        `authorization` sends none.
        """
        token = self.token(agent or str(urlsplit(url).hostname))
        proof = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        asked = {
            "url": url,
            "method": "GET" if body is None else "POST",
            "headers": {k: v for k, v in {**proof, **(headers or {})}.items() if v},
            "body": body,
            "timeout": timeout,
        }
        told = self._kubectl(
            "exec",
            self._name,
            "--",
            "python",
            "-c",
            _REQUEST,
            json.dumps(asked),
            timeout=timeout + 30,
        )
        return Answer(**json.loads(told))

    def ask(
        self,
        agent: str,
        question: str = "Hello?",
        *,
        session: str | None = None,
        timeout: float = 60,
    ) -> Answer:
        """Ask an agent by its Service's name, which may be `name.namespace`."""
        headers = {"x-session-id": session} if session else {}
        body = {"messages": [{"role": "user", "content": question}]}
        url = f"http://{agent}:8000/v1/chat/completions"
        return self.request(url, body, headers=headers, timeout=timeout)

    def events(self, agent: str, session: str | None = None) -> list[dict[str, Any]]:
        """Give what an agent has on record, of one session or of all."""
        query = f"?session_id={session}" if session else ""
        events: list[dict[str, Any]] = self.request(
            f"http://{agent}:8000/memory/events{query}"
        ).json["events"]
        return events

    def event_types(self, agent: str, session: str | None = None) -> list[str]:
        return [event["event_type"] for event in self.events(agent, session)]

    def reaches(self, host: str, port: int = 8000) -> bool:
        """Whether a connection can be made, within 3 s."""
        attempt = (
            "import socket, sys\n"
            "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()\n"
            "except OSError as error: print(error)\n"
            "else: print('reached')"
        )
        told = self._kubectl("exec", self._name, "--", "python", "-c", attempt, host, str(port))
        return told.strip() == "reached"

    def keep_asking(self, agent: str, seconds: float) -> "Asking":
        """Ask again and again, beside the test, for a time."""
        url = f"http://{agent}:8000"
        return Asking(self._kubectl, self._name, _LOOP, url, str(seconds), self.token(agent))


class Asking(Beside):
    """Questions on their way, while a block lasts."""

    def ended(self, seconds: float = 150) -> tuple[list[str], list[str]]:
        """Wait for their end; give the answers, and what went wrong."""
        result = super().ended(seconds)
        return result["answers"], result["failures"]
