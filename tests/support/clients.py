"""Client libraries of others, each in a process and with packages of its own (`tools/clients`).

A library that could not be had skips its tests, and says so.
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "clients"
INSTALLED = Path(sys.prefix) / "clients"
SECONDS = 100


async def run_client(library: str, url: str, name: str = "typed") -> Any:
    """Run a library's script against an agent, and give the JSON that it prints."""
    (script,) = (SCRIPTS / library).glob(f"{name}.*")
    folder = INSTALLED / library
    if not (folder / "installed").exists():
        pytest.skip(f"NOT CHECKED with {library}: `sh tools/clients .venv/bin` did not install it")
    command = [str(folder / "bin" / "python"), str(script)]
    if script.suffix == ".mjs":  # packages are looked for beside the script
        copy = shutil.copy(script, folder)
        command = [str(folder / "node_modules" / ".bin" / "node"), str(copy)]
    process = await asyncio.create_subprocess_exec(
        *command, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{err.decode()[-4000:]}\n{out.decode()}"
    return json.loads(out)
