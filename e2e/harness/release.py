"""The chart, installed as a user would: with helm, in a namespace that enforces `restricted`."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.clusters import ROOT, say
from harness.commands import output
from harness.kubectl import Kubectl
from harness.objects import namespace

CHART = str(ROOT / "charts" / "diptych")
NAMESPACE = "diptych-e2e"
NAME = "diptych"
CRD = "agents.diptych.dev"


@dataclass(frozen=True)
class Release:
    """One release of the chart; `kubectl` is bound to its namespace."""

    kubectl: Kubectl
    image: str
    name: str = NAME

    @property
    def operator(self) -> str:
        """The selector of the operator's pods."""
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=operator"

    def install(self, *settings: str, chart: str = CHART) -> str:
        """Install or upgrade, wait, and give the notes; a setting is `key=value`."""
        repository, _, tag = self.image.rpartition(":")
        values = [f"image.repository={repository}", f"image.tag={tag}", *settings]
        arguments = [argument for value in values for argument in ("--set", value)]
        return self.helm("upgrade", "--install", self.name, chart, "--wait", *arguments)

    def helm(self, *arguments: str) -> str:
        scope = ("--namespace", self.kubectl.namespace, "--timeout", "3m")
        return output("helm", *arguments, *scope, env=self.kubectl.env, timeout=240)


def installed(env: Mapping[str, str], image: str) -> Release:
    """Install the chart with its defaults; refuses a cluster where another release's CRD is."""
    kubectl = Kubectl(env, NAMESPACE)
    crd = kubectl.find("crd", CRD) or {}
    annotations = crd.get("metadata", {}).get("annotations", {})
    if crd and annotations.get("meta.helm.sh/release-namespace") != NAMESPACE:
        raise RuntimeError(f"this cluster has a CRD {CRD} already, which the tests would change")
    kubectl.apply(namespace(NAMESPACE))
    release = Release(kubectl, image)
    say("installing the chart ...")
    release.install()
    return release


def removed(release: Release) -> None:
    """Take everything away that `installed` and the cases have made."""
    kubectl = release.kubectl
    kubectl(
        "delete", "namespace", "-l", "diptych.dev/e2e=true,!diptych.dev/release", "--wait=false"
    )
    release.helm("uninstall", release.name, "--ignore-not-found", "--wait")
    kubectl.delete("crd", CRD)
    kubectl.delete("namespace", NAMESPACE)
