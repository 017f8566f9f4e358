"""Push notifications, of a served agent, to a server of the test's own."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskPushNotificationConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.in_process_server import in_process
from support.stack import BEYOND, Stage, agent, box, call, stage, until

from diptych.a2a import push
from diptych.access.grants import Grant, Grantee, Right
from diptych.access.signatures import verify
from diptych.manifest.settings import AccessConfig, ChatConfig, DataFolder
from diptych.models.connection import open_http_session
from diptych.policy.rules import Policy, Rule
from diptych.ports.entries import Push
from diptych.serve import hosted_agent
from diptych.serve.hosted_agent import HostedAgent

HEADERS = {"A2A-Version": "1.0"}
TOKEN, PASSWORD = "a-token", "a-password"
SECRETS = {"token": TOKEN, "authentication": {"scheme": "Bearer", "credentials": PASSWORD}}
WORKING, WAITS = "TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"
REPLIES = (call("publish"), "{}", "Published.")


@dataclass
class Inbox:
    """Takes notifications, but answers with the `statuses` first."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def take(self, request: Request) -> Response:
        self.requests.append((dict(request.headers), await request.body()))
        status = self.statuses.pop(0) if self.statuses else 204
        return Response(status_code=status, headers={"Location": "/elsewhere"})

    @property
    def states(self) -> list[str]:
        """What was taken, in order: states, and at the end the task's."""
        bodies = (json.loads(body) for _, body in self.requests)
        return [
            next(f"{kind} {each['status']['state']}" for kind, each in body.items())
            for body in bodies
        ]

    async def wait_for(self, count: int) -> None:
        await until(lambda: len(self.requests) >= count, 10)


@asynccontextmanager
async def inbox(*statuses: int) -> AsyncIterator[Inbox]:
    taker = Inbox(statuses=list(statuses))
    async with in_process(Starlette(routes=[Route("/in", taker.take, methods=["POST"])])) as server:
        taker.url = f"{server.url}/in"
        yield taker


def publish() -> str:
    return "done"


@asynccontextmanager
async def publisher(**fields: Any) -> AsyncIterator[Stage]:
    """Serve an agent that waits for approval before it publishes."""
    async with stage(
        *REPLIES,
        tools=(box(publish),),
        policy=Policy((Rule("tool", "publish", "ask"),)),
        chat=ChatConfig(webhook_hosts=("127.0.0.1",)),
        **fields,
    ) as helper:
        yield helper


async def ask(helper: Stage, method: str, **params: Any) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply: dict[str, Any] = (await helper.http.post("/a2a", json=request, headers=HEADERS)).json()
    return reply


async def waiting_task(helper: Stage, config: dict[str, Any] | None = None) -> str:
    """Begin a task, and return its id once it waits for approval."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    configuration = {"taskPushNotificationConfig": config} if config else {}
    reply = await ask(helper, "SendMessage", message=message, configuration=configuration)
    assert reply["result"]["task"]["status"]["state"] == WAITS, reply
    return str(reply["result"]["task"]["id"])


async def approve(helper: Stage, task_id: str) -> None:
    place = f"/v1/runs/{task_id}/approvals/call_1_1"
    assert (await helper.http.post(place, json={"decision": "approve"})).is_success


async def test_each_state_and_the_task_at_its_end_are_sent_with_proof_of_who_sends_them() -> None:
    async with inbox() as taker, publisher() as helper:
        task_id = await waiting_task(helper, {"url": taker.url, **SECRETS})
        await taker.wait_for(2)
        await approve(helper, task_id)
        await taker.wait_for(4)
        states = [f"statusUpdate {WORKING}", f"statusUpdate {WAITS}", f"statusUpdate {WORKING}"]
        assert taker.states == [*states, "task TASK_STATE_COMPLETED"]
        for headers, body in taker.requests:
            assert headers["x-a2a-notification-token"] == TOKEN
            assert headers["authorization"] == f"Bearer {PASSWORD}"
            verify("standard-webhooks", TOKEN, headers, body, int(headers["webhook-timestamp"]))
        assert len({headers["webhook-id"] for headers, _ in taker.requests}) == 4
        task = (await ask(helper, "GetTask", id=task_id))["result"]
        assert json.loads(taker.requests[-1][1]) == {"task": task}


async def test_what_is_not_taken_is_sent_again_under_its_id_and_then_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(push, "RETRY_SECONDS", (0, 0, 0))
    async with inbox(500, 307, 204, 503, 503, 503) as taker, publisher() as helper:
        task_id = await waiting_task(helper, {"url": taker.url, **SECRETS})
        await taker.wait_for(6)
        await approve(helper, task_id)
        await taker.wait_for(8)
        ids = [headers["webhook-id"] for headers, _ in taker.requests]
        assert [ids.count(each) for each in dict.fromkeys(ids)] == [3, 3, 1, 1]
        assert taker.states[-1] == "task TASK_STATE_COMPLETED"
    assert "to 127.0.0.1 is lost: status 503" in caplog.text
    assert TOKEN not in caplog.text
    assert PASSWORD not in caplog.text


async def test_configs_are_kept_without_showing_their_secrets() -> None:
    async with inbox() as taker, publisher() as helper:
        task_id = await waiting_task(helper)
        about = {"taskId": task_id}
        named = {**about, "id": "mine", "url": taker.url}
        shown = {**named, "authentication": {"scheme": "Bearer"}}
        created = await ask(helper, "CreateTaskPushNotificationConfig", **named, **SECRETS)
        assert created["result"] == shown
        unnamed = await ask(helper, "CreateTaskPushNotificationConfig", **about, url=taker.url)
        listed = await ask(helper, "ListTaskPushNotificationConfigs", **about)
        assert listed["result"]["configs"] == [shown, unnamed["result"]]
        got = await ask(helper, "GetTaskPushNotificationConfig", **about, id="mine")
        assert got["result"] == shown
        unknown = await ask(helper, "GetTaskPushNotificationConfig", **about, id="other")
        assert unknown["error"]["code"] == -32001
        for config_id in ("mine", "mine", unnamed["result"]["id"]):
            deleted = await ask(helper, "DeleteTaskPushNotificationConfig", **about, id=config_id)
            assert deleted["result"] in (None, {})
        await approve(helper, task_id)
        await helper.ended(task_id)
        assert not (await ask(helper, "ListTaskPushNotificationConfigs", **about))["result"]
        late = await ask(helper, "CreateTaskPushNotificationConfig", **named)
        assert late["result"]["id"] == "mine"
        assert not any("task " in state for state in taker.states), "all were deleted, or late"


async def test_a_task_has_so_many_configs_and_no_more() -> None:
    async with publisher() as helper:
        config = {"taskId": await waiting_task(helper), "url": "https://1.1.1.1/in"}
        await helper.http.post(f"/v1/runs/{config['taskId']}/cancel")
        create = "CreateTaskPushNotificationConfig"
        names = [f"config-{number}" for number in range(push.MAX_CONFIGS)]
        for name in (*names, *names):
            assert "error" not in await ask(helper, create, **config, id=name)
        assert "at most 10" in (await ask(helper, create, **config, id="more"))["error"]["message"]


async def test_a_config_that_leads_where_it_may_not_starts_nothing() -> None:
    async with publisher() as helper:
        for config, words in (
            ({"url": "https://169.254.169.254/latest"}, "may not connect to"),
            ({"url": "https://10.1.2.3/in"}, "chat.webhookHosts"),
            ({"url": "https://[fd00:ec2::254]/in"}, "may not connect to"),
            ({"url": "https://0x7f.1.1.1.example/\u00e9#x"}, "no fragment"),
            ({"url": "http://example.com/in"}, "must begin with https://"),
            ({"url": "https://ada:hunter2@example.com/in"}, "may have no user"),
            ({"url": "file:///etc/passwd"}, "must be a URL such as"),
            ({"url": "https://[::1"}, "url is no URL"),
            ({"url": "https://example.com/\t"}, "url is no URL"),
            ({"url": "https://a..example/"}, "url is no URL"),
            ({"url": "https://xn--a.example/"}, "url is no URL"),
            ({"url": f"https://example.com/{'x' * 3000}"}, "must be a URL such as"),
            ({"url": "https://192.0.2.1/", "token": "a\nHost: b"}, "token must be"),
            ({"url": "https://192.0.2.1/", "token": "whsec_??"}, "token is not base64"),
            (
                {"url": "https://192.0.2.1/", "authentication": {"scheme": "A\r\nB"}},
                "authentication.scheme must be",
            ),
            ({"url": "https://192.0.2.1/", "id": "x" * 200}, "id must be"),
        ):
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
            configuration = {"taskPushNotificationConfig": config}
            reply = await ask(helper, "SendMessage", message=message, configuration=configuration)
            assert reply["error"]["code"] == -32602
            assert words in reply["error"]["message"]
            assert "hunter2" not in reply["error"]["message"]
            assert not await helper.memory()


async def test_another_process_goes_on_where_one_left() -> None:
    async with inbox() as taker, publisher() as helper:
        task_id = await waiting_task(helper, {"url": taker.url})
        await taker.wait_for(2)
        served = helper.served
        await served._push_sender().aclose()
        other = push.PushSender(served.runs, served._memory, ["127.0.0.1"])
        [due] = await served._memory.take_due_pushes(600)
        other.send(due)
        await approve(helper, task_id)
        await until(lambda: not other._sending, 10)
        ids = [headers["webhook-id"] for headers, _ in taker.requests]
        states = list(dict(zip(ids, taker.states, strict=True)).values())  # each at least once
        assert states[2:] == [f"statusUpdate {WORKING}", "task TASK_STATE_COMPLETED"]
        await other.aclose()
        assert list(await served._memory.take_due_pushes(0)) == []


async def test_what_a_dead_process_has_left_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_agent, "DUE_PUSHES_SECONDS", 0.05)
    async with inbox() as taker, publisher(data=DataFolder(tmp_path)) as helper:
        task_id = await waiting_task(helper)
        config = TaskPushNotificationConfig(id="left", url=taker.url).SerializeToString()
        assert helper.served._store
        await helper.served._store.put_push(Push(task_id, "left", config), 0)
        await taker.wait_for(2)
        assert taker.states == [f"statusUpdate {WORKING}", f"statusUpdate {WAITS}"]


async def test_only_who_began_a_task_is_notified_of_it_and_the_long_card_is_for_askers() -> None:
    keys = {"ada": lambda: "the key of ada, long enough", "eve": lambda: "the key of eve, as long"}
    grants = (
        Grant((Grantee("key", "ada"),), frozenset({Right.ASK})),
        Grant((Grantee("key", "eve"),), frozenset({Right.READ})),
    )
    config = agent(*REPLIES, tools=(box(publish),), access=AccessConfig(keys=keys, grants=grants))
    async with (
        open_http_session() as session,
        HostedAgent(config, session, url="http://helper", shared=BEYOND) as hosted,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(hosted.app()), base_url="http://helper"
        ) as http,
    ):
        await hosted.wait_until_tried()

        async def asked(who: str, method: str, **params: Any) -> dict[str, Any]:
            headers = HEADERS | {"Authorization": f"Bearer {keys[who]()}"}
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            reply = (await http.post("/a2a", json=request, headers=headers)).json()
            return dict(reply.get("error") or reply["result"])

        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
        task = (await asked("ada", "SendMessage", message=message))["task"]
        assert task["history"][0]["contextId"] == task["contextId"], "not the stored id"
        create = partial(asked, method="CreateTaskPushNotificationConfig", taskId=task["id"])
        assert (await create("ada", url="https://1.1.1.1/", id="a"))["id"] == "a"
        assert (await create("eve", url="https://1.1.1.1/", id="b"))["code"] == -32004
        for method in ("ListTaskPushNotificationConfigs", "DeleteTaskPushNotificationConfig"):
            assert (await asked("eve", method, taskId=task["id"], id="a"))["code"] == -32004
        card = await asked("ada", "GetExtendedAgentCard")
        assert [skill["id"] for skill in card["skills"]] == ["helper", "publish"]
        assert card["supportedInterfaces"][0]["url"] == "http://helper/a2a"
        assert (await asked("eve", "GetExtendedAgentCard"))["code"] == -32004
        public = (await http.get("/.well-known/agent-card.json")).json()
        assert [skill["id"] for skill in public["skills"]] == ["helper"]
        assert public["capabilities"]["extendedAgentCard"]
