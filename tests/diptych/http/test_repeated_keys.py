"""Looking for keys that stand twice: against an independent reader, and what it costs others."""

import asyncio
import json
import sys
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from diptych.core.errors import InvalidRequest
from diptych.http.bodies import DecisionBody, read_body
from diptych.http.repeated_keys import repeated_key_problem

MEBIBYTE = 2**20
LONG = 70_000  # bytes, over which a repeated key is refused without its name
DEPTH = 300  # deeper than orjson writes


def large(item: str) -> str:
    """Give a list of as many of an item as a body holds."""
    return f"[{','.join([item] * ((MEBIBYTE - 4096) // (len(item) + 1)))}]"


def deep(inner: str) -> str:
    return '{"a":' * DEPTH + inner + "}" * DEPTH


def found_by_pairs(raw: bytes) -> bool:
    """Whether a key stands twice, by another way: each object's pairs are looked at."""
    found = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        found.append(len({key for key, _ in pairs}) < len(pairs))

    json.loads(raw, object_pairs_hook=look)
    return any(found)


def escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"'


LETTERS = st.text(':\\"u003aAx{}[],\u00e9', max_size=4)
STRINGS = LETTERS.flatmap(
    lambda text: st.sampled_from(
        [json.dumps(text), json.dumps(text, ensure_ascii=False), escaped(text)]
    )
) | st.sampled_from([r'"\u003A"', r'"\\u003a"', r'"\\\u003a"', r'"\u003a\\"', '"a"'])
SCALARS = STRINGS | st.sampled_from(["0", "-1.5e9", "null", "true", str(2**70), "1e300"])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(STRINGS, st.sampled_from([":", " : "]), inner).map("".join)
    return st.lists(members, max_size=4).map(lambda all_of: "{" + ",".join(all_of) + "}")


def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=4).map(lambda all_of: "[" + ", ".join(all_of) + "]")


BODIES = st.recursive(SCALARS, lambda inner: objects(inner) | lists(inner), max_leaves=12)


@given(text=BODIES, nested=st.sampled_from([0, DEPTH]), padded=st.booleans())
@settings(max_examples=600, deadline=None)
def test_what_is_refused_is_what_an_independent_reader_finds(
    text: str, nested: int, padded: bool
) -> None:
    """In short bodies and long ones, flat and deeply nested, of either reader."""
    raw = ("[" * nested + text + "]" * nested + " " * (LONG if padded else 0)).encode()
    for read in (orjson.loads, json.loads):
        problem = asyncio.run(repeated_key_problem(raw, read(raw)))
        assert (problem is not None) == found_by_pairs(raw), problem


async def steps_of(work: Coroutine[Any, Any, Any]) -> int:
    """Count the lines of Python that are executed until a coroutine has ended."""
    count = 0

    def trace(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await work
    finally:
        sys.settrace(before)
    return count


ITEMS = ["0", '""', "{}", '{"a":0}', '{"\\u003a":":"}']


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("last", ["0", '{"b":0,"b":0}'])
async def test_a_large_body_of_small_values_takes_no_python_for_each(item: str, last: str) -> None:
    raw = f'{{"a":[{large(item)},{last}]}}'.encode()
    body = orjson.loads(raw)
    assert await steps_of(repeated_key_problem(raw, body)) < 50
    problem = await repeated_key_problem(raw, body)
    assert problem == ("a key appears twice in one object" if last != "0" else None)


async def turns_beside(work: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """Count how often others get their turn on the loop until a coroutine has ended."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns, task.exception() or task.result()


async def test_others_are_served_while_a_large_and_deep_body_is_looked_at() -> None:
    raw = deep(large("0")).encode()
    turns, problem = await turns_beside(repeated_key_problem(raw, orjson.loads(raw)))
    assert problem is None
    assert turns > 40


async def test_others_are_served_while_a_large_decision_is_read_strictly() -> None:
    raw = f'{{"decision":"edit","arguments":{{"a":{large("0")},"b":1,"b":2}}}}'.encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    request = Request({"type": "http", "headers": []}, receive)
    turns, problem = await turns_beside(read_body(request, DecisionBody, strictly=True))
    assert isinstance(problem, InvalidRequest)
    assert 'the key "b" appears twice' in str(problem)
    assert turns > 3
