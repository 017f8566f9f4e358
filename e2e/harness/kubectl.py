"""A cluster as kubectl sees it: apply, read, wait."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from harness.commands import CommandFailed, output

Object: TypeAlias = Mapping[str, Any]

AGENT_PODS = "app.kubernetes.io/name=diptych-agent"
_POLL_SECONDS = (0.1, 1.0)  # between two questions: at first, and at most


class Kubectl:
    """kubectl, helm and all else that reads KUBECONFIG, in the cluster of `env`."""

    def __init__(self, env: Mapping[str, str], namespace: str = "default", user: str = "") -> None:
        self.env = env
        self.namespace = namespace
        self.user = user

    def within(self, namespace: str) -> "Kubectl":
        return Kubectl(self.env, namespace, self.user)

    def impersonating(self, user: str) -> "Kubectl":
        """Ask as somebody else, who has no rights but those that a test gives."""
        return Kubectl(self.env, self.namespace, user)

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run `kubectl … ARGUMENTS` in this namespace. Raises `CommandFailed`."""
        return output(*self.command(*arguments), env=self.env, stdin=stdin, timeout=timeout)

    def command(self, *arguments: str) -> list[str]:
        user = ["--as", self.user] if self.user else []
        return ["kubectl", "--namespace", self.namespace, *user, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Run kubectl beside the test; who starts it ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def apply(self, *objects: Object) -> str:
        return self("apply", "-f", "-", stdin=_list(objects))

    def refusal(self, *objects: Object) -> str:
        """Apply what must not be taken, and give what the API says to it."""
        try:
            told = self.apply(*objects)
        except CommandFailed as error:
            return error.stderr
        raise AssertionError(f"the API took what it should refuse: {told}")

    def delete(self, kind: str, *names: str, wait: bool = True) -> None:
        self("delete", kind, *names, "--ignore-not-found", f"--wait={str(wait).lower()}")

    def kill(self, *pods: str) -> None:
        """Take pods away without notice: by names, or by `-l SELECTOR`."""
        self("delete", "pods", *pods, "--grace-period=0", "--force")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Give an object, or None if there is none."""
        text = self("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(
        self, kind: str, selector: str = "", *, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        scope = ["--all-namespaces"] if everywhere else []
        text = self("get", kind, "-o", "json", "-l", selector, *scope)
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Give an Agent's condition; an empty one if it has none of this type."""
        status = self.get("agents.diptych.dev", name).get("status", {})
        found = [c for c in status.get("conditions", []) if c["type"] == kind]
        return found[0] if found else {}

    def wait_for_condition(
        self, name: str, kind: str, status: str, *, reason: str | None = None, seconds: float = 120
    ) -> dict[str, Any]:
        """Wait until the Agent's newest generation has a condition, and give it."""
        self._wait(f"condition={kind}={status}", name, seconds=seconds)
        return eventually(
            lambda: (
                (found := self.condition(name, kind))
                and found["status"] == status
                and reason in (None, found["reason"])
                and found
            ),
            seconds=seconds,
            what=f"Agent {name}: {kind}={status} {reason or ''}",
            otherwise=lambda: self.story(name),
        )

    def wait_until_ready(self, *names: str, seconds: float = 120) -> None:
        """Wait until the newest generation of each Agent is ready."""
        for name in names:
            self._wait("condition=Ready=True", name, seconds=seconds)

    def _wait(self, what: str, agent: str, *, seconds: float) -> None:
        """Have kubectl wait, which heeds `observedGeneration`, and watches instead of asking."""
        waited = (f"--for={what}", f"agents.diptych.dev/{agent}", f"--timeout={seconds}s")
        try:
            self("wait", *waited, timeout=seconds + 30)
        except CommandFailed as error:
            raise AssertionError(f"{error}\n{self.story(agent)}") from error

    def token(self, audience: str, account: str = "default", duration: str = "1h") -> str:
        """Have the API make a token of a ServiceAccount of this namespace."""
        flags = (f"--audience={audience}", f"--duration={duration}")
        return self("create", "token", account, *flags).strip()

    def permissions_of(self, account: str) -> Callable[[str, str], bool]:
        """Give what says whether a service account may, say, "get", "pods/log" anywhere."""
        user = f"system:serviceaccount:{self.namespace}:{account}"

        def may(verb: str, kind: str) -> bool:
            resource, _, subresource = kind.partition("/")
            flags = ("--subresource", subresource, "--all-namespaces", "--as", user)
            asked = ("auth", "can-i", verb, resource, *flags)
            try:
                return self(*asked).strip() == "yes"
            except CommandFailed as error:
                if error.stdout.strip() == "no":
                    return False
                raise

        return may

    def wait_for_pod(self, name: str, seconds: float = 90) -> None:
        self("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={seconds}s")

    def story(self, name: str) -> str:
        """Tell what a person would look at first when an Agent does not become ready."""
        commands: Sequence[Sequence[str]] = (
            ("get", "agents.diptych.dev", name, "-o", "yaml"),
            ("get", "pods,services,events", "-o", "wide"),
            ("logs", "-l", f"{AGENT_PODS},app.kubernetes.io/instance={name}", "--tail=30"),
        )
        told = []
        for command in commands:
            try:
                told.append(self(*command))
            except CommandFailed as error:
                told.append(error.stderr)
        return "\n".join(told)[-12000:]


def eventually(
    ask: Callable[[], Any],
    *,
    seconds: float = 60,
    what: str = "",
    otherwise: Callable[[], str] = str,
) -> Any:
    """Ask until the answer is true, and give it; fail after `seconds`, telling the last answer."""
    until = time.monotonic() + seconds
    pause, longest = _POLL_SECONDS
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(
                f"not within {seconds:g} s: {what}; last: {answer!r}\n{otherwise()}"
            )
        time.sleep(pause)  # each question is a program of its own: many would slow down all
        pause = min(pause * 1.5, longest)


def _list(objects: Sequence[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
