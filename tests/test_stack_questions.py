"""Questions of tool servers: asked and answered at the top, at any depth."""

from typing import Annotated, Any

import pytest
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel
from support.stack import Stage, call, tool_server, until
from support.trees import chain, said

BOOKED: list[str] = []


class Seat(BaseModel):
    seat: str


async def which() -> Elicit[Seat]:
    return Elicit("Which seat?", Seat)


async def book(to: str, seat: Annotated[Seat, Resolve(which)]) -> str:
    """Book a seat."""
    BOOKED.append(f"{to} {seat.seat}")
    return f"booked {seat.seat} to {to}"


BOOKING = [said(call("book", to="Rome")), said("{}"), said("Leaf.")]


async def asked_at(top: Stage, run_id: str) -> Any:
    """Wait until a run asks, and return its question."""

    async def asks() -> bool:
        return (await top.run(run_id))["status"] == "input-required"

    await until(asks)
    (question,) = (await top.http.get("/v1/inputs")).json()["data"]
    return question


async def answer(top: Stage, run_id: str, call_id: str, **body: Any) -> Any:
    return await top.http.post(f"/v1/runs/{run_id}/inputs/{call_id}", json=body)


@pytest.mark.parametrize("depth", [1, 4])
async def test_a_question_of_a_tool_is_answered_at_the_top(depth: int) -> None:
    BOOKED.clear()
    call_id = ".".join(["call_1_1"] * depth)
    async with tool_server(book) as box, chain(*BOOKING, depth=depth, tools=(box,)) as served:
        top, leaf = served[0], served[-1]
        run_id = await top.start()
        question = await asked_at(top, run_id)
        assert (question["call_id"], question["kind"]) == (call_id, "form")
        assert question["message"] == "Which seat?"
        assert question["schema"]["required"] == ["seat"]
        wrong = await answer(top, run_id, call_id, action="accept", content={"seat": 7})
        assert wrong.status_code in {400, 422}
        given = await answer(top, run_id, call_id, action="accept", content={"seat": "12-canary"})
        assert given.status_code == 200, given.text
        assert (await top.ended(run_id))["status"] == "completed"
        assert BOOKED == ["Rome 12-canary"]
        again = await answer(top, run_id, call_id, action="decline")
        assert again.status_code == 409
        for stage in served[:-1]:
            (run,) = (await stage.http.get("/v1/runs")).json()["data"]
            events = (await stage.http.get(f"/v1/runs/{run['id']}/events")).text
            assert "canary" not in events.replace("booked 12-canary to Rome", "")
        assert "tool_result" in await leaf.facts()


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_declined_question_is_a_result_that_the_model_reads(depth: int) -> None:
    BOOKED.clear()
    async with tool_server(book) as box, chain(*BOOKING, depth=depth, tools=(box,)) as served:
        run_id = await served[0].start()
        question = await asked_at(served[0], run_id)
        await answer(served[0], run_id, question["call_id"], action="decline")
        assert (await served[0].ended(run_id))["status"] == "completed"
        assert BOOKED == []
        assert "tool_error" in await served[-1].facts()
