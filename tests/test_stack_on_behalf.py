"""Agents that ask others on somebody's behalf: who is recorded, who is let in, what goes on."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.model_server import model_server
from support.stack import agent, box, call, until

from diptych.a2a.extension import URI
from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.settings import AccessConfig, AgentConfig, PeerConfig
from diptych.policy.rules import Policy, Rule
from diptych.serve.hosted_agent import HostedAgent
from diptych.serve.process import ListenAddress, Sockets, serve_agents

ADA, FRONT = "key-of-ada-canary-5Tq8", "key-of-front-canary-2Wn7"


def access(**keys: str) -> AccessConfig:
    grantees = tuple(Grantee("key", name) for name in keys)
    return AccessConfig(
        keys={name: (lambda key=key: key) for name, key in keys.items()},  # type: ignore[misc]
        grants=(Grant(grantees, frozenset({Right.ASK})),),
    )


@asynccontextmanager
async def pair(
    *, shares_context: bool = True, **front: Any
) -> AsyncIterator[Sequence[HostedAgent]]:
    """Serve `front`, which ada asks, and `back`, which front asks; each knows the other's key."""
    sockets = Sockets(ListenAddress("0.0.0.0", 0), 2)
    peer = PeerConfig("back", sockets.urls[1], shares_context, token=lambda: FRONT)
    delegates = '{"agent": "back", "task": "look it up"}'
    configs: list[AgentConfig] = [
        agent(delegates, "{}", "Done.", name="front", agents=(peer,), access=access(ada=ADA)),
        agent("{}", "Found.", name="back", access=access(front=FRONT)),
    ]
    configs[0] = replace(configs[0], **front)
    async with serve_agents(configs, sockets) as agents:
        for each in agents:
            await each.wait_for_first_connect()
        yield agents


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def asked(http: httpx.AsyncClient, served: HostedAgent, key: str) -> dict[str, Any]:
    """Give what the record says of the first message to an agent."""
    found = await http.get(f"{served.url}/memory/events", headers=bearer(key))
    first = next(e for e in found.json()["events"] if e["event_type"] == "user_message")
    metadata: dict[str, Any] = first["metadata"]
    return metadata


@pytest.mark.parametrize("shares_context", [True, False])
async def test_an_agent_says_for_whom_it_works_and_the_other_records_both(
    shares_context: bool,
) -> None:
    async with (
        pair(shares_context=shares_context) as (front, back),
        httpx.AsyncClient(timeout=20) as http,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        reply = await http.post(f"{front.url}/v1/chat/completions", json=body, headers=bearer(ADA))
        assert reply.json()["choices"][0]["message"]["content"] == "Done."
        of_front, of_back = await asked(http, front, ADA), await asked(http, back, FRONT)
    assert (of_front["subject"], of_front.get("caller")) == ("key:ada", None)
    expected = ("key:ada", "key:front") if shares_context else ("key:front", None)
    assert (of_back["subject"], of_back.get("caller")) == expected


def sent(text: str, **about: Any) -> dict[str, Any]:
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    if about:
        message |= {"extensions": [URI], "metadata": {URI: {"path": [], **about}}}
    params = {"message": message}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}


async def test_a_name_opens_nothing_and_a_malformed_one_is_refused() -> None:
    headers = {"A2A-Version": "1.0"}
    async with pair() as (_, back), httpx.AsyncClient(timeout=20) as http:
        url = f"{back.url}/a2a"
        forged = bearer("key-of-nobody") | headers
        assert (await http.post(url, json=sent("a", subject="key:front"), headers=forged)
                ).status_code == 401  # fmt: skip
        ours = bearer(FRONT) | headers
        for wrong in ("a\nb", 5, "x" * 600):
            answer = (await http.post(url, json=sent("b", subject=wrong), headers=ours)).json()
            assert "is used wrongly: `subject`: " in answer["error"]["message"]
        done = (await http.post(url, json=sent("c", subject="user:root"), headers=ours)).json()
        assert done["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        listed = await http.get(f"{back.url}/v1/runs", headers=bearer(FRONT))
        assert len(listed.json()["data"]) == 1  # in front's own sessions, not in root's
        about = await asked(http, back, FRONT)
        assert (about["subject"], about["caller"]) == ("user:root", "key:front")


async def test_the_caller_s_credential_goes_nowhere() -> None:
    async with model_server("{}", "Done.") as model:
        config = agent(model=model, name="front").model
        async with (
            pair(model=config, mock_responses=None) as (front, _),
            httpx.AsyncClient(timeout=20) as http,
        ):
            headers = bearer(ADA) | {"X-Secret": ADA, "traceparent": ADA}
            body = {"messages": [{"role": "user", "content": "hi"}], "user": ADA}
            url = f"{front.url}/v1/chat/completions"
            assert (await http.post(url, json=body, headers=headers)).status_code == 200
            events = await http.get(f"{front.url}/memory/events", headers=bearer(ADA))
        assert ADA not in str(model.headers) + str(model.requests) + events.text


LEAD = "key-of-lead-canary-8Rb4"
BOTH = frozenset({Right.ASK, Right.APPROVE})


async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("front_lets_own", [False, True])
async def test_who_began_a_run_does_not_decide_on_its_calls_below_by_way_of_an_agent(
    front_lets_own: bool,
) -> None:
    """Not even where the agent at the top would let it: the one that has the call asks for whom."""
    sockets = Sockets(ListenAddress("0.0.0.0", 0), 2)
    peer = PeerConfig("back", sockets.urls[1], share_context=True, token=lambda: FRONT)
    upper = replace(
        access(ada=ADA, lead=LEAD),
        grants=(Grant((Grantee("key", "ada"), Grantee("key", "lead")), BOTH),),
        approve_own=front_lets_own,
    )
    lower = replace(access(front=FRONT), grants=(Grant((Grantee("key", "front"),), BOTH),))
    delegates = '{"agent": "back", "task": "pay"}'
    ask = Policy((Rule("tool", "pay", "ask"),))
    configs = [
        agent(delegates, "{}", "Done.", name="front", agents=(peer,), access=upper),
        agent(call("pay"), "{}", "x", name="back", access=lower, tools=(box(pay),), policy=ask),
    ]
    async with serve_agents(configs, sockets) as agents, httpx.AsyncClient(timeout=30) as http:
        for each in agents:
            await each.wait_for_first_connect()
        base = f"{agents[0].url}/v1/runs"
        begun = await http.post(base, json={"input": "hi"}, headers=bearer(ADA))
        path = f"{base}/{begun.json()['id']}"

        async def waits() -> bool:
            run = (await http.get(path, headers=bearer(ADA))).json()
            return bool(run["status"] == "input-required")

        await until(waits, 20)
        decision = {"decision": "approve"}
        where = f"{path}/approvals/call_1_1.call_1_1"
        own = await http.post(where, json=decision, headers=bearer(ADA))
        assert own.status_code == 403, own.text
        assert ("back" in own.text) is front_lets_own
        assert (await http.get(path, headers=bearer(ADA))).json()["status"] == "input-required"
