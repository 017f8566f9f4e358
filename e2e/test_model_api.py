"""A ModelAPI that teams of other namespaces use through its proxy: moved, rotated, refused."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness.kubectl import eventually
from harness.objects import agent, secret
from harness.release import Release
from harness.space import Space, space_of

APIS = "modelapis.diptych.dev"
PROXY_PODS = "app.kubernetes.io/name=diptych-model"
_marks = itertools.count()
TEAM = [f"agent-{number}" for number in range(3)]


def model_api(endpoint: str, *namespaces: str) -> dict[str, Any]:
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*namespaces]}
    selector = {"matchExpressions": [chosen]}
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "ModelAPI",
        "metadata": {"name": "house"},
        "spec": {
            "endpoint": endpoint,
            "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
            "models": ["stub"],
            "default": "stub",
            "allowedNamespaces": {"from": "Selector", "selector": selector},
            "proxy": {"replicas": 2},
        },
    }


def user(name: str, platform: Space) -> dict[str, Any]:
    ref = {"name": "house", "namespace": platform.name}
    return agent(name, None, model={"apiRef": ref})


def wait_until_ready(space: Space) -> dict[str, Any]:
    """Wait for the ModelAPI, and give its status."""

    def found() -> dict[str, Any] | None:
        status = space.kubectl.get(APIS, "house").get("status", {})
        ready = [c for c in status.get("conditions", ()) if c["type"] == "Ready"]
        return status if ready and ready[0]["status"] == "True" else None

    def story() -> str:
        return space.kubectl("get", APIS, "house", "-o", "yaml")

    status: dict[str, Any] = eventually(
        found, seconds=120, what="ModelAPI house is Ready", otherwise=story
    )
    return status


@contextmanager
def asked_all_the_time(space: Space) -> Iterator[list[str]]:
    """Ask the team's Agents one after the other meanwhile; the list has what they answer."""
    answers: list[str] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            answers.extend(space.probe.ask(name).content for name in TEAM)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


@pytest.mark.long
def test_teams_use_a_platforms_model_through_every_change(
    space: Space, other_space: Space, diptych: Release
):
    for name in ("first", "second"):
        space.serve_model(name)
    space.kubectl.apply(secret("models", api_key="old"), model_api(_url("first"), other_space.name))
    other_space.serve(*(user(name, space) for name in TEAM))
    space.serve(user("near", space))
    _wait_until_the_proxies_read(space, f"{space.name}/*", f"{other_space.name}/*")
    status = wait_until_ready(space)
    assert (status["agents"], status["models"], status["pods"]) == (len(TEAM) + 1, ["stub"], "2/2")
    assert space.probe.ask("near").content == "The key is old."
    with space_of(diptych, "stranger") as stranger:
        stranger.kubectl.apply(user("stranger", space))
        stranger.kubectl.wait_for_condition(
            "stranger", "ResolvedRefs", status="False", reason="ModelAPINotAllowed"
        )
        assert not stranger.pods()
    assert not other_space.kubectl.permissions_of("default")("get", "secrets")
    assert not other_space.kubectl.permissions_of(TEAM[0])("get", "secrets")
    pods = other_space.pods(), space.kubectl.list("pods", PROXY_PODS)
    with asked_all_the_time(other_space) as answers:
        eventually(lambda: len(answers) >= len(TEAM), seconds=90, what="all were asked")
        space.kubectl.apply(secret("models", api_key="new"))
        _have_the_kubelet_look(space)
        eventually(
            lambda: set(answers[-len(TEAM) :]) == {"The key is new."},
            seconds=150,
            what="the new key is used by all",
        )
        space.kubectl.apply(model_api(_url("second"), other_space.name))
        _wait_until_the_proxies_read(space, _url("second"))
        space.kubectl.delete("pod", "first")
        enough = len(answers) + 3 * len(TEAM)
        eventually(lambda: len(answers) > enough, seconds=90, what="all were asked thrice more")
    assert set(answers) == {"The key is old.", "The key is new."}
    uids = [pod["metadata"]["uid"] for pod in pods[1]]
    assert other_space.pods() == pods[0]
    found = space.kubectl.list("pods", PROXY_PODS)
    assert sorted(pod["metadata"]["uid"] for pod in found) == sorted(uids)
    assert "api-key" not in other_space.kubectl("get", "configmaps,deployments", "-o", "yaml")


def _url(name: str) -> str:
    return f"http://{name}:8000/v1"


def _wait_until_the_proxies_read(space: Space, *texts: str) -> None:
    names = [pod["metadata"]["name"] for pod in space.kubectl.list("pods", PROXY_PODS)]
    _have_the_kubelet_look(space)

    def read() -> bool:
        command = ("--", "cat", "/etc/diptych/proxy.json")
        found = [space.kubectl("exec", name, *command) for name in names]
        return all(text in file for text in texts for file in found)

    eventually(read, seconds=120, what=f"both proxies have read {texts}")


def _have_the_kubelet_look(space: Space) -> None:
    """Have the proxies' mounts refreshed at once: the kubelet looks after a pod that changes."""
    mark = f"e2e/looked-at={next(_marks)}"
    space.kubectl("annotate", "pods", "-l", PROXY_PODS, "--overwrite", mark)
