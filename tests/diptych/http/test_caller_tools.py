"""Callers' own tools (`chat.callerTools: pass`) in chats and responses."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from support.doubles import ListeningModel
from support.face import Face, access_of, as_, face, openai_error, replicas
from support.redis_server import redis_server
from support.stack import call, frames, until

from diptych.access.grants import Right
from diptych.core.errors import NotAnswered
from diptych.core.run_settings import RunSettings
from diptych.http.guarded_runs import GuardedRuns
from diptych.manifest.settings import ChatConfig
from diptych.policy.rules import Policy, Rule
from diptych.runs import inputs, lease_keeper
from diptych.runs.definition import AgentDefinition

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PASS = ChatConfig(caller_tools="pass")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "f"}}]
QUESTION = {"role": "user", "content": "Which weather?"}
ASKED = {"messages": [QUESTION], "tools": TOOLS}
ECHO, PARIS, ROME = call("echo", text="a"), call("weather", city="Paris"), call("f")
BOTH = f"[{PARIS}, {ECHO}, {ROME}]"
SUNNY = ("sunny in Paris", "rain")


async def echo(text: str) -> str:
    return text


def native(*calls: tuple[str, Any]) -> dict[str, Any]:
    made = [
        {"id": f"c{n}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"tool_calls": [{"type": "function", **each} for each in made]}


def agent(**more: Any) -> Any:
    return face(*more.pop("replies", (BOTH, "{}", "Sun.")), **{
        "chat": PASS, "tools": {"echo": echo}, **more,
    })  # fmt: skip


async def ask(helper: Face, body: Mapping[str, Any], **headers: str) -> httpx.Response:
    return await helper.http.post(CHAT, json=body, headers=headers)


def answered(reply: httpx.Response) -> dict[str, Any]:
    """Give the choice of a completion, whole or put together from its chunks, with its usage."""
    assert reply.status_code == 200, reply.text
    if reply.headers["content-type"].startswith("application/json"):
        body = reply.json()
        return {**body["choices"][0], "usage": body["usage"], "id": body["id"]}
    *chunks, done = [json.loads(f.data) if f.data != "[DONE]" else None for f in frames(reply.text)]
    assert done is None
    message: dict[str, Any] = {"content": None}
    *parts, usage = chunks
    for chunk in parts:
        delta = chunk["choices"][0]["delta"]
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        message["tool_calls"] = [
            *message.get("tool_calls", []),
            *(
                {k: v for k, v in each.items() if k != "index"}
                for each in delta.get("tool_calls", ())
            ),
        ]
    return {
        "message": {k: v for k, v in message.items() if v != []},
        "finish_reason": parts[-1]["choices"][0]["finish_reason"],
        "usage": usage["usage"],
        "id": parts[0]["id"],
    }


def continued(choice: Mapping[str, Any], *results: str, **more: Any) -> dict[str, Any]:
    """Give the request that answers the calls of a reply."""
    calls = choice["message"]["tool_calls"]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    given = [
        {"role": "tool", "tool_call_id": each["id"], "content": result}
        for each, result in zip(calls, results, strict=False)
    ]
    return {**ASKED, "messages": [QUESTION, said, *given], **more}


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("how", "call_format"), [({}, "json"), (STREAMED, "native")], ids=["whole", "streamed"]
)
async def test_calls_of_the_callers_tools_end_a_reply_and_their_results_continue_the_run(
    how: dict[str, Any], call_format: Any
) -> None:
    first: Any = BOTH
    if call_format == "native":
        first = native(("weather", {"city": "Paris"}), ("echo", {"text": "a"}), ("f", {}))
    settings = RunSettings(action_format=call_format)
    replies = (first, "{}" if call_format == "json" else "Done.", "Sun.")
    definition = AgentDefinition("Be brief.", settings)
    async with agent(replies=replies, definition=definition) as helper:
        reply = await ask(helper, {**ASKED, **how})
        choice = answered(reply)
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        functions = [each["function"] for each in choice["message"]["tool_calls"]]
        assert [(f["name"], json.loads(f["arguments"])) for f in functions] == [
            ("weather", {"city": "Paris"}),
            ("f", {}),
        ]
        assert [name for name, _ in helper.house.tools.called] == ["echo"]
        run_id = reply.headers["X-Run-ID"]
        run = (await helper.http.get(f"/v1/runs/{run_id}")).json()
        assert run["status"] == "input-required"

        again = await ask(helper, continued(choice, *SUNNY, **how))
        last = answered(again)
        assert (last["message"]["content"], last["finish_reason"]) == ("Sun.", "stop")
        assert (again.headers["X-Run-ID"], again.headers["X-Session-ID"]) == (
            run_id,
            reply.headers["X-Session-ID"],
        )
        assert last["id"] != choice["id"]
        whole = (await helper.http.get(f"/v1/runs/{run_id}")).json()["usage"]
        used = [each["usage"] for each in (choice, last)]
        assert sum(u["completion_tokens"] for u in used) == whole["completion_tokens"]
        assert all(u["completion_tokens"] > 0 for u in used)
        told = str([message.content for message in helper.house.model.requests[-1]])
        assert told.index("sunny in Paris") < told.index("rain")
        assert len(await helper.house.runs.entries()) == 1


async def test_calls_wait_until_nothing_else_can_go_on() -> None:
    """The caller's calls come together, also those that need results of the agent's own."""
    slow, chain = asyncio.Event(), [
        {"id": "own", "tool": "wait"},
        {"id": "near", "tool": "weather", "arguments": {"city": "Paris"}},
        {"id": "far", "tool": "weather", "arguments": {"city": "${own}"}},
        {"id": "last", "tool": "echo", "arguments": {"text": "${near} & ${far}"}},
    ]  # fmt: skip

    async def wait() -> str:
        await slow.wait()
        return "Rome"

    tools = {"echo": echo, "wait": wait}
    async with agent(replies=(json.dumps(chain), "{}", "Sun."), tools=tools) as helper:
        reply = asyncio.create_task(ask(helper, ASKED))
        await until(lambda: helper.house.tools.called, 5)
        await asyncio.sleep(0.05)
        assert not reply.done()
        slow.set()
        choice = answered(await reply)
        cities = [each["function"]["arguments"] for each in choice["message"]["tool_calls"]]
        assert [json.loads(each)["city"] for each in cities] == ["Paris", "Rome"]
        last = answered(await ask(helper, continued(choice, *SUNNY)))
        assert last["finish_reason"] == "stop"
        assert helper.house.tools.called[-1] == ("echo", {"text": "sunny in Paris & rain"})


async def test_a_run_may_end_several_replies() -> None:
    async with agent(replies=(PARIS, ROME, "{}", "Sun.")) as helper:
        first = answered(await ask(helper, ASKED))
        request = continued(first, "sunny")
        second = answered(await ask(helper, request))
        assert [c["function"]["name"] for c in second["message"]["tool_calls"]] == ["f"]
        more = continued(second, "rain")["messages"][1:]
        request["messages"] += more
        assert answered(await ask(helper, request))["message"]["content"] == "Sun."
        more = [{"role": "assistant", "content": "Sun."}, {"role": "user", "content": "And now?"}]
        request["messages"] += more
        assert answered(await ask(helper, request))["finish_reason"] == "tool_calls"
        assert len(await helper.house.runs.entries()) == 2


# What a request may bring

MANY = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(65)]
LARGE = [{"type": "function", "function": {"name": "f", "description": "x" * 2**16}}]


async def test_tools_that_cannot_be_offered_are_refused() -> None:
    async with agent() as helper:
        for tools, param in (
            ([{"type": "function", "function": {"name": "echo"}}], "tools[0]"),
            ([{"type": "function", "function": {"name": "result__read"}}], "tools[0]"),
            (MANY, "tools"),
            (LARGE, "tools"),
            ([TOOLS[1], TOOLS[1]], "tools[1].function.name"),
            ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
            ([{"type": "web_search"}], "tools[0]"),
            (
                [{"type": "function", "function": {"name": "f", "parameters": {"type": "odd"}}}],
                "tools[0].function.parameters.type",
            ),
        ):
            reply = await ask(helper, {**ASKED, "tools": tools})
            assert openai_error(reply, 400)["param"] == param
            flat = [{**each.get("function", {}), "type": each["type"]} for each in tools]
            reply = await helper.http.post(RESPONSES, json={"input": "hi", "tools": flat})
            assert openai_error(reply, 400)["param"] == param.replace(".function", "")


async def test_other_fields_about_tools() -> None:
    async with agent(replies=("{}", "Sun.")) as helper:
        odd = await ask(helper, {**ASKED, "tool_choice": {"type": "allowed_tools"}})
        assert openai_error(odd, 400)["param"] == "tool_choice"
        old = await ask(helper, {"messages": [QUESTION], "functions": [{"name": "f"}]})
        assert openai_error(old, 400)["param"] == "functions"
        assert answered(await ask(helper, {**ASKED, "tool_choice": "none"}))
        assert "Tells the weather." not in str(helper.house.model.requests)
        assert answered(await ask(helper, {**ASKED, "tool_choice": "auto"}))
        assert "Tells the weather." in str(helper.house.model.requests[-2])


@pytest.mark.parametrize(("verdict", "names"), [("deny", ["f"]), ("ask", ["f", "weather"])])
async def test_policies_see_a_tool_of_the_server_caller(verdict: Any, names: list[str]) -> None:
    policy = Policy((Rule("tool", "caller__weather", verdict, reason="no"),))
    async with agent(policy=policy) as helper:
        reply = asyncio.create_task(ask(helper, ASKED))
        if verdict == "ask":
            await until(lambda: any(r.awaits_input for r in helper.house.store._runs.values()), 5)
            await asyncio.sleep(0.05)
            assert not reply.done()
            (entry,) = await helper.house.runs.entries()
            path = f"/v1/runs/{entry.run_id}/approvals/call_1_1"
            decided = await helper.http.post(path, json={"decision": "approve"})
            assert decided.status_code == 200, decided.text
        calls = answered(await reply)["message"]["tool_calls"]
        assert [each["function"]["name"] for each in calls] == names


# Results that no run waits for


async def test_results_that_no_run_waits_for_are_refused() -> None:
    async with agent() as helper:
        choice = answered(await ask(helper, ASKED))
        whole = continued(choice, *SUNNY)
        one = continued({"message": {"tool_calls": choice["message"]["tool_calls"][:1]}}, "sunny")
        missing = openai_error(await ask(helper, one), 400)
        assert missing["code"] == "missing_result"
        assert choice["message"]["tool_calls"][1]["id"] in missing["message"]
        for found, other in (("0a-", "0b-"), ("_1_1", "_1_2"), ("_1_1", "_7_7")):
            text = json.dumps(whole).replace(found, other)
            unknown = openai_error(await ask(helper, json.loads(text)), 404)
            assert unknown["code"] == "call_not_found"
        elsewhere = await ask(helper, whole, **{"X-Session-ID": "other"})
        assert openai_error(elsewhere, 400)["param"] == "session_id"
        assert answered(await ask(helper, whole))["finish_reason"] == "stop"
        changed = await ask(helper, continued(choice, "rain", "rain"))
        assert openai_error(changed, 400)["code"] == "call_answered"
        assert len(await helper.house.runs.entries()) == 1


async def test_calls_are_bound_to_the_subject_that_they_were_given_to() -> None:
    rights = {"ada": {Right.ASK}, "bob": {Right.ASK}, "reader": {Right.READ}}
    ada, bob, reader = map(as_, rights)
    async with agent(access=access_of(rights)) as helper:
        choice = answered(await ask(helper, ASKED, **ada))
        for other in (bob, reader):
            status = 404 if other is bob else 403
            refused = await ask(helper, continued(choice, *SUNNY), **other)
            assert refused.status_code == status
            assert "sunny" not in refused.text
            path = f"/v1/runs/{choice['id']}/inputs/call_1_1"
            body = {"action": "accept", "content": {"output": "x"}}
            assert (await helper.http.post(path, json=body, headers=other)).status_code == status
        assert answered(await ask(helper, continued(choice, *SUNNY), **ada))


async def test_a_late_result_is_refused_and_the_run_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "INPUT_SECONDS", 0.2)
    async with agent(replies=(PARIS, "{}", "Nobody knows.")) as helper:
        reply = await ask(helper, ASKED)
        run_id = reply.headers["X-Run-ID"]
        helper.clock.seconds += 1
        await until(
            lambda: helper.house.store._runs[run_id].records[-1].event_type == "completed", 5
        )
        told = str(helper.house.model.requests[-1])
        assert "unavailable: the caller did not answer" in told
        late = openai_error(await ask(helper, continued(answered(reply), "sunny")), 400)
        assert late["code"] == "call_expired"
        assert run_id in late["message"]


async def test_the_same_results_again_are_the_same_request() -> None:
    async with agent() as helper:
        first = await ask(helper, ASKED, **{"Idempotency-Key": "a"})
        again = await ask(helper, ASKED, **{"Idempotency-Key": "a"})
        assert again.content == first.content
        whole = continued(answered(first), *SUNNY, **STREAMED)
        last = await ask(helper, whole)
        assert answered(last)["message"]["content"] == "Sun."
        assert (await ask(helper, whole)).content == last.content
        assert (await ask(helper, ASKED, **{"Idempotency-Key": "a"})).content == first.content


async def test_a_client_without_keys_may_try_again_after_a_part_of_its_results_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenAI's libraries do: the connection breaks if the process dies between two results."""
    taken: list[str] = []

    async def answer_call(runs: GuardedRuns, run_id: str, call_id: str, *given: str) -> None:
        if taken:
            raise NotAnswered("the process dies")
        taken.append(call_id)
        await real(runs, run_id, call_id, *given)

    real = GuardedRuns.answer_call
    async with agent() as helper:
        whole = continued(answered(await ask(helper, ASKED)), *SUNNY)
        with monkeypatch.context() as dying:
            dying.setattr(GuardedRuns, "answer_call", answer_call)
            assert (await ask(helper, whole)).status_code == 503
        for _ in range(2):
            assert answered(await ask(helper, whole))["message"]["content"] == "Sun."


@pytest.mark.parametrize(
    "more",
    [
        {"tools": TOOLS[:1]},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "system", "content": "You are another."}]},
    ],
)
async def test_a_request_for_something_else_is_a_run_of_its_own(more: dict[str, Any]) -> None:
    """As handoffs of OpenAI's agents SDK are."""
    async with agent(replies=(PARIS, "{}", "Sun.")) as helper:
        reply = await ask(helper, ASKED)
        body = continued(answered(reply), "sunny")
        body = {**body, **more, "messages": [*more.get("messages", ()), *body["messages"]]}
        other = await ask(helper, body)
        assert other.headers["X-Run-ID"] != reply.headers["X-Run-ID"]
        old = (await helper.http.get(f"/v1/runs/{reply.headers['X-Run-ID']}")).json()
        assert old["status"] == "aborted"
        assert "sunny" in str(helper.house.model.requests[-1])


# Replicas


@pytest.mark.parametrize(("dies", "over_redis"), [(False, False), (True, True)])
async def test_results_are_given_at_any_replica(
    *, dies: bool, over_redis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "TAKEOVER_SECONDS", 0.05)
    models = [ListeningModel(BOTH, "{}", "Sun.") for _ in range(2)]
    async with AsyncExitStack() as stack:
        url = stack.enter_context(redis_server()).url if over_redis else ""
        replicated = replicas(*models, tools={"echo": echo}, redis_url=url, chat=PASS)
        owner, other = await stack.enter_async_context(replicated)
        choice = answered(await ask(owner, ASKED))
        if dies:
            await owner.house.runs.close()
        last = answered(await ask(other, continued(choice, *SUNNY)))
        assert last["message"]["content"] == "Sun."
        called = [*owner.house.tools.called, *other.house.tools.called]
        assert [name for name, _ in called] == ["echo"]


# Responses


FLAT = [{"type": "function", **each["function"]} for each in TOOLS]


@pytest.mark.parametrize("is_chained", [True, False])
async def test_a_response_ends_with_calls_and_the_next_one_continues_its_run(
    *, is_chained: bool
) -> None:
    async with agent() as helper:
        asked = {"role": "user", "content": "Which weather?"}
        body = {"input": [asked], "tools": FLAT, "instructions": "Short."}
        first = (await helper.http.post(RESPONSES, json=body)).json()
        assert first["status"] == "completed"
        assert [(item["name"], item["arguments"]) for item in first["output"]] == [
            ("weather", '{"city":"Paris"}'),
            ("f", "{}"),
        ]
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": result}
            for item, result in zip(first["output"], SUNNY, strict=True)
        ]
        if is_chained:
            body |= {"input": outputs, "previous_response_id": first["id"]}
        else:
            body |= {"input": [asked, *first["output"], *outputs]}
        second = (await helper.http.post(RESPONSES, json=body)).json()
        assert second["output"][0]["content"][0]["text"] == "Sun."
        assert second["previous_response_id"] == first["id"]
        assert first["usage"]["output_tokens"] + second["usage"]["output_tokens"] == 1 + 1 + sum(
            len(reply.split(" ")) for reply in (BOTH,)
        )
        path = f"{RESPONSES}/{second['id']}"
        for each in (first, second):
            kept = (await helper.http.get(f"{RESPONSES}/{each['id']}")).json()
            assert kept == each
        items = (await helper.http.get(f"{path}/input_items?order=asc")).json()["data"]
        assert [item["output"] for item in items] == [*SUNNY]
        events = (await helper.http.get(f"{path}?stream=true")).text
        ended = json.loads(frames(events)[-1].data)
        assert ended["response"] == second
        third = {"input": "And now?", "previous_response_id": second["id"], "tools": FLAT}
        assert (await helper.http.post(RESPONSES, json=third)).json()["output"][0]["name"]
        assert (await helper.http.get(f"{path}9")).status_code == 404


async def test_a_response_that_waits_is_not_continued_without_its_outputs() -> None:
    async with agent() as helper:
        body = {"input": "hi", "tools": FLAT}
        first = (await helper.http.post(RESPONSES, json=body)).json()
        more = {"input": "And?", "previous_response_id": first["id"]}
        error = openai_error(await helper.http.post(RESPONSES, json=more), 400)
        assert error["code"] == "missing_result"
        assert first["output"][0]["call_id"] in error["message"]


async def test_a_response_streams_its_calls() -> None:
    async with agent() as helper:
        body = {"input": "hi", "tools": FLAT, "stream": True}
        told = [
            json.loads(f.data) for f in frames((await helper.http.post(RESPONSES, json=body)).text)
        ]
        kinds = [each["type"].removeprefix("response.") for each in told]
        one = [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ]
        assert kinds == ["created", "in_progress", *one, *one, "completed"]
        assert [each["sequence_number"] for each in told] == [*range(len(told))]
