"""`diptych logs`: what an Agent's pods have logged."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Annotated, Any

import typer

from diptych.cli.commands.options import Context, Kubeconfig, Namespace


def logs(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name, or namespace/name.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only the last 30s, 5m, 2h …")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="LINES", help="Only the last lines of each pod.", show_default="all"
        ),
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the containers before a restart.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show the logs of all pods of an Agent; where there are several, each line names its pod.

    Example: `diptych logs team/helper -f --since 5m`
    """
    from diptych.cli.cluster.agents import Reference, find_agent, pods_of
    from diptych.cli.cluster.errors import ClusterError
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.cluster.kubectl import Kubectl

    kubectl = Kubectl(ClusterPlace(kubeconfig, context, namespace))
    found = find_agent(kubectl, Reference.typed(agent))
    pods = pods_of(kubectl, found)
    if not pods:
        raise ClusterError(f"Agent {found.namespace}/{found.name} has no pods: {found.trouble}")
    words = ["logs", f"--selector={found.selector}", "--all-containers"]
    words += [f"--tail={-1 if tail is None else tail}"]
    words += ["--prefix"] if _sources(pods) > 1 else []
    words += ["--follow", f"--max-log-requests={max(_sources(pods), 5)}"] if follow else []
    words += [f"--since={since}"] if since else []
    words += ["--previous"] if previous else []
    _pass_on(kubectl.within(found.namespace).command(*words))


def _sources(pods: Sequence[Mapping[str, Any]]) -> int:
    """Count the containers of all pods: so many streams there are."""
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return sum(len(pod.get("spec", {}).get(kind, ())) for pod in pods for kind in kinds)


def _pass_on(command: Sequence[str]) -> None:
    """Write what kubectl writes, as it comes. Raises what its last words mean if it fails."""
    from diptych.cli.cluster.errors import refusal
    from diptych.cli.signals import ABORTED

    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603 - the person's own kubectl
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        )
        try:
            _copy(process.stdout)
            code = process.wait()
        except KeyboardInterrupt:
            raise typer.Exit(ABORTED) from None
        finally:
            process.terminate()
            process.wait()
            if process.stdout:
                process.stdout.close()
        if code:
            said.seek(0)
            raise refusal("kubectl", said.read().decode(errors="replace"))


def _copy(lines: IO[bytes] | None) -> None:
    for line in lines or ():
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
