"""`diptych chat`: a conversation with an agent, in one session.

The main thread reads the person's lines: line editing and Ctrl-C belong to it. The agent's client
lives in the event loop of another thread, so that it runs on while a person types.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from diptych.cli.commands.options import (
    AgentOfFile,
    AsServiceAccount,
    Context,
    Kubeconfig,
    Namespace,
    NoInput,
    Secrets,
    Services,
    SessionId,
)

if TYPE_CHECKING:
    from diptych.cli.client.agent_client import AgentClient
    from diptych.cli.output.screen import Screen

_T = TypeVar("_T")
_PROMPT = "❯ "
_HELP = (
    "a line typed meanwhile steers, /later … waits its turn; Ctrl-C aborts an answer, Ctrl-D ends"
)


def chat(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL|AGENT",
            help="A file with Agents, an agent's URL, or an Agent of a cluster: [namespace/]name.",
        ),
    ],
    agent: AgentOfFile = None,
    session: SessionId = None,
    no_input: NoInput = False,
    secrets: Secrets = None,
    service: Services = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Talk with an agent: it remembers what was said before.

    A line typed while the agent works steers it; `/later …` waits until it has answered. Ctrl-C
    aborts the answer, a second one leaves; Ctrl-D ends. A cluster is reached by a port-forward.

    Examples: `diptych chat agent.yaml`, `diptych chat team/helper`
    """
    from diptych.cli.approver import InputRequired
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.environment import set_up_quiet_logging
    from diptych.cli.exit_codes import ABORTED, INPUT_REQUIRED
    from diptych.cli.follow import print_availability
    from diptych.cli.output.screen import Screen

    set_up_quiet_logging()
    screen = Screen()
    cluster = ClusterFlags(kubeconfig, context, namespace, as_service_account)
    connection = Target(target, agent, secrets, service, cluster).connect()
    try:
        with _EventLoopThread() as thread:
            client = thread.run(connection.__aenter__())
            try:
                thread.run(print_availability(client, screen))
                _converse(thread, client, screen, session, no_input=no_input)
            finally:
                thread.run(connection.__aexit__(None, None, None))
    except InputRequired as waiting:
        screen.print_line(("! ", "yellow"), f"{waiting.call_id} of {waiting.run_id}: {waiting}")
        raise typer.Exit(INPUT_REQUIRED) from None
    except CancelledError:  # Ctrl-C, before the first question or on the way out
        raise typer.Exit(ABORTED) from None


def _converse(
    thread: "_EventLoopThread",
    agent: "AgentClient",
    screen: "Screen",
    session: str | None,
    *,
    no_input: bool,
) -> None:
    from diptych.cli.approver import Approver, can_ask
    from diptych.cli.follow import start_and_follow
    from diptych.cli.output.timeline import Timeline
    from diptych.cli.typed_lines import Messenger

    screen.print_line((f"{agent.name} · {_HELP}", "dim"))
    for question in _read_questions(screen, thread):
        try:
            messenger = Messenger(agent, screen) if can_ask() and not no_input else None
            read_line = messenger.lines.next_line if messenger else None
            approver = Approver(agent, screen, no_input=messenger is None, read_line=read_line)
            ended = thread.run(
                start_and_follow(agent, question, session, Timeline(screen), approver, messenger)
            )
            session = ended.session_id
        except CancelledError:
            screen.print_line(
                ("✗ aborted", "red"), ", before the agent had said that the run has begun"
            )
        screen.print_gap()


def _read_questions(screen: "Screen", thread: "_EventLoopThread") -> Iterator[str]:
    """Read lines from stdin until it ends; empty ones are skipped.

    Ctrl-C drops a line, and leaves if another one came just before: here, or during the answer.
    """
    from diptych.cli.exit_codes import ABORTED

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing and history
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input(_PROMPT if is_terminal and screen.is_live else "")
        except EOFError:
            if is_terminal:
                screen.print_line()
            return
        except KeyboardInterrupt:
            screen.print_line()
            if thread.was_interrupted:
                raise typer.Exit(ABORTED) from None
            thread.was_interrupted = True
            continue
        if line.strip():
            yield line


class _EventLoopThread:
    """An event loop in a thread of its own. Ctrl-C cancels the coroutine that it runs."""

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._serve, name="agents", daemon=True)
        self._stop = asyncio.Event()
        self.was_interrupted = False  # by Ctrl-C, the last time that something was done

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and give its result. A second Ctrl-C meanwhile ends the process.

        Ctrl-C is no KeyboardInterrupt here: that could be raised before the result is awaited.
        """
        from diptych.cli.exits import exit_now, interrupt_handler

        task: asyncio.Task[Any] | None = None
        interrupts = 0
        self.was_interrupted = False

        async def run_as_task() -> _T:
            nonlocal task
            task = asyncio.current_task()
            return await coroutine

        def cancel() -> None:
            if task is None:
                self._loop.call_soon(cancel)  # after the task's start
            else:
                task.cancel()

        def on_interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += 1
            self.was_interrupted = True
            if interrupts > 1:
                exit_now()
            self._loop.call_soon_threadsafe(cancel)

        with interrupt_handler(on_interrupt):
            return asyncio.run_coroutine_threadsafe(run_as_task(), self._loop).result()

    def _serve(self) -> None:
        async def wait_for_stop() -> None:
            self._started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

        asyncio.run(wait_for_stop())
