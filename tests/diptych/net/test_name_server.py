"""Whether the name server answers."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from diptych.net import name_server
from diptych.net.name_server import NameServerWatch, has_host_name, unresolved


@pytest.fixture
def server(tmp_path: Any, monkeypatch: Any) -> Iterator[socket.socket]:
    """A socket where the name server of resolv.conf is."""
    file = tmp_path / "resolv.conf"
    file.write_text("search team.svc.cluster.local\nnameserver 127.0.0.1\noptions ndots:5\n")
    monkeypatch.setattr(name_server, "RESOLV_CONF", file)
    monkeypatch.setattr(name_server, "ANSWER_SECONDS", 0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.settimeout(0)
        monkeypatch.setattr(name_server, "DNS_PORT", bound.getsockname()[1])
        yield bound


async def refuse(server: socket.socket) -> bytes:
    """Answer one query with an error, as a server does that serves others."""
    loop = asyncio.get_running_loop()
    query, caller = await loop.sock_recvfrom(server, 512)
    await loop.sock_sendto(server, query[:2] + b"\x80\x05" + bytes(8), caller)
    return query


async def test_a_name_server_is_silent_until_any_answer_comes(server: socket.socket) -> None:
    watch = NameServerWatch(lambda: True)
    await watch.check()
    address, text = watch.silence() or ("", "")
    assert address == "127.0.0.1"
    assert text.startswith("the name server has not answered since 20")
    for _ in range(2):
        assert b"\x04team\x03svc\x07cluster\x05local\x00" in server.recv(512)
    serving = asyncio.create_task(refuse(server))
    await watch.check()
    assert watch.silence() is None
    assert await serving
    server.close()  # now the port refuses
    await watch.check()
    assert watch.silence() is not None


@pytest.mark.usefixtures("server")
def test_a_host_without_an_address_is_told_from_a_server_that_does_not_answer() -> None:
    silent = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert unresolved(silent) == "the name server 127.0.0.1 does not answer"
    assert (
        unresolved(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        == "its host name is not known"
    )


def test_only_names_need_a_name_server() -> None:
    assert has_host_name("http://models.team:8000/v1")
    assert has_host_name("redis://u:p@redis:6379/0")
    numbered = ("http://127.0.0.1:9", "http://[::1]:9", "http://localhost:9", "unix:///run/x")
    assert not any(map(has_host_name, numbered))
