"""Tools for `diptych mcp-server --python`. LOG names a file in which a call leaves its traces."""

import asyncio
import os
from pathlib import Path

from diptych import tool

LOG = Path(os.environ["LOG"])


def _log(word: str) -> None:
    with LOG.open("a") as file:
        file.write(word + "\n")


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail() -> None:
    raise ValueError("no such planet")


async def wait(seconds: float) -> str:
    _log("waiting")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _log("cancelled")
        raise
    return "waited"


def _untyped(a): ...
