"""The chart, installed as a user would: with helm, in a namespace that enforces `restricted`."""

import json
from dataclasses import dataclass
from typing import Any

from harness import clusters
from harness.clusters import ROOT, Cluster
from harness.commands import output
from harness.kubectl import Kubectl
from harness.objects import namespace
from harness.sharing import Run
from harness.telling import say

CHART = str(ROOT / "charts" / "diptych")
NAMESPACE = "diptych-e2e"
NAME = "diptych"
CRD = "agents.diptych.dev"
PART = "app.kubernetes.io/part-of=diptych"
_NAME = "kubernetes.io/metadata.name"  # a label that each namespace has


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

    def values(self) -> dict[str, Any]:
        """Give the settings that the release was installed with."""
        scope = ("--namespace", self.kubectl.namespace, "--output", "json")
        found = output("helm", "get", "values", self.name, *scope, env=self.kubectl.env)
        return dict(json.loads(found))

    def leader(self, *, of: int = 1) -> str | None:
        """Name the operator's pod that holds the Lease; None while there are not as many of it."""
        pods = [
            pod["metadata"]["name"]
            for pod in self.kubectl.list("pods", self.operator)
            if "deletionTimestamp" not in pod["metadata"]
        ]
        (lease,) = self.kubectl.list("leases")
        holder = lease["spec"].get("holderIdentity") or ""
        return next((pod for pod in pods if holder.startswith(pod) and len(pods) == of), None)

    def helm(self, *arguments: str) -> str:
        scope = ("--namespace", self.kubectl.namespace, "--timeout", "3m")
        return output("helm", *arguments, *scope, env=self.kubectl.env, timeout=240)


def installed(run: Run, cluster: Cluster) -> Release:
    """Give the release of a run; in the first process that asks, install it with its defaults.

    Refuses a cluster where another release's CRD is.
    """
    image = run.once("image", cluster.image)
    release = Release(Kubectl(cluster.env, NAMESPACE), image)
    run.once("release", lambda: _install(run, cluster, release))
    return release


def end(run: Run) -> None:
    """Take away what `installed` and the cases have made in a cluster that is not ours."""
    if (left := run.noted("release")) is None or clusters.keeps():
        return
    kubectl = Kubectl(left, NAMESPACE)
    say("removing what was made ...")
    kubectl("delete", "namespace", "-l", f"diptych.dev/e2e=true,{_NAME}!={NAMESPACE}", timeout=300)
    Release(kubectl, "").helm("uninstall", NAME, "--ignore-not-found", "--wait")
    kubectl.delete("crd", "-l", PART)
    kubectl.delete("namespace", NAMESPACE)


def _install(run: Run, cluster: Cluster, release: Release) -> None:
    crd = release.kubectl.find("crd", CRD) or {}
    annotations = crd.get("metadata", {}).get("annotations", {})
    if crd and annotations.get("meta.helm.sh/release-namespace") != NAMESPACE:
        raise RuntimeError(f"this cluster has a CRD {CRD} already, which the tests would change")
    if not cluster.is_ours:
        run.note("release", dict(cluster.env))
    release.kubectl.apply(namespace(NAMESPACE))
    say("installing the chart ...")
    release.install()
