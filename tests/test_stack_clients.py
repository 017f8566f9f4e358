"""Client libraries of others talk to an agent that is served: typed outputs, A2A 0.3."""

import json

import pytest
from support.clients import run_client
from support.stack import stage

pytestmark = pytest.mark.long

CITY = {"name": "Paris", "population": 2_100_000}
RIGHT = json.dumps(CITY)
WAYS = {
    "pydantic-ai": 18,  # over both APIs
    "litellm": 4,
    "vercel-ai": 9,
}


@pytest.mark.parametrize("library", WAYS)
async def test_a_client_library_gets_typed_outputs_in_all_its_ways(library: str) -> None:
    async with stage("{}", RIGHT) as helper:
        found = await run_client(library, helper.url)
    assert found == dict.fromkeys(found, CITY)
    assert len(found) == WAYS[library]


async def test_pydantic_ai_gets_one_of_several_output_types() -> None:
    city = {"name": "Paris", "country": {"name": "France"}}
    answer = json.dumps({"form": "final_result_City", "value": city})
    async with stage("{}", answer) as helper:
        found = await run_client("pydantic-ai", helper.url, "union")
    assert found == [["City", city]] * 2


async def test_the_a2a_client_of_0_3_talks_over_both_bindings() -> None:
    answer = "Grüße 🤝 to you."
    async with stage("{}", {"content": answer, "chunk_ms": 20}) as helper:
        found = await run_client("a2a-0.3", helper.url, "tasks")
    ways = [f"{binding}{how}" for binding in ("JSONRPC", "HTTP+JSON") for how in ("", ", streamed")]
    for way in ways:
        refused = ["A2AClientHTTPError" if "HTTP" in way else "A2AClientJSONRPCError"] * 2
        assert found[way] == {
            "state": "completed",
            "answers": [answer] * 3,
            "is_one_context": True,
            "is_streamed": "streamed" in way,
            "refused": refused,
        }
    assert set(found) == set(ways)
