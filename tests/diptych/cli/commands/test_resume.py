"""`diptych resume`: what it shows, and its exit codes, against an agent that is served."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from support.model_server import ModelServer, model_server, silence, status
from support.stack import Stage, stage

from diptych.cli.client.remote import RemoteError
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.events import resume as resume_command
from diptych.core.errors import RequestError
from diptych.manifest.settings import TimeoutConfig

ILL = status(400)


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server(ILL) as serving:
        yield serving


@pytest.fixture
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    async with stage(model=model, timeouts=TimeoutConfig()) as serving:
        yield serving


async def failed(helper: Stage) -> str:
    run_id = await helper.start("Hi", session_id="s")
    assert (await helper.ended(run_id))["status"] == "failed"
    return run_id


async def typed(*words: str) -> tuple[int | None, str, str]:
    """Type a command in a process of its own; give its exit code and what it says."""
    command = (sys.executable, "-m", "diptych", *words)
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_failed_run_goes_on_and_its_end_is_the_exit_code(
    helper: Stage, model: ModelServer
) -> None:
    run_id = await failed(helper)
    model.play("{}", "Here I am.")
    code, out, _ = await typed("resume", run_id, "--at", helper.url)
    assert (code, out.strip()) == (0, "Here I am.")


async def test_what_cannot_be_resumed_is_exit_code_2_and_says_why(
    helper: Stage, model: ModelServer
) -> None:
    model.play("{}", "Done.")
    run_id = await helper.start("Hi")
    await helper.ended(run_id)
    code, out, err = await typed("resume", run_id, "--at", helper.url)
    assert (code, out) == (2, "")
    assert "only a run that failed or was aborted can be resumed" in err


async def resume(helper: Stage, run_id: str, max_steps: int | None = None) -> int:
    return await resume_command(run_id, ClusterFlags(), helper.url, max_steps, as_json=True)


async def test_more_steps_than_the_agent_has_are_refused_as_usage(helper: Stage) -> None:
    run_id = await failed(helper)
    with pytest.raises(RequestError, match="at most 5"):
        await resume(helper, run_id, 99)


async def test_a_run_that_is_not_there_is_no_mistake_of_usage(helper: Stage) -> None:
    with pytest.raises(RemoteError, match="HTTP 404"):
        await resume(helper, "run-x")


async def test_a_run_that_goes_on_cannot_be_resumed(helper: Stage, model: ModelServer) -> None:
    model.play(silence)
    run_id = await helper.start("Hi")
    await asyncio.wait_for(model.asked.wait(), 5)
    with pytest.raises(RequestError, match="has not ended"):
        await resume(helper, run_id)
    await helper.http.post(f"/v1/runs/{run_id}/cancel", json={})


async def test_two_who_resume_at_once_follow_one_run(helper: Stage, model: ModelServer) -> None:
    run_id = await failed(helper)
    model.play("{}", "Here I am.")
    assert await asyncio.gather(*(resume(helper, run_id) for _ in range(3))) == [0, 0, 0]
    assert len(model.requests) == 2
    assert len((await helper.http.get("/v1/runs")).json()["data"]) == 2


async def test_a_run_of_a_deleted_session_is_not_resumed(helper: Stage, model: ModelServer) -> None:
    run_id = await failed(helper)
    assert (await helper.http.delete("/memory/sessions/s")).status_code == 204
    model.play("{}", "Here I am.")
    with pytest.raises(RemoteError, match=r"HTTP 4(04|10)"):
        await resume(helper, run_id)
    assert model.requests == []
