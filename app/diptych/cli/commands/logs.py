"""`diptych logs`: the logs of an Agent's pods."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Annotated, Any

import typer

from diptych.cli.commands.options import Context, Kubeconfig, Namespace


def logs(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name, or namespace/name.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
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
    from diptych.cli.cluster.agents import AgentName, find_agent, pods_of
    from diptych.cli.cluster.errors import ClusterError
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.cluster.kubectl import Kubectl

    kubectl = Kubectl(ClusterFlags(kubeconfig, context, namespace))
    wanted = find_agent(kubectl, AgentName.require(agent))
    pods = pods_of(kubectl, wanted)
    if not pods:
        raise ClusterError(f"Agent {wanted.namespace}/{wanted.name} has no pods: {wanted.problem}")
    streams = _container_count(pods)
    arguments = ["logs", f"--selector={wanted.selector}", "--all-containers"]
    arguments += [f"--tail={-1 if tail is None else tail}"]
    arguments += ["--prefix"] if streams > 1 else []
    arguments += ["--follow", f"--max-log-requests={max(streams, 5)}"] if follow else []
    arguments += [f"--since={since}"] if since else []
    arguments += ["--previous"] if previous else []
    _stream_output(kubectl.in_namespace(wanted.namespace).command(*arguments))


def _container_count(pods: Sequence[Mapping[str, Any]]) -> int:
    """Count the containers of all pods: each is one stream of kubectl."""
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return sum(len(pod.get("spec", {}).get(kind, ())) for pod in pods for kind in kinds)


def _stream_output(command: Sequence[str]) -> None:
    """Run kubectl and copy its stdout. Raises the error that its stderr means if it fails."""
    from diptych.cli.cluster.errors import error_from
    from diptych.cli.exit_codes import ABORTED

    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(  # noqa: S603 - the person's own kubectl
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
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
            stderr.seek(0)
            raise error_from("kubectl", stderr.read().decode(errors="replace"))


def _copy(lines: IO[bytes] | None) -> None:
    for line in lines or ():
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
