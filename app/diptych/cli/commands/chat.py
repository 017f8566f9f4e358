"""`diptych chat`: a conversation with an agent, in one session.

The person's line is read in the main thread, where line editing and Ctrl-C belong; agents live in
an event loop of their own thread, so that they go on while a person thinks.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from diptych.cli.commands.options import (
    AgentName,
    Context,
    Kubeconfig,
    Namespace,
    Secrets,
    Services,
    SessionId,
)

if TYPE_CHECKING:
    from diptych.cli.follow import Askable
    from diptych.cli.output.screen import Screen

_T = TypeVar("_T")
_PROMPT = "❯ "


def chat(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL|AGENT",
            help="A file with Agents, an agent's URL, or an Agent of a cluster: [namespace/]name.",
        ),
    ],
    agent: AgentName = None,
    session: SessionId = None,
    secrets: Secrets = None,
    service: Services = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Talk with an agent: it remembers what was said before.

    Ctrl-C aborts the answer that is being given, Ctrl-D ends the conversation. An Agent of a
    cluster is reached by a port-forward, which lasts as long as the conversation.

    Examples: `diptych chat agent.yaml`, `diptych chat team/helper`
    """
    from diptych.cli.client.target import Target, set_up_quiet_logging
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.follow import introduce
    from diptych.cli.output.screen import Screen
    from diptych.cli.signals import ABORTED

    set_up_quiet_logging()
    screen = Screen()
    with _Background() as background:
        place = ClusterPlace(kubeconfig, context, namespace)
        reached = Target(target, agent, secrets, service, place).reached()
        try:
            askable = background.run(reached.__aenter__())
        except CancelledError:
            raise typer.Exit(ABORTED) from None
        try:
            background.run(introduce(askable, screen))
            _converse(background, askable, screen, session)
        finally:
            background.run(reached.__aexit__(None, None, None))


def _converse(
    background: "_Background", agent: "Askable", screen: "Screen", session: str | None
) -> None:
    from diptych.cli.follow import ask
    from diptych.cli.output.timeline import Timeline

    screen.line((f"{agent.name} · Ctrl-C aborts an answer, Ctrl-D ends", "dim"))
    for question in _questions(screen):
        try:
            ended = background.run(ask(agent, question, session, Timeline(screen)))
            session = ended.session_id
        except CancelledError:
            screen.line(("✗ aborted", "red"), ", before the agent had said that the run has begun")
        screen.gap()


def _questions(screen: "Screen") -> Iterator[str]:
    """Give what a person types, line by line, until there is no more."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing and history
    is_person = sys.stdin.isatty()
    while True:
        try:
            line = input(_PROMPT if is_person and screen.is_live else "")
        except EOFError:
            if is_person:
                screen.line()
            return
        except KeyboardInterrupt:
            screen.line()
            continue
        if line.strip():
            yield line


class _Background:
    """An event loop in a thread; the work given to it is waited for, and Ctrl-C cancels it."""

    def __init__(self) -> None:
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._live, name="agents", daemon=True)
        self._task: asyncio.Task[Any] | None = None
        self._end = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._ready.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do the work and give its result; the second Ctrl-C meanwhile ends the process."""
        from diptych.cli.signals import end_now

        future = asyncio.run_coroutine_threadsafe(self._noted(work), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(self._cancel)
        try:
            return future.result()
        except KeyboardInterrupt:
            end_now()

    def _live(self) -> None:
        async def until_the_end() -> None:
            self._ready.set_result(asyncio.get_running_loop())
            await self._end.wait()

        asyncio.run(until_the_end())

    async def _noted(self, work: Coroutine[Any, Any, _T]) -> _T:
        self._task = asyncio.current_task()
        return await work

    def _cancel(self) -> None:
        if self._task:
            self._task.cancel()
