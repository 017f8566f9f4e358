"""Reaches a cluster's Agent by `kubectl port-forward`, which is restarted when its pod goes away.

kubectl runs in a session of its own, so that Ctrl-C ends the run before it ends the port-forward.
A shell holds it and reads from a pipe that closes with this process, so that it never outlives us.
"""

import asyncio
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from diptych.cli.client.remote import BearerToken, RemoteAgent, agent_at, token_of_environment
from diptych.cli.cluster.agents import (
    PORT,
    AgentObject,
    find_agent,
    request_token,
)
from diptych.cli.cluster.kubectl import (
    AgentName,
    ClusterError,
    ClusterFlags,
    Kubectl,
    kubectl_error,
)
from diptych.core.errors import ConfigError
from diptych.net.backoff import Backoff

HOST = "127.0.0.1"
START_SECONDS = 30.0
_FIRST_DELAY, _MAX_DELAY = 0.2, 3.0
_EXIT_SECONDS = 3.0
_POD_TIMEOUT = "10s"
_READY = f"Forwarding from {HOST}:"
_SHELL = """exec 3<&0
"$@" 3<&- & forward=$!
{ read -r _ <&3; kill "$forward"; } & watch=$!
wait "$forward"
kill "$watch"
"""

Command: TypeAlias = Callable[[str], Sequence[str]]
"""Makes the command line of a port-forward from its ports, `LOCAL:REMOTE`."""


@asynccontextmanager
async def agent_in_cluster(name: AgentName, flags: ClusterFlags) -> AsyncIterator[RemoteAgent]:
    """Yield a client of an Agent.

    Raises `ClusterError` if it does not exist, no token can be had or no pod reached, and
    `ConfigError` if kubectl cannot be used.
    """
    kubectl = Kubectl(flags)
    agent = await asyncio.to_thread(find_agent, kubectl, name)
    if not agent.is_ready:  # pods of an older revision may still serve
        sys.stderr.write(f"! {agent.full_name} is not ready: {agent.problem}\n")
    in_namespace = kubectl.in_namespace(agent.namespace)
    token = await _token(kubectl, agent)

    def command(ports: str) -> Sequence[str]:
        return in_namespace.command(
            "port-forward",
            f"service/{agent.name}",
            ports,
            f"--address={HOST}",
            f"--pod-running-timeout={_POD_TIMEOUT}",
        )

    async with (
        _port_forward(command) as port,
        agent_at(f"http://{HOST}:{port}", token) as remote,
    ):
        account = flags.service_account
        as_whom = (f"--as-service-account={account}",) if account else ()
        remote.name = agent.full_name
        remote.attach_flags = " ".join((f"--at {remote.name}", *flags.as_arguments, *as_whom))
        remote.was_there = agent.is_ready
        yield remote


async def _token(kubectl: Kubectl, agent: AgentObject) -> BearerToken | None:
    """Return the proof to ask with; None for an Agent that is open to everybody."""
    if agent.is_open:
        return None
    if kubectl.flags.service_account is None and (given := token_of_environment()):
        return given
    token = BearerToken(lambda: request_token(kubectl, agent))
    await token.renew()  # its errors come first
    return token


@asynccontextmanager
async def _port_forward(command: Command) -> AsyncIterator[int]:
    """Keep the Agent's port forwarded while a block lasts; yields the local port.

    Raises `ClusterError` or `ConfigError` if the first port-forward fails.
    """
    if shutil.which("sh") is None:
        raise ConfigError("sh is not on PATH: an Agent of a cluster is reached by means of it")
    opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    supervisor = asyncio.create_task(_supervise(command, opened))
    try:
        starting: list[asyncio.Future[Any]] = [supervisor, opened]
        await asyncio.wait(starting, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if supervisor.done():
            await supervisor
        if not opened.done():
            raise ClusterError(f"kubectl port-forward did not begin in {START_SECONDS:.0f} s")
        yield opened.result()
    finally:
        supervisor.cancel()
        await asyncio.wait([supervisor])


async def _supervise(command: Command, opened: asyncio.Future[int]) -> None:
    """Run port-forwards one after another, on one local port. Raises the first one's error."""
    backoff = Backoff(_FIRST_DELAY, _MAX_DELAY)
    while True:
        local = opened.result() if opened.done() else ""
        words = ("sh", "-c", _SHELL, "diptych-forward", *command(f"{local}:{PORT}"))
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        try:
            _, stderr = await asyncio.gather(
                _read_port(process, opened, backoff), _read_stderr(process)
            )
        finally:
            await _stop(process)
        if not opened.done():
            raise kubectl_error(stderr)
        await asyncio.sleep(backoff.next_delay())


async def _read_port(process: Process, opened: asyncio.Future[int], backoff: Backoff) -> None:
    """Read kubectl's stdout to its end, and the port that it opens."""
    while process.stdout and (line := await process.stdout.readline()):
        text = line.decode(errors="replace")
        if text.startswith(_READY):
            backoff.reset()
            if not opened.done():
                opened.set_result(int(text.removeprefix(_READY).split()[0]))


async def _read_stderr(process: Process) -> str:
    """Read kubectl's errors. End it when it has lost its pod, as older versions do not."""
    lines: list[str] = []
    while process.stderr and (line := await process.stderr.readline()):
        lines = [*lines[-20:], line.decode(errors="replace")]
        if process.stdin and ("error forwarding" in lines[-1] or "lost connection" in lines[-1]):
            process.stdin.close()
    return "".join(lines)


async def _stop(process: Process) -> None:
    """Close the shell's stdin, which ends the port-forward, and wait for both."""
    if process.stdin:
        process.stdin.close()
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
