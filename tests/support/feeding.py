"""Runs that are fed with events, and obey themselves what they are to write."""

from support.doubles import catalog

from diptych.core.catalog import Catalog
from diptych.core.commands import Emit, MakeCall
from diptych.core.events import Offered, Returned, RunRequested
from diptych.core.messages import Result
from diptych.core.reducer import advance
from diptych.core.run_settings import RunSettings
from diptych.core.state import Run


def started(
    *names: str, settings: RunSettings | None = None, with_offers: Catalog | None = None, **rest
):
    offered = Offered(with_offers or catalog(*names), "SYSTEM", settings or RunSettings())
    return feed(Run(**rest), RunRequested("hi"), offered)


def feed(run, *events):
    """Feed events, and after each what the loop itself writes; give run and last commands."""
    commands = ()
    for event in events:
        run, commands = advance(run, event)
        while any(isinstance(c, Emit) for c in commands):
            due, rest = _first_write(commands)
            run, more = advance(run, due)
            commands = rest + more
    return run, commands


def _first_write(commands):
    index = next(n for n, c in enumerate(commands) if isinstance(c, Emit))
    return commands[index].event, commands[:index] + commands[index + 1 :]


def made(commands):
    return [c.call for c in commands if isinstance(c, MakeCall)]


def returned(call_id, text="ok", error=None, value=None):
    return Returned(Result(call_id, text, value, error), "tool", "x")
