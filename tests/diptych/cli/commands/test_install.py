"""`install` as a person types it, against doubles of helm and kubectl."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Type = Callable[..., Any]
Object = dict[str, Any]
ROOT = Path(__file__).parents[4]
VERSION = yaml.safe_load((ROOT / "charts" / "diptych" / "Chart.yaml").read_text())["version"]
MANIFEST = "---\nkind: Deployment\n"
CRD = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}


def operator(*, available: int = 1, generation: int = 1) -> Object:
    return {
        "kind": "Deployment",
        "metadata": {"name": "diptych", "namespace": "diptych-system", "generation": generation},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": "diptych:1"}]}}},
        "status": {
            "observedGeneration": 1,
            "replicas": 1,
            "updatedReplicas": 1,
            "availableReplicas": available,
        },
    }


def pod(created: str, reason: str) -> Object:
    waiting = {"reason": reason, "message": "cannot\nbe had"}
    return {
        "kind": "Pod",
        "metadata": {"creationTimestamp": created},
        "status": {"containerStatuses": [{"image": "diptych:1", "state": {"waiting": waiting}}]},
    }


@pytest.fixture
def cluster(programs: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a cluster without Diptych, in which installing works at once."""
    monkeypatch.setattr("diptych.cli.commands.install._POLL_SECONDS", 0.01)
    programs.answer("helm get metadata", err="Error: release: not found")
    programs.answer("helm upgrade", out={"version": 1})
    programs.answer("helm upgrade", "--dry-run=server", out={"manifest": MANIFEST})
    programs.answer("get deployments.apps,pods", out={"items": [operator()]})
    programs.answer("get customresourcedefinitions", out=CRD)
    return programs


def deploy(cluster: Any, *, version: str = VERSION, status: str = "deployed", text: str = MANIFEST):
    about = {"version": version, "status": status, "revision": 3}
    cluster.answer("helm get metadata", out=about)
    cluster.answer("helm get manifest", out=text)


def upgrades(cluster: Any) -> list[list[str]]:
    """Give the calls that changed something."""
    return [call for call in cluster.calls("helm upgrade") if "--dry-run=server" not in call]


def test_install_brings_the_chart_and_says_what_comes_next(typed: Type, cluster: Any) -> None:
    outcome = typed("install", "--context", "c")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [
        f"✓ diptych {VERSION} installed (revision 1 of the release)",
        "✓ operator diptych-system/diptych: 1 of 1 ready",
        "  image diptych:1",
        "",
        "Make an agent, and talk to it:",
        "  kubectl apply --context=c -f agent.yaml",
        "  diptych chat --context=c NAME",
        "  diptych status --context=c",
    ]
    (call,) = upgrades(cluster)
    assert call == [
        "helm",
        "upgrade",
        "diptych",
        str(ROOT / "charts" / "diptych"),
        "--install",
        "--output=json",
        "--reset-then-reuse-values",
        "--create-namespace",
        "--namespace=diptych-system",
        "--kube-context=c",
    ]


def test_what_is_there_already_is_left_alone(typed: Type, cluster: Any) -> None:
    deploy(cluster)
    outcome = typed("install")
    assert outcome.code == 0
    assert outcome.err.splitlines()[0] == (
        f"✓ diptych {VERSION} is there already, with these settings; nothing was changed"
    )
    assert not upgrades(cluster)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param({"text": "kind: Other"}, f"✓ diptych {VERSION} changed", id="other settings"),
        pytest.param({"status": "failed"}, f"✓ diptych {VERSION} changed", id="one that failed"),
        pytest.param(
            {"version": "0.0.9", "text": "kind: Other"},
            f"✓ diptych {VERSION} upgraded from 0.0.9",
            id="an older one",
        ),
    ],
)
def test_what_differs_is_upgraded(typed: Type, cluster: Any, before: Object, said: str) -> None:
    deploy(cluster, **before)
    outcome = typed("install")
    assert outcome.code == 0
    assert outcome.err.startswith(said)
    assert len(upgrades(cluster)) == 1


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        pytest.param("get deployments.apps,pods", {"out": {"items": []}}, id="the operator"),
        pytest.param(
            "get customresourcedefinitions",
            {"err": "Error from server (NotFound): it is not there"},
            id="the CRD",
        ),
    ],
)
def test_what_somebody_has_deleted_is_created_again(
    typed: Type, cluster: Any, words: str, answer: Object
) -> None:
    deploy(cluster)
    cluster.answer(words, **answer)
    typed("install", "--timeout", "1")
    assert len(upgrades(cluster)) == 1


def test_a_downgrade_is_refused(typed: Type, cluster: Any) -> None:
    deploy(cluster, version="99.0.0")
    outcome = typed("install")
    assert outcome.code == 2
    assert f"the cluster has diptych 99.0.0, and this is {VERSION}" in outcome.err
    assert not cluster.calls("helm upgrade")


@pytest.mark.parametrize(
    ("before", "verb"),
    [
        pytest.param(None, "would be installed", id="nothing there"),
        pytest.param({}, "is there already, with these settings", id="all there"),
        pytest.param({"text": "x"}, "would be changed", id="something else there"),
    ],
)
def test_a_dry_run_prints_what_would_be_and_changes_nothing(
    typed: Type, cluster: Any, before: Object | None, verb: str
) -> None:
    if before is not None:
        deploy(cluster, **before)
    outcome = typed("install", "--dry-run")
    assert (outcome.code, outcome.out) == (0, MANIFEST + "\n")
    assert outcome.err == f"dry run, nothing was changed: diptych {VERSION} {verb}\n"
    assert not upgrades(cluster)


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        pytest.param("diptych", ("diptych", "", ""), id="a name"),
        pytest.param("diptych:1.2", ("diptych", "1.2", ""), id="a tag"),
        pytest.param("localhost:5000/a/diptych", ("localhost:5000/a/diptych", "", ""), id="a port"),
        pytest.param("r:5000/diptych:1", ("r:5000/diptych", "1", ""), id="port and tag"),
        pytest.param("r/d@sha256:ab", ("r/d", "", "sha256:ab"), id="a digest"),
        pytest.param("r/d:1@sha256:ab", ("r/d", "1", "sha256:ab"), id="tag and digest"),
    ],
)
def test_an_image_is_given_in_one_piece(
    typed: Type, cluster: Any, image: str, parts: tuple[str, str, str]
) -> None:
    typed("install", "--image", image)
    (call,) = upgrades(cluster)
    settings = [word.partition("=")[2] for word in call if word.startswith("--set-string=")]
    names = ("image.repository", "image.tag", "image.digest")
    assert settings == [f"{name}={part}" for name, part in zip(names, parts, strict=True)]


def test_settings_are_passed_to_helm_in_their_order(typed: Type, cluster: Any) -> None:
    Path("values.yaml").write_text("ha: {enabled: true}")
    typed("install", "-f", "values.yaml", "--set", "a=1,b=2", "--set", "c=", "--reset-values")
    (call,) = upgrades(cluster)
    assert call[6:10] == ["--values=values.yaml", "--set=a=1,b=2", "--set=c=", "--reset-values"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--set", "a"], "--set a: must be name=value", id="a setting without value"),
        pytest.param(["--set", "=a"], "--set =a: must be name=value", id="one without name"),
        pytest.param(["--values", "no"], "--values no: there is no such file", id="no values"),
        pytest.param(["--image", "a b"], "--image a b: must be an image", id="a blank"),
        pytest.param(["--image", "a@b"], "--image a@b: must be an image", id="no digest"),
        pytest.param(["--image", ""], "--image : must be an image", id="nothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    typed: Type, cluster: Any, words: list[str], said: str
) -> None:
    outcome = typed("install", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert not cluster.calls("helm upgrade")


def test_without_helm_the_error_says_what_to_install(
    typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    outcome = typed("install")
    assert outcome.code == 2
    assert outcome.err.startswith("error: helm is not on PATH")
    assert "https://helm.sh/docs/intro/install/" in outcome.err


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        pytest.param(
            'Error: Kubernetes cluster unreachable: context "x" does not exist', 2, id="context"
        ),
        pytest.param("Error: UPGRADE FAILED: another operation is in progress", 1, id="busy"),
    ],
)
def test_what_helm_says_is_one_sentence(typed: Type, cluster: Any, stderr: str, code: int) -> None:
    cluster.answer("helm upgrade", err=stderr)
    outcome = typed("install")
    assert outcome.code == code
    assert len(outcome.err.splitlines()) == 1


def test_an_operator_that_cannot_start_is_not_waited_for(typed: Type, cluster: Any) -> None:
    old, new = pod("2026-01-01T00:00:00Z", ""), pod("2026-01-02T00:00:00Z", "ImagePullBackOff")
    cluster.answer("get deployments.apps,pods", out={"items": [operator(available=0), old, new]})
    outcome = typed("install", "--timeout", "60")
    assert outcome.code == 1
    assert (
        "error: the operator does not come up: ImagePullBackOff of image diptych:1: cannot be had\n"
        "No image is published yet"
    ) in outcome.err


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        pytest.param(
            "CrashLoopBackOff",
            "Its log says why: "
            "`kubectl logs -n ops -l app.kubernetes.io/component=operator --previous`",
            id="it crashes",
        ),
        pytest.param(
            "CreateContainerConfigError",
            "Its pod's events say more: "
            "`kubectl describe pods -n ops -l app.kubernetes.io/component=operator`",
            id="a Secret is missing",
        ),
    ],
)
def test_an_operator_that_does_not_start_is_not_blamed_on_its_image_without_reason(
    typed: Type, cluster: Any, reason: str, advice: str
) -> None:
    new = pod("2026-01-02T00:00:00Z", reason)
    cluster.answer("get deployments.apps,pods", out={"items": [operator(available=0), new]})
    outcome = typed("install", "--namespace", "ops")
    assert outcome.code == 1
    assert f"does not come up: {reason} of image diptych:1: cannot be had\n{advice}" in outcome.err
    assert "No image is published" not in outcome.err


@pytest.mark.parametrize("reason", ["ErrImageNeverPull", "InvalidImageName"])
def test_an_image_that_cannot_be_had_is_told_as_such(
    typed: Type, cluster: Any, reason: str
) -> None:
    new = pod("2026-01-02T00:00:00Z", reason)
    cluster.answer("get deployments.apps,pods", out={"items": [operator(available=0), new]})
    assert "No image is published yet" in typed("install").err


def test_older_pods_do_not_count(typed: Type, cluster: Any) -> None:
    old, new = pod("2026-01-01T00:00:00Z", "CrashLoopBackOff"), pod("2026-01-02T00:00:00Z", "x")
    cluster.answer("get deployments.apps,pods", out={"items": [new, old, operator()]})
    assert typed("install").code == 0


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([], id="nothing there yet"),
        pytest.param([operator(generation=2)], id="a revision not observed yet"),
        pytest.param([operator(available=0)], id="pods that do not take work"),
    ],
)
def test_waiting_has_an_end(typed: Type, cluster: Any, items: list[Object]) -> None:
    cluster.answer("get deployments.apps,pods", out={"items": items})
    outcome = typed("install", "--timeout", "1")
    assert outcome.code == 1
    assert (
        "the operator is not up after 1 s; `kubectl describe pods -n diptych-system`" in outcome.err
    )


def test_an_operator_without_the_crd_is_no_success(typed: Type, cluster: Any) -> None:
    missing = 'Error from server (NotFound): customresourcedefinitions "x" not found'
    cluster.answer("get customresourcedefinitions", err=missing)
    outcome = typed("install", "--set", "crds.install=false")
    assert outcome.code == 1
    assert "the Agent CRD is not there" in outcome.err
