"""Starts or follows a run and renders it until it ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from diptych.cli.approver import Approver
from diptych.cli.client.agent_client import AgentClient
from diptych.cli.output.renderer import REFRESH_SECONDS, Renderer
from diptych.cli.output.screen import Screen
from diptych.cli.output.wording import unavailable_text
from diptych.cli.typed_lines import Messenger
from diptych.core.codec import TERMINAL, Record
from diptych.ports import Item


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended; `status` is the name of its terminal event."""

    session_id: str
    status: str


async def start_and_follow(
    agent: AgentClient,
    question: str,
    session_id: str | None,
    renderer: Renderer,
    approver: Approver | None = None,
    messenger: Messenger | None = None,
) -> EndedRun:
    """Start a run and render it until it ends; `approver` is asked about calls that wait.

    `messenger` sends it what is typed meanwhile.

    Raises `InputRequired` if it may ask nobody. Cancellation cancels the run, whose end is then
    rendered and returned. Before the run has started, the cancellation is raised.
    """
    async with _refreshed(renderer):
        run = await agent.start(question, session_id, renderer.render)
        follower = _RunFollower(agent, run.run_id, renderer, approver)
        if messenger:
            messenger.open(run.run_id)
        try:
            await follower.follow_to_end()
        except asyncio.CancelledError:
            if approver:
                approver.close()
            await agent.cancel(run.run_id)
            await follower.follow_to_end()
            if task := asyncio.current_task():
                task.uncancel()
        finally:
            if messenger:
                messenger.close()
    return EndedRun(run.session_id, follower.status)


async def follow_run(agent: AgentClient, run_id: str, renderer: Renderer) -> str:
    """Render a run until it ends; give the name of its terminal event.

    Cancellation leaves the run as it is.
    """
    follower = _RunFollower(agent, run_id, renderer)
    async with _refreshed(renderer):
        await follower.follow_to_end()
    return follower.status


async def print_availability(agent: AgentClient, screen: Screen) -> None:
    """Print what a person should know before the first question: a scripted model, outages."""
    availability = await agent.availability()
    if availability.is_scripted:
        screen.print_line(
            ("DEBUG_MOCK_RESPONSES is on: a script answers instead of a model.", "dim")
        )
    for unavailable in availability.unavailable:
        screen.print_line(("! ", "yellow"), f"unavailable: {unavailable_text(unavailable)}")


class _RunFollower:
    """Subscribes to one run, and again from where it was."""

    def __init__(
        self,
        agent: AgentClient,
        run_id: str,
        renderer: Renderer,
        approver: Approver | None = None,
    ) -> None:
        self._approver = approver
        self.status = "failed"
        self._agent = agent
        self._run_id = run_id
        self._renderer = renderer
        self._seq = 0

    async def follow_to_end(self) -> None:
        async with aclosing(self._agent.subscribe(self._run_id, self._seq)) as batches:
            async for batch in batches:
                for item in batch:
                    self._note(item)
                    self._renderer.render(item)
                    if self._approver and isinstance(item, Record):
                        self._approver.note(item)

    def _note(self, item: Item) -> None:
        if isinstance(item, Record):
            self._seq = item.seq
            if item.event_type in TERMINAL:
                self.status = item.event_type
        elif item.type == "reset":
            last_seq: Any = item.fields.get("last_seq", 0)
            self._seq = last_seq  # the store lost the records after it


@contextlib.asynccontextmanager
async def _refreshed(renderer: Renderer) -> AsyncIterator[None]:
    """Refresh a renderer regularly while the block lasts."""

    async def refresh() -> None:
        with contextlib.suppress(OSError):  # the next write raises it where it is handled
            while True:
                await asyncio.sleep(REFRESH_SECONDS)
                renderer.refresh()

    task = asyncio.create_task(refresh())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
