"""A new owner in the middle of an answer: of a direct one, of one asked for again, of a repair."""

import asyncio

import pytest
from support.doubles import facts, types
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import CALL, SLOWLY, Counted, begin, content, text_of, virtually

from diptych.core.run_settings import RunSettings
from diptych.runs.definition import AgentDefinition

DIRECT = AgentDefinition("", RunSettings(answer_mode="direct"))
CITY = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
BY_SCHEMA = AgentDefinition("", RunSettings(output_schema=CITY))
LATE = {"delay_ms": 5000}


async def taken_over(script, other, *, after, **options):
    """Kill an owner after so many seconds; give what is told of the run, and the next owner."""
    store = SharedStore()
    a = replica(store, "a", *script, **options)
    b = replica(store, "b", *other, **options)
    run_id = await begin(a)
    await asyncio.sleep(after)
    a.kill()
    return await told(b, run_id), b


@virtually
async def test_a_direct_answer_that_turns_out_to_be_a_call_is_void_and_the_call_is_made():
    charge = Counted()
    script, other = [SLOWLY], [CALL, "Done."]
    options = {"definition": DIRECT, "tools": charge.tools}
    heard, _ = await taken_over(script, other, after=2.5, **options)
    assert facts(heard) == [
        *("user_message", "owner_changed", "answer_reset"),
        *("tool_call", "tool_result", "agent_response"),
    ]
    assert text_of(heard) == "Done."
    assert charge.count == 1


@pytest.mark.parametrize(
    "first", ["{}", CALL, f"Let me see.\n{CALL}"], ids=["a no-op", "a call", "after prose"]
)
@virtually
async def test_an_answer_that_is_asked_for_once_more_is_so_by_the_next_owner(first):
    charge = Counted()
    script = ["{}", first, {"content": "Hello.", **LATE}]
    heard, b = await taken_over(script, script, after=2, tools=charge.tools)
    assert text_of(heard) == "Hello."
    assert content(heard, "agent_response") == ["Hello."]
    assert len(b.model.requests) == 1
    assert "Nothing can be called any more" in b.model.requests[0][-1].content
    assert charge.count == 0


@pytest.mark.parametrize("after", [2, 7, 12])
@virtually
async def test_a_repair_goes_on_where_it_was(after):
    script = ["{}", *({"content": text, **LATE} for text in ("x", '{"city": 1}', '{"city": "B"}'))]
    heard, b = await taken_over(script, script, after=after, definition=BY_SCHEMA)
    assert text_of(heard) == '{"city": "B"}'
    assert types(heard).count("model_reply") == 4
    assert len(b.model.requests) == 3 - (after - 2) // 5
