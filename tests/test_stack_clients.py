"""Client libraries of others get typed outputs from an agent that is served."""

import json

import pytest
from support.clients import run_client
from support.stack import stage

CITY = {"name": "Paris", "population": 2_100_000}
RIGHT = json.dumps(CITY)
WRONG = json.dumps({"name": "Paris"})
WAYS = {
    "pydantic-ai": 9,
    "litellm": 4,
    "llama-index": 6,
    "vercel-ai": 9,
}


async def look_up(country: str) -> str:
    """Look something up."""
    return f"The capital of {country} is Paris."


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
