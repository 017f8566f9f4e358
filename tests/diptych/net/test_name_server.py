"""Whether the name server answers."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from diptych.net import name_server
from diptych.net.name_server import NameServerWatch, has_host_name, unresolved


@pytest.fixture
def resolv_conf(tmp_path: Any, monkeypatch: Any) -> Any:
    file = tmp_path / "resolv.conf"
    file.write_text("search team.svc.cluster.local\nnameserver 127.0.0.1\noptions ndots:5\n")
    monkeypatch.setattr(name_server, "RESOLV_CONF", file)
    monkeypatch.setattr(name_server, "ANSWER_SECONDS", 0.1)
    return file


@contextlib.contextmanager
def bound(monkeypatch: Any) -> Any:
    """A socket where the name server should be."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(2)
        monkeypatch.setattr(name_server, "DNS_PORT", server.getsockname()[1])
        yield server


async def test_a_name_server_that_says_nothing_is_silent_until_it_answers(
    resolv_conf: Any, monkeypatch: Any
) -> None:
    watch = NameServerWatch(lambda: True)
    with bound(monkeypatch) as server:
        await watch.look()
        address, text = watch.silence() or ("", "")
        assert address == "127.0.0.1"
        assert text.startswith("the name server does not answer since 20")
        query, _ = server.recvfrom(512)
        assert query.count(b"\x04team\x03svc\x07cluster\x05local\x00") == 1
        monkeypatch.setattr(name_server, "_answers", answers)
        await watch.look()
        assert watch.silence() is None


async def answers(*_: object) -> bool:
    return True


async def test_a_name_server_that_answers_with_an_error_answers(
    resolv_conf: Any, monkeypatch: Any
) -> None:
    with bound(monkeypatch) as server:
        server.setblocking(False)

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            query, caller = await loop.sock_recvfrom(server, 512)
            await loop.sock_sendto(server, query[:2] + b"\x80\x05" + bytes(8), caller)

        serving = asyncio.create_task(serve())
        watch = NameServerWatch(lambda: True)
        await watch.look()
        await serving
        assert watch.silence() is None


async def test_a_port_that_refuses_is_silence_and_nobody_looks_without_need(
    resolv_conf: Any, monkeypatch: Any
) -> None:
    with bound(monkeypatch):
        pass
    idle = NameServerWatch(lambda: False)
    await idle.look()
    assert idle.silence() is None
    watch = NameServerWatch(lambda: True)
    await watch.look()
    assert watch.silence() is not None
    resolv_conf.write_text("")
    await watch.look()
    assert watch.silence() is None  # no name server, nobody to blame


def test_a_host_without_an_address_is_told_from_a_server_that_does_not_answer(
    resolv_conf: Any,
) -> None:
    silent = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert unresolved(silent) == "the name server 127.0.0.1 does not answer"
    assert unresolved(unknown) == "its host name is not known"


@pytest.mark.parametrize(
    ("url", "is_name"),
    [
        ("http://models.team:8000/v1", True),
        ("redis://u:p@redis:6379/0", True),
        ("http://127.0.0.1:9", False),
        ("http://[::1]:9", False),
        ("http://localhost:9", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_only_names_need_a_name_server(url: str, is_name: bool) -> None:
    assert has_host_name(url) is is_name
