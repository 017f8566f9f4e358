"""`diptych serve`, which writes the number of its tasks to the file COUNT_TASKS at SIGUSR1."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from diptych.cli import main
from diptych.serve import server

serve = server.serve


async def watched(*args: Any, **rest: Any) -> None:
    def count() -> None:
        Path(os.environ["COUNT_TASKS"]).write_text(str(len(asyncio.all_tasks())))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, count)
    await serve(*args, **rest)


server.serve = watched
main()
