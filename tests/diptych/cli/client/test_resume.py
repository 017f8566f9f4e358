"""A stream of a run that breaks is picked up where it was: nothing is lost or shown twice."""

from collections.abc import Sequence

import orjson
import pytest
from support.flaky_agent import flaky, http_error

from diptych.cli.client.remote import RemoteAgent, RemoteError, TransientError
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.events import attach
from diptych.cli.follow import follow_run
from diptych.cli.output.timeline import RECONNECTING
from diptych.core.codec import Record
from diptych.net.sse import frame
from diptych.ports import Item, Notice

RUN = "run-1"


def event(seq: int, kind: str = "text", content: str = "") -> bytes:
    shown = {
        "event_type": kind,
        "seq": seq,
        "run_id": RUN,
        "session_id": "s",
        "timestamp": "2026-01-01T00:00:00Z",
        "content": content or f"{seq} ",
        "metadata": {"code": "x"} if kind == "failed" else {},
    }
    return frame(shown, event=kind, seq=seq)


def notice(kind: str, **fields: object) -> bytes:
    return frame({"type": kind, **fields}, event=kind)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
END = event(9, "completed")


async def read(agent: RemoteAgent) -> list[Item]:
    return [item async for batch in agent.subscribe(RUN) for item in batch]


def seqs(items: Sequence[Item]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Record)]


def notices(items: Sequence[Item]) -> list[str]:
    return [item.type for item in items if isinstance(item, Notice)]


async def test_a_broken_stream_is_resumed_after_the_last_id() -> None:
    busy = http_error("503 Service Unavailable", "the pod is leaving")
    async with flaky(
        HEAD + event(1) + event(2) + event(3)[:-1],
        *(busy, b""),
        HEAD + event(3) + notice("progress"),
        HEAD + event(4) + END,
    ) as (server, agent):
        items = await read(agent)
    assert seqs(items) == [1, 2, 3, 4, 9]
    assert server.received("last-event-id") == [None, "2", "2", "2", "3"]
    assert notices(items) == [RECONNECTING, "progress", RECONNECTING]


async def test_a_store_that_lost_the_end_is_followed_from_there() -> None:
    async with flaky(
        HEAD + event(1) + event(2) + event(3),
        HEAD + notice("reset", epoch="b", last_seq=1) + event(2),
        HEAD + event(3) + END,
    ) as (server, agent):
        items = await read(agent)
    assert seqs(items) == [1, 2, 3, 2, 3, 9]
    assert server.received("last-event-id") == [None, "3", "2"]
    assert "reset" in notices(items)


async def test_a_hand_over_is_not_announced_twice() -> None:
    leaving = notice("handed_over", run_id=RUN, last_seq=1)
    async with flaky(HEAD + event(1) + leaving, HEAD + event(2) + END) as (_, agent):
        assert notices(await read(agent)) == ["handed_over"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            http_error("404 Not Found", "there is no run with this id"),
            id="a run that never was",
        ),
        pytest.param(http_error("410 Gone", "its record is gone"), id="a run that is lost"),
        pytest.param(http_error("403 Forbidden", "no"), id="any other no"),
    ],
)
async def test_a_refusal_ends_the_subscription(answer: bytes) -> None:
    async with flaky(HEAD + event(1), answer, HEAD + END) as (server, agent):
        with pytest.raises(RemoteError, match="HTTP 4") as caught:
            await read(agent)
    assert not isinstance(caught.value, TransientError)
    assert len(server.received("last-event-id")) == 2


async def test_exhausted_retries_name_the_command_that_follows_the_run() -> None:
    async with flaky(HEAD + event(1), *[http_error("502 Bad Gateway", "no pod")] * 5) as (
        _,
        agent,
    ):
        with pytest.raises(RemoteError, match=r"no pod; .* `diptych attach run-1 --at http://127"):
            await read(agent)


async def test_an_invalid_event_is_an_error_for_people() -> None:
    async with flaky(HEAD + b"data: {}x\n\n") as (_, agent):
        with pytest.raises(RemoteError, match="does not send the events of a run"):
            await read(agent)


class SilentRenderer:
    def render(self, item: Item) -> None: ...

    def refresh(self) -> None: ...


async def test_the_first_stream_of_a_started_run_may_break() -> None:
    """The agent was there once, so that the first stream may break as well."""
    begun = orjson.dumps({"id": RUN, "session_id": "s"})
    started = b"HTTP/1.1 202 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(begun), begun)
    async with flaky(started, b"", HEAD + END) as (_, agent):
        run = await agent.start("Hi", None, print)
        assert await follow_run(agent, run.run_id, SilentRenderer()) == "completed"


async def test_attach_shows_a_run_as_chat_does(capsys: pytest.CaptureFixture[str]) -> None:
    told = event(1, "user_message", "Why?") + event(2, content="So ") + event(3, "failed", "no")
    async with flaky(HEAD + told) as (_, agent):
        assert await attach(RUN, ClusterFlags(), agent.url) == 1
    shown = capsys.readouterr()
    assert shown.out == "So "
    assert shown.err.splitlines() == [
        "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT} Why?",
        "✗ failed (x) after 0 ms: no",
    ]
