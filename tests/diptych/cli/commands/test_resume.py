"""`diptych resume`: what it shows, and its exit codes, against an agent that is served."""

from collections.abc import AsyncIterator

import pytest
from support.command_line import diptych
from support.model_server import ModelServer, model_server, status
from support.stack import Stage, stage

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


async def test_a_failed_run_goes_on_and_its_end_is_the_exit_code(
    helper: Stage, model: ModelServer
) -> None:
    run_id = await failed(helper)
    model.play("{}", "Here I am.")
    code, out, _ = await diptych("resume", run_id, "--at", helper.url)
    assert (code, out.strip()) == (0, "Here I am.")


async def test_a_run_that_cannot_be_resumed_is_usage_and_one_that_is_not_there_an_error(
    helper: Stage, model: ModelServer
) -> None:
    run_id = await failed(helper)
    at = ("--at", helper.url)
    code, _, err = await diptych("resume", run_id, "--max-steps", "99", *at)
    assert (code, "at most 5" in err) == (2, True)
    code, _, err = await diptych("resume", "run-x", *at)
    assert (code, "HTTP 404" in err) == (1, True)
    model.play("{}", "Done.")
    done = await helper.start("Hi")
    await helper.ended(done)
    code, out, err = await diptych("resume", done, *at)
    assert (code, out) == (2, "")
    assert "only a run that failed or was aborted can be resumed" in err
