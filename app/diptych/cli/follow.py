"""Starts or follows a run and shows it until it ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from diptych.cli.client.remote import RemoteAgent
from diptych.cli.output.screen import REFRESH_SECONDS, Mark, Screen
from diptych.cli.output.wording import unavailable_text
from diptych.cli.typed_lines import TypedLines
from diptych.core.codec import TERMINAL, Record
from diptych.ports import Item


class Renderer(Protocol):
    """Shows the items of a run, which it is given in order."""

    def render(self, item: Item) -> None: ...

    def refresh(self) -> None:
        """Redraw what changes with time alone; called every `REFRESH_SECONDS`."""
        ...


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended; `status` is the name of its terminal event."""

    session_id: str
    status: str


async def start_and_follow(
    agent: RemoteAgent,
    question: str,
    session_id: str | None,
    renderer: Renderer,
    typed: TypedLines | None = None,
    key: str | None = None,
) -> EndedRun:
    """Start a run and show it until it ends; `typed` decides on its calls, and steers it.

    `key` is its idempotency key.

    Cancellation cancels the run, whose end is then shown and returned. Before the run has started,
    the cancellation is raised. Raises `InputRequired`.
    """
    async with _refreshed(renderer):
        run = await agent.start(question, session_id, renderer.render, key)
        if typed:
            typed.open(run.run_id)
        following = asyncio.create_task(_follow(agent, run.run_id, renderer, typed))
        try:
            status = await asyncio.shield(following)
        except asyncio.CancelledError:
            if typed:
                typed.close()
            await agent.cancel(run.run_id)
            status = await following
            if task := asyncio.current_task():
                task.uncancel()
        finally:
            if typed:
                typed.close()
            following.cancel()
            await asyncio.wait([following])
    return EndedRun(run.session_id, status)


async def follow_run(agent: RemoteAgent, run_id: str, renderer: Renderer) -> str:
    """Show a run until it ends; returns the name of its terminal event.

    Cancellation leaves the run as it is.
    """
    async with _refreshed(renderer):
        return await _follow(agent, run_id, renderer, None)


async def print_availability(agent: RemoteAgent, screen: Screen) -> None:
    """Print what a person should know before the first question: a scripted model, outages."""
    availability = await agent.availability()
    if availability.is_scripted:
        screen.print_line(
            ("DEBUG_MOCK_RESPONSES is on: a script answers instead of a model.", "dim")
        )
    for unavailable in availability.unavailable:
        url = agent.server_urls.get(unavailable.name) if unavailable.kind == "server" else None
        where = f" ({url})" if url else ""
        screen.print_line(Mark.NOTE.value, f"unavailable: {unavailable_text(unavailable)}{where}")


async def _follow(
    agent: RemoteAgent, run_id: str, renderer: Renderer, typed: TypedLines | None
) -> str:
    status = "failed"
    async with aclosing(agent.subscribe(run_id)) as batches:
        async for batch in batches:
            for item in batch:
                renderer.render(item)
                if isinstance(item, Record):
                    if item.event_type in TERMINAL:
                        status = item.event_type
                    if typed:
                        typed.note(item)
    return status


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
