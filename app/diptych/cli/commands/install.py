"""`diptych install`: installs the operator by its chart, or upgrades it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import Context, Kubeconfig
from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.cluster.operators import Operator, StartFailure
    from diptych.cli.cluster.release import DeployedRelease, Release, ReleaseValues
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
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.cluster.release import Release, ReleaseValues, packaged_chart
    from diptych.cli.output.screen import Screen

    flags = ClusterFlags(kubeconfig, context, namespace)
    release_values = ReleaseValues(image, values or (), settings or (), reuse=not reset_values)
    screen = Screen()
    with packaged_chart() as chart:
        _upgrade(Release(flags, chart), release_values, screen, dry_run=dry_run)
    if not dry_run:
        _print_next_steps(_wait_for_operator(flags, timeout, screen), flags, screen)


def _upgrade(
    release: "Release", values: "ReleaseValues", screen: "Screen", *, dry_run: bool
) -> None:
    """Install or upgrade unless nothing would change; a dry run prints the objects."""
    deployed = release.deployed()
    _refuse_downgrade(deployed, release)
    manifest = release.dry_run(values)
    is_unchanged = (
        deployed is not None and _is_deployed(deployed, manifest) and _is_available(release.flags)
    )
    unchanged = f"diptych {release.version} is there already, with these settings"
    if dry_run:
        typer.echo(manifest)
        change = unchanged if is_unchanged else _change_text(deployed, release, "would be ")
        screen.print_line(f"dry run, nothing was changed: {change}")
    elif is_unchanged:
        screen.print_line(("✓ ", "green"), unchanged, "; nothing was changed")
    else:
        screen.show_status("helm is at work …")
        revision = release.install(values)
        change = _change_text(deployed, release)
        screen.print_line(("✓ ", "green"), f"{change} (revision {revision} of the release)")


def _refuse_downgrade(deployed: "DeployedRelease | None", release: "Release") -> None:
    from diptych.cli.cluster.release import is_newer

    if deployed and is_newer(deployed.version, than=release.version):
        raise ConfigError(
            f"the cluster has diptych {deployed.version}, and this is {release.version}: upgrade "
            "this one (`pip install --upgrade diptych`), or go back with `helm rollback`"
        )


def _is_deployed(deployed: "DeployedRelease", manifest: str) -> bool:
    """Whether the release was deployed with these objects; white space does not matter."""
    return deployed.status == "deployed" and deployed.manifest.split() == manifest.split()


def _is_available(flags: "ClusterFlags") -> bool:
    """Whether the operator is available and the CRD served: both may have been deleted since."""
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import agent_crd, is_established, release_operator
    from diptych.cli.cluster.release import RELEASE

    kubectl = Kubectl(flags)
    operator, _ = release_operator(kubectl, RELEASE)
    crd = agent_crd(kubectl)
    is_served = crd is not None and is_established(crd)
    return operator is not None and operator.is_available and is_served


def _change_text(deployed: "DeployedRelease | None", release: "Release", would: str = "") -> str:
    """Say what an install changes: `diptych 0.2.0 upgraded from 0.1.0`."""
    if deployed is None:
        return f"diptych {release.version} {would}installed"
    if deployed.version == release.version:
        return f"diptych {release.version} {would}changed"
    return f"diptych {release.version} {would}upgraded from {deployed.version}"


def _wait_for_operator(flags: "ClusterFlags", timeout: int, screen: "Screen") -> "Operator":
    """Wait until the operator is rolled out and the CRD served.

    Raises `ClusterError` after `timeout` seconds, and once the operator cannot start.
    """
    from diptych.cli.cluster.errors import ClusterError
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.operators import agent_crd, is_established, release_operator
    from diptych.cli.cluster.release import RELEASE

    kubectl = Kubectl(flags)
    start = time.monotonic()
    while True:
        operator, failure = release_operator(kubectl, RELEASE)
        if operator and operator.is_rolled_out:
            break
        if failure:
            advice = _advice(failure, flags.namespace)
            raise ClusterError(f"the operator does not come up: {failure}\n{advice}")
        passed = time.monotonic() - start
        if passed > timeout:
            raise ClusterError(
                f"the operator is not up after {timeout} s; "
                f"`kubectl describe pods -n {flags.namespace}` says why"
            )
        screen.show_status(f"waiting for the operator · {passed:.0f} s")
        time.sleep(_POLL_SECONDS)
    crd = agent_crd(kubectl)
    if crd is None or not is_established(crd):
        raise ClusterError(
            "the operator is up, but the Agent CRD is not there; was crds.install=false meant?"
        )
    return operator


def _advice(failure: "StartFailure", namespace: str | None) -> str:
    """Say what to do about an operator that does not start."""
    if failure.is_of_image:
        return _IMAGE_ADVICE
    pods = f"-n {namespace} -l app.kubernetes.io/component=operator"
    if failure.has_crashed:
        return f"Its log says why: `kubectl logs {pods} --previous`"
    return f"Its pod's events say more: `kubectl describe pods {pods}`"


def _print_next_steps(operator: "Operator", flags: "ClusterFlags", screen: "Screen") -> None:
    arguments = "".join(f" {argument}" for argument in flags.as_arguments)
    ready = f"{operator.available} of {operator.wanted} ready"
    screen.print_line(("✓ ", "green"), f"operator {operator.namespace}/{operator.name}: {ready}")
    screen.print_line(("  image ", "dim"), operator.image)
    screen.print_line()
    screen.print_line("Make an agent, and talk to it:")
    screen.print_line((f"  kubectl apply{arguments} -f agent.yaml", "bold"))
    screen.print_line((f"  diptych chat{arguments} NAME", "bold"))
    screen.print_line((f"  diptych status{arguments}", "bold"))


_IMAGE_ADVICE = (
    "No image is published yet: build it from the project's Dockerfile, bring it to where the "
    "cluster finds it, and say --image IMAGE"
)
