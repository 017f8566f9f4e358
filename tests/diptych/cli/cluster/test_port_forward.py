"""An Agent of a cluster, asked by its name: doubles of kubectl lead to a real agent."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command_line import RecordingRenderer, diptych

from diptych.cli.cluster import port_forward as forwarding
from diptych.cli.cluster.kubectl import AgentName, ClusterError, ClusterFlags
from diptych.cli.cluster.port_forward import agent_in_cluster
from diptych.cli.follow import start_and_follow
from diptych.cli.output.timeline import RECONNECTING
from diptych.manifest.settings import AgentConfig
from diptych.serve.process import ListenAddress, Sockets, serve_agents

Object = dict[str, Any]
HELPER = AgentName("helper", None)
SLOW = '["{}", {"chunk_ms": 20, "content": "' + "word " * 40 + '"}]'


def agent(*, ready: str = "True", reason: str = "Ready") -> Object:
    """Give an Agent as the API has it."""
    conditions = [{"type": "Ready", "status": ready, "reason": reason, "message": "So it is."}]
    return {
        "metadata": {"name": "helper", "namespace": "team"},
        "spec": {},
        "status": {"selector": "app=helper", "conditions": conditions},
    }


@asynccontextmanager
async def pod(script: str = '["{}", "Hello."]') -> AsyncIterator[int]:
    """Serve an agent, and give its port."""
    sockets = Sockets(ListenAddress(port=0), 1)
    async with serve_agents([AgentConfig("helper", mock_responses=script)], sockets) as sites:
        await sites[0].wait_for_first_connect()
        yield int(sockets.urls[0].rpartition(":")[2])


@pytest.fixture
def cluster(programs: Any) -> Any:
    programs.answer("get agents.diptych.dev helper", out=agent())
    return programs


def connected(**place: Any) -> Any:
    return agent_in_cluster(HELPER, ClusterFlags(**place))


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not (Linux)."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def all_gone(pids: list[int]) -> bool:
    for _ in range(200):
        if not any(map(is_alive, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def test_an_agent_is_asked_through_a_port_of_this_machine(cluster: Any) -> None:
    async with pod() as port:
        cluster.forward_to(port)
        async with connected(context="c") as helper:
            renderer = RecordingRenderer()
            ended = await start_and_follow(helper, "Hi", "s", renderer)
            assert (ended.status, renderer.text, helper.name) == (
                "completed",
                "Hello.",
                "team/helper",
            )
            assert [r.event_type for r in await helper.recorded_events("s")] == [
                "user_message",
                "agent_response",
            ]
    (call,) = cluster.calls("port-forward")
    assert call[1:] == [
        "--context=c",
        "--namespace=team",
        "port-forward",
        "service/helper",
        ":8000",
        "--address=127.0.0.1",
        "--pod-running-timeout=10s",
    ]


@linux
async def test_the_port_forward_ends_when_its_owner_is_killed(cluster: Any) -> None:
    async with pod(SLOW) as port:
        cluster.forward_to(port)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "diptych", "run", "helper", "Hi"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout
        assert await process.stdout.readexactly(4) == b"word"
        assert all(map(is_alive, cluster.pids("port-forward")))
        process.kill()
        await process.communicate()
        assert await all_gone(cluster.pids("port-forward"))


async def test_a_port_forward_that_ends_is_restarted_and_the_answer_goes_on(cluster: Any) -> None:
    async with pod(SLOW) as port:
        cluster.forward_to(port)
        async with connected() as helper:
            renderer = RecordingRenderer(do=lambda: kill(cluster.pids("port-forward")))
            ended = await start_and_follow(helper, "Hi", None, renderer)
    assert ended.status == "completed"
    assert renderer.text == "word " * 40
    assert renderer.kinds.count(RECONNECTING) == 1
    first, *later = cluster.calls("port-forward")
    assert ":8000" in first
    assert later
    assert all(f"{helper.url.rpartition(':')[2]}:8000" in call for call in later)


async def test_a_question_waits_until_something_gets_through(cluster: Any) -> None:
    """A forward to a pod that is gone ends at the first connection."""
    async with pod() as port:
        cluster.forward_to(port, is_dead=True)
        async with connected() as helper:
            cluster.forward_to(port)
            ended = await start_and_follow(helper, "Hi", None, RecordingRenderer())
    assert ended.status == "completed"


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        pytest.param(
            'Error from server (NotFound): services "helper" not found',
            'the cluster says: services "helper" not found',
            id="no Service",
        ),
        pytest.param(
            "Error from server (Forbidden): you may not",
            "does not allow it: you may not",
            id="no right",
        ),
        pytest.param("", "it failed, and did not say why", id="nothing"),
    ],
)
async def test_a_port_forward_that_fails_says_why(cluster: Any, stderr: str, said: str) -> None:
    cluster.answer("port-forward", err=stderr, code=1)
    with pytest.raises(ClusterError, match=said):
        async with connected():
            pass


async def test_a_port_forward_that_prints_nothing_times_out(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "START_SECONDS", 0.2)
    (cluster.folder / "kubectl").write_text(
        '#!/bin/sh\ncase "$*" in *port-forward*) exec sleep 60;; esac\n'
        f"printf '%s' '{json.dumps(agent())}'\n"
    )
    with pytest.raises(ClusterError, match="did not begin in"):
        async with connected():
            pass


@linux
async def test_chat_run_and_events_take_an_agents_name(cluster: Any) -> None:
    async with pod() as port:
        cluster.forward_to(port)
        code, out, err = await diptych("chat", "helper", "--session", "s", stdin="One?\nTwo?\n")
        assert (code, out) == (0, "Hello.\nHello.\n")
        assert "team/helper · /help lists the commands" in err
        code, out, _ = await diptych("run", "team/helper", "Hi", "-n", "team")
        assert (code, out) == (0, "Hello.\n")
        code, out, _ = await diptych("events", "helper", "--session", "s")
        assert code == 0
        assert out.count("user_message") == 2
        assert await all_gone(cluster.pids("port-forward"))


@asynccontextmanager
async def listener(sent: list[str]) -> AsyncIterator[int]:
    """Serve what is asked before a run, and note the proof of each request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "/health" not in head:
            sent.append(head.lower().partition("authorization: ")[2].partition("\r\n")[0])
        body = b'{"status": "ready", "agent": "helper"}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("environment", "account", "mode", "proof"),
    [
        pytest.param("", None, "closed", "bearer a-token", id="the cluster's"),
        pytest.param("key-of-ci", None, "closed", "bearer key-of-ci", id="the environment's"),
        pytest.param("key-of-ci", "web", "closed", "bearer a-token", id="an account's"),
        pytest.param("", None, "open", "", id="of an Agent that is open"),
    ],
)
async def test_requests_prove_who_asks(  # noqa: PLR0913, PLR0917 - a table's columns
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    account: str | None,
    mode: str,
    proof: str,
) -> None:
    asked = agent()
    asked["spec"] = {"access": {"mode": mode}}
    cluster.answer("get agents.diptych.dev helper", out=asked)
    monkeypatch.setenv("DIPTYCH_TOKEN", environment)
    sent: list[str] = []
    async with listener(sent) as port:
        cluster.forward_to(port)
        async with connected(service_account=account) as helper:
            assert (await helper.availability()).unavailable == []
            assert ("--as-service-account=web" in helper.attach_flags) is bool(account)
    assert sent == [proof]
    assert bool(cluster.calls("create token")) is (proof == "bearer a-token")


async def test_an_agent_that_is_not_ready_is_tried_and_its_problem_said(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answer("get agents.diptych.dev helper", out=agent(ready="False", reason="Crash"))
    cluster.answer("port-forward", err="error: timed out waiting for the condition")
    with pytest.raises(ClusterError, match="kubectl: timed out"):
        async with connected():
            pass
    assert capsys.readouterr().err == "! team/helper is not ready: Crash: So it is.\n"
