"""Runs A2A's compatibility kit against our agent: `a2a_tck.py KIT REPORT` (see `tools/a2a_tck`).

KIT is the kit's folder, with its dependencies in `.venv`; REPORT is the JUnit file to write.
"""

import asyncio
import os
import sys
from pathlib import Path

import httpx

START_SECONDS, KIT_SECONDS = 60, 900


async def run_kit(kit: Path, report: Path) -> None:
    """Serve the agent, and run the kit against it."""
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).with_name("a2a_agent.py"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            assert agent.stdout
            url = (await agent.stdout.readline()).decode().strip()
        await _wait_for(url)
        await _ask(kit, url, report)
    finally:
        agent.terminate()
        await agent.wait()


async def _wait_for(url: str) -> None:
    """Wait for the card: the first one is slow, and the kit gives it only 5 seconds."""
    transport = httpx.AsyncHTTPTransport(retries=5)
    async with httpx.AsyncClient(transport=transport, timeout=START_SECONDS) as http:
        (await http.get(f"{url}/.well-known/agent-card.json")).raise_for_status()


async def _ask(kit: Path, url: str, report: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        kit / ".venv/bin/python",
        *("-m", "pytest", "tests/compatibility", "-q", "--tb=line", "-k", "not grpc"),
        *(f"--sut-host={url}", "--transport=jsonrpc,http_json", f"--junitxml={report}"),
        cwd=kit,
        env={**os.environ, "NO_PROXY": "*"},
    )
    try:
        async with asyncio.timeout(KIT_SECONDS):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


if __name__ == "__main__":
    asyncio.run(run_kit(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
