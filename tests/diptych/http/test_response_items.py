"""The items of responses: named by their ids in an input, and listed as what a request brought."""

from typing import Any

import pytest
from openai.types.responses import ResponseItemList
from support.face import Face, face, openai_error

from diptych.core.events import RunRequested
from diptych.http.responses import items as item_references

PATH = "/v1/responses"
CITY = {"type": "function", "name": "City", "parameters": {"properties": {"n": {"type": "string"}}}}
FORCED = {"tools": [CITY], "tool_choice": {"type": "function", "name": "City"}}
HI, MORE = {"role": "user", "content": "hi"}, {"role": "user", "content": "more"}


async def created(helper: Face, given: Any = "hi", **fields: Any) -> dict[str, Any]:
    reply = await helper.http.post(PATH, json={"input": given, **fields})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def refused(helper: Face, given: Any, status: int) -> Any:
    return openai_error(await helper.http.post(PATH, json={"input": given}), status)


async def said(helper: Face, response: dict[str, Any]) -> list[tuple[str, str]]:
    """Give what a response's request said, role by role, as the run has it."""
    first = (await helper.house.events(response["id"]))[0]
    assert isinstance(first, RunRequested)
    return [*((m.role, m.content) for m in first.earlier), ("user", first.message)]


def named(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "item_reference", "id": item["id"]}


async def listed(helper: Face, response: dict[str, Any], query: str = "") -> Any:
    reply = await helper.http.get(f"{PATH}/{response['id']}/input_items{query}")
    assert reply.status_code == 200, reply.text
    ResponseItemList.model_validate(reply.json(), strict=True)
    return reply.json()


# References


async def test_an_item_is_named_by_its_id_in_place_of_what_it_says() -> None:
    async with face("{}", "<think>Be kind.</think>Hello!") as helper:
        first = await created(helper)
        reasoning, message = first["output"]
        given = [HI, named(reasoning), named(message), MORE]
        after = await created(helper, given)
        expected = [("user", "hi"), ("assistant", "Hello!"), ("user", "more")]
        assert await said(helper, after) == expected
        (asked, *_) = (await listed(helper, after, "?order=asc"))["data"]
        again = await created(helper, [named(asked), {"id": message["id"]}, MORE])
        assert await said(helper, again) == expected


async def test_a_call_is_named_by_its_id_and_its_output_follows() -> None:
    async with face("{}", '{"n": "Paris"}') as helper:
        first = await created(helper, **FORCED)
        (call,) = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "yes"}
        after = await created(helper, [HI, named(call), output])
        (_, called, result, _) = await said(helper, after)
        assert (called[0], result) == ("assistant", ("tool", "yes"))
        error = await refused(helper, [HI, named(call), MORE], 400)
        assert error["param"] == "input[1]"
        assert call["call_id"][:20] in error["message"]


async def test_an_item_that_there_is_not_is_refused_by_its_place() -> None:
    async with face() as helper:
        for item_id in ("msg_1", "msg_{run}_1", "msg_{run}_in1", "x" * 9999, None):
            first = await created(helper)
            if isinstance(item_id, str):
                item_id = item_id.format(run=first["id"])
            error = await refused(helper, [HI, {"type": "item_reference", "id": item_id}], 404)
            assert (error["code"], error["param"]) == ("item_not_found", "input[1].id")
            assert "send the item itself" in error["message"]


async def test_items_of_many_responses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_references, "MAX_REFERRED", 1)
    async with face() as helper:
        one, two = [(await created(helper))["output"][0] for _ in range(2)]
        await created(helper, [named(one), named(one), MORE])
        error = await refused(helper, [named(one), named(two), MORE], 400)
        assert error["param"] == "input[1].id"
        assert "previous_response_id" in error["message"]


# The input


async def test_the_input_of_a_response_is_listed_as_openais_client_reads_it() -> None:
    image = {"type": "input_image", "image_url": "https://a.example/a.png", "detail": "low"}
    paper = {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"}
    given = [
        {"role": "developer", "content": "Short."},
        {"role": "user", "content": "one"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}, image, paper]},
    ]
    async with face(inputs=("image", "file")) as helper:
        body = await created(helper, given)
        whole = await listed(helper, body, "?order=asc")
        assert not whole["has_more"]
        data = whole["data"]
        assert [item.get("role", item["type"]) for item in data] == [
            "user",
            "function_call",
            "function_call_output",
            "assistant",
            "user",
        ]
        assert data[4]["content"] == [{"type": "input_text", "text": "three"}, image, paper]
        assert (whole["first_id"], whole["last_id"]) == (data[0]["id"], data[4]["id"])
        assert (await listed(helper, body))["data"] == data[::-1]
        page = await listed(helper, body, f"?limit=2&after={data[4]['id']}")
        assert (page["data"], page["has_more"]) == ([data[3], data[2]], True)
        rest = await listed(helper, body, f"?limit=3&after={data[3]['id']}")
        assert (rest["data"], rest["has_more"]) == ([data[2], data[1], data[0]], False)
        path = f"{PATH}/{body['id']}/input_items"
        for query, param in (("after=x", "after"), ("limit=0", "limit"), ("order=x", "order")):
            error = openai_error(await helper.http.get(f"{path}?{query}"), 400)
            assert error["param"] == param
        openai_error(await helper.http.get(f"{PATH}/run-x/input_items"), 404)


async def test_of_a_known_session_what_was_new_is_listed_and_of_results_no_words_of_ours() -> None:
    async with face("{}", '{"n": "Paris"}') as helper:
        first = await created(helper, **FORCED)
        second = await created(helper, "more", previous_response_id=(await created(helper))["id"])
        assert [i["content"][0]["text"] for i in (await listed(helper, second))["data"]] == ["more"]
        call_id = first["output"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "yes"}
        third = await created(helper, [output], previous_response_id=first["id"])
        assert "yes" in str(told := (await listed(helper, third))["data"])
        assert "Go on" not in str(told)


# What is kept with a run
