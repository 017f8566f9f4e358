"""An Agent of a cluster, asked by its name: doubles of kubectl lead to a real agent."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from diptych.cli.client.failures import TransientError
from diptych.cli.client.in_cluster import agent_in_cluster
from diptych.cli.client.remote import RemoteAgent
from diptych.cli.client.target import Target
from diptych.cli.cluster import port_forward as forwarding
from diptych.cli.cluster.agents import AgentName
from diptych.cli.cluster.errors import ClusterError, NotReady
from diptych.cli.cluster.flags import ClusterFlags
from diptych.cli.commands.attach import attach_to_run
from diptych.cli.follow import start_and_follow
from diptych.cli.notices import RECONNECTING
from diptych.manifest.settings import AgentConfig
from diptych.ports import Item, Notice
from diptych.serve.process import ListenAddress, Sockets, serve_agents

Type = Callable[..., Any]
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


class RecordingRenderer:
    """A view that keeps what it is shown, and calls back at a piece of the answer."""

    def __init__(self, at: int = 5, do: Callable[[], None] = lambda: None) -> None:
        self.text = ""
        self.notices: list[str] = []
        self._left = at
        self._do = do

    def render(self, item: Item) -> None:
        if isinstance(item, Notice):
            self.notices.append(item.type)
        elif item.event_type == "text":
            self.text += str(item.content)
            self._left -= 1
            if self._left == 0:
                self._do()

    def refresh(self) -> None: ...


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
    ]


@linux
async def test_the_port_forward_ends_with_the_connection(cluster: Any) -> None:
    async with pod() as port:
        cluster.forward_to(port)
        async with connected() as helper:
            await helper.availability()
            assert all(map(is_alive, cluster.pids("port-forward")))
        assert await all_gone(cluster.pids("port-forward"))


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
    assert renderer.notices.count(RECONNECTING) == 1
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


async def test_a_long_outage_is_an_error(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "OUTAGE_SECONDS", 0.5)
    async with pod() as port:
        cluster.forward_to(port)
        async with connected() as helper:
            cluster.answer(
                "port-forward", err="error: unable to forward port because pod is not running"
            )
            kill(cluster.pids("port-forward"))
            while len(cluster.calls("port-forward")) < 3:  # noqa: ASYNC110 - one more has failed
                await asyncio.sleep(0.02)
            with pytest.raises(TransientError, match=r"nothing gets through .* pod is not running"):
                await helper.start("Hi", None)


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


async def test_an_agent_that_is_not_ready_says_why(cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev helper", out=agent(ready="False", reason="Crash"))
    cluster.answer("get pods", out={"items": [{"status": {}}]})
    with pytest.raises(NotReady, match="Agent team/helper is not ready: Crash: So it is"):
        async with connected():
            pass


async def test_an_older_revision_that_serves_is_asked(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answer("get agents.diptych.dev helper", out=agent(ready="False", reason="RollingOut"))
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    cluster.answer("get pods", "--selector=app=helper", out={"items": [ready]})
    async with pod() as port:
        cluster.forward_to(port)
        async with connected() as helper:
            assert isinstance(helper, RemoteAgent)
    assert capsys.readouterr().err == "! team/helper is not ready: RollingOut: So it is.\n"


async def test_a_run_is_attached_to_by_the_agents_name(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with pod() as port:
        cluster.forward_to(port)
        async with connected() as helper:
            run = await helper.start("Hi", None)
        assert await attach_to_run(Target("helper"), run.run_id, as_json=False) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello.\n"


async def test_the_attach_flags_name_the_agent_and_the_cluster(cluster: Any) -> None:
    async with pod() as port:
        cluster.forward_to(port)
        async with connected(context="c") as helper:
            assert helper.attach_flags == "--at team/helper --context=c"


async def run_diptych(*words: str, stdin: str = "") -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diptych", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate(stdin.encode())
    return process.returncode, out.decode(), err.decode()


@linux
async def test_chat_run_and_events_take_an_agents_name(cluster: Any) -> None:
    async with pod() as port:
        cluster.forward_to(port)
        code, out, err = await run_diptych("chat", "helper", "--session", "s", stdin="One?\nTwo?\n")
        assert (code, out) == (0, "Hello.\nHello.\n")
        assert "team/helper · a line typed meanwhile steers" in err
        code, out, _ = await run_diptych("run", "team/helper", "Hi", "-n", "team")
        assert (code, out) == (0, "Hello.\n")
        code, out, _ = await run_diptych("events", "helper", "--session", "s")
        assert code == 0
        assert out.count("user_message") == 2
        assert await all_gone(cluster.pids("port-forward"))


@linux
@pytest.mark.parametrize(
    "words",
    [
        ("approvals", "team/helper"),
        ("approve", "run-1", "call_1_1", "--at", "team/helper"),
        ("reject", "run-1", "call_1_1", "--at", "team/helper"),
    ],
)
async def test_approvals_are_decided_as_the_account_that_is_named(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    sent: list[str] = []
    async with listener(sent) as port:
        cluster.forward_to(port)
        await run_diptych(*words, "--as-service-account", "lead")
        [create] = cluster.calls("create token")
        assert "lead" in create
        assert sent == ["bearer a-token"]
        monkeypatch.setenv("DIPTYCH_TOKEN", "key-of-lead")
        await run_diptych(*words)
        assert len(cluster.calls("create token")) == 1
        assert sent == ["bearer a-token", "bearer key-of-lead"]


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
    ("environment", "account", "proof"),
    [
        pytest.param("", None, "bearer a-token", id="the cluster's"),
        pytest.param("key-of-ci", None, "bearer key-of-ci", id="the environment's"),
        pytest.param("key-of-ci", "web", "bearer a-token", id="an account that is named"),
    ],
)
async def test_requests_prove_who_asks(
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    account: str | None,
    proof: str,
) -> None:
    monkeypatch.setenv("DIPTYCH_TOKEN", environment)
    sent: list[str] = []
    async with listener(sent) as port:
        cluster.forward_to(port)
        async with connected(service_account=account) as helper:
            assert (await helper.availability()).unavailable == []
            assert ("--as-service-account=web" in helper.attach_flags) is bool(account)
    assert sent == [proof]
    assert bool(cluster.calls("create token")) is (proof == "bearer a-token")


async def test_an_agent_that_is_open_is_asked_without_a_token(cluster: Any) -> None:
    opened = agent()
    opened["spec"] = {"access": {"mode": "open"}}
    cluster.answer("get agents.diptych.dev helper", out=opened)
    async with pod() as port:
        cluster.forward_to(port)
        async with connected() as helper:
            await helper.availability()
    assert not cluster.calls("create token")


async def test_without_a_token_nothing_is_asked(cluster: Any) -> None:
    why = 'serviceaccounts "helper" is forbidden: User "eve" cannot create it'
    cluster.answer("create token", err=f"error: failed to create token: {why}\n")
    with pytest.raises(ClusterError, match="DIPTYCH_TOKEN"):
        async with connected():
            raise AssertionError
    assert not cluster.calls("port-forward")
