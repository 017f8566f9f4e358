"""`diptych install`: the operator, brought into a cluster by its chart."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import Context, Kubeconfig
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.cluster.operators import Operator
    from diptych.cli.cluster.release import Installed, Release, Wishes
    from diptych.cli.output.screen import Screen

_NAMESPACE = "diptych-system"
_POLL_SECONDS = 1.0


def install(
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="The image, for the operator and the agents."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the chart, as helm's."),
    ] = None,
    values: Annotated[
        list[Path] | None,
        typer.Option("--values", "-f", metavar="FILE", help="A file of settings, as helm's."),
    ] = None,
    reset_values: Annotated[
        bool, typer.Option("--reset-values", help="Forget the settings of earlier installs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be there, and change nothing.")
    ] = False,
    timeout: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the operator.")
    ] = 180,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where the operator lives.")
    ] = _NAMESPACE,
) -> None:
    """Install the operator and the Agent CRD into a cluster, or upgrade them.

    It may be run again at any time: settings of earlier installs are kept unless they are given
    anew, and what is there already is left alone. All settings: charts/diptych/README.md.

    Example: `diptych install --image registry.example/diptych:0.1.0 --set ha.enabled=true`
    """
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.cluster.release import Release, Wishes, our_chart
    from diptych.cli.output.screen import Screen

    place = ClusterPlace(kubeconfig, context, namespace)
    wishes = Wishes(image, values or (), settings or (), keeps=not reset_values)
    screen = Screen()
    with our_chart() as chart:
        _bring(Release(place, chart), wishes, screen, dry_run=dry_run)
    if not dry_run:
        _show_what_next(_awaited(place, timeout, screen), place, screen)


def _bring(release: "Release", wishes: "Wishes", screen: "Screen", *, dry_run: bool) -> None:
    """Make the cluster have the release as it is wished, or print what that would be."""
    before = release.now()
    _refuse_going_back(before, release)
    planned = release.planned(wishes)
    is_there = before is not None and _is_same(before, planned) and _stands(release.place)
    if dry_run:
        typer.echo(planned)
        said = _done(before, release, "would be ") if not is_there else _there(release)
        screen.line(f"dry run, nothing was changed: {said}")
    elif is_there:
        screen.line(("✓ ", "green"), _there(release), "; nothing was changed")
    else:
        screen.transient("helm is at work …")
        revision = release.install(wishes)
        said = _done(before, release)
        screen.line(("✓ ", "green"), f"{said} (revision {revision} of the release)")


def _refuse_going_back(before: "Installed | None", release: "Release") -> None:
    from diptych.cli.cluster.release import is_newer

    if before and is_newer(before.version, than=release.version):
        raise ConfigError(
            f"the cluster has diptych {before.version}, and this is {release.version}: upgrade "
            "this one (`pip install --upgrade diptych`), or go back with `helm rollback`"
        )


def _is_same(before: "Installed", planned: str) -> bool:
    """Whether an install would change nothing; blanks do not count."""
    return before.status == "deployed" and before.manifest.split() == planned.split()


def _stands(place: "ClusterPlace") -> bool:
    """Whether what was installed is still there; somebody may have deleted or stopped it."""
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import crd, installed_operator, is_established
    from diptych.cli.cluster.release import RELEASE

    kubectl = Kubectl(place)
    operator, _ = installed_operator(kubectl, RELEASE)
    definition = crd(kubectl)
    is_served = definition is not None and is_established(definition)
    return operator is not None and operator.is_well and is_served


def _there(release: "Release") -> str:
    return f"diptych {release.version} is there already, with these settings"


def _done(before: "Installed | None", release: "Release", would: str = "") -> str:
    """Say what an install comes to: `diptych 0.2.0 upgraded from 0.1.0`."""
    if before is None:
        return f"diptych {release.version} {would}installed"
    if before.version == release.version:
        return f"diptych {release.version} {would}changed"
    return f"diptych {release.version} {would}upgraded from {before.version}"


def _awaited(place: "ClusterPlace", timeout: int, screen: "Screen") -> "Operator":
    """Wait until operator and CRD are there. Raises `ClusterError` when that will not be."""
    from diptych.cli.cluster.errors import ClusterError
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import crd, installed_operator, is_established
    from diptych.cli.cluster.release import RELEASE

    kubectl = Kubectl(place)
    began = time.monotonic()
    while True:
        operator, trouble = installed_operator(kubectl, RELEASE)
        if operator and operator.is_settled:
            break
        if trouble:
            raise ClusterError(f"the operator does not come up: {trouble}\n{_ADVICE}")
        passed = time.monotonic() - began
        if passed > timeout:
            raise ClusterError(
                f"the operator is not up after {timeout} s; "
                f"`kubectl describe pods -n {place.namespace}` says why"
            )
        screen.transient(f"waiting for the operator · {passed:.0f} s")
        time.sleep(_POLL_SECONDS)
    definition = crd(kubectl)
    if definition is None or not is_established(definition):
        raise ClusterError(
            "the operator is up, but the Agent CRD is not there; was crds.install=false meant?"
        )
    return operator


def _show_what_next(operator: "Operator", place: "ClusterPlace", screen: "Screen") -> None:
    words = "".join(f" {word}" for word in place.words)
    ready = f"{operator.available} of {operator.wanted} ready"
    screen.line(("✓ ", "green"), f"operator {operator.namespace}/{operator.name}: {ready}")
    screen.line(("  image ", "dim"), operator.image)
    screen.line()
    screen.line("Make an agent, and talk to it:")
    screen.line((f"  kubectl apply{words} -f agent.yaml", "bold"))
    screen.line((f"  diptych chat{words} NAME", "bold"))
    screen.line((f"  diptych status{words}", "bold"))


_ADVICE = (
    "No image is published yet: build it from the project's Dockerfile, bring it to where the "
    "cluster finds it, and say --image IMAGE"
)
