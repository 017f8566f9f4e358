"""The proxy as a process of its own: its environment, its ports, its end."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from support.model_proxies import CHAT, SECRET, Asked, Files, endpoint, token, until_true, write
from support.pods import PodProcess
from support.redis_server import free_port

from diptych.cli.commands.model_proxy import PROXY_CONFIG, model_proxy
from diptych.core.errors import ConfigError
from diptych.model_proxy.config import config_file

SSE = "Content-Type: text/event-stream\r\n"
COMMAND = ("-m", "diptych", "model-proxy", "--host", "127.0.0.1")


async def test_at_sigterm_a_stream_ends_in_peace(tmp_path: Path) -> None:
    may_end, metrics = asyncio.Event(), free_port()

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, b"data: 1\n\n", headers=SSE)
        await may_end.wait()
        writer.write(b"data: 2\n\n")

    async with endpoint(answer) as behind, aiohttp.ClientSession() as http:
        Files(tmp_path, behind.url)
        environ = {PROXY_CONFIG: str(tmp_path), "METRICS_PORT": str(metrics)}
        pod = PodProcess("proxy", tmp_path, environ, COMMAND)
        pod.start()
        try:
            await pod.ready()
            headers = {"Authorization": f"Bearer {token()}"}
            asked = http.post(pod.url + CHAT, json={"model": "small"}, headers=headers)
            async with asked as reply:
                assert await reply.content.readany() == b"data: 1\n\n"
                async with http.get(f"http://127.0.0.1:{metrics}/metrics") as found:
                    assert "diptych_model_proxy_live_requests 1.0" in await found.text()
                pod.terminate()
                await until_true(lambda: _is_leaving(pod))
                may_end.set()
                assert await reply.content.read() == b"data: 2\n\n"
            assert await pod.exited(15) == 0
        finally:
            pod.end()
    log = pod.log.read_text()
    assert '"subject": "agent:team/clerk"' in log
    assert "Traceback" not in log
    assert SECRET not in log
    assert token().split(".")[1] not in log


async def _is_leaving(pod: PodProcess) -> bool:
    return await pod.status("/ready") != 200


def test_without_a_configuration_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROXY_CONFIG, raising=False)
    with pytest.raises(ConfigError, match=f"{PROXY_CONFIG}: is required"):
        model_proxy()
    with pytest.raises(ConfigError, match=r"proxy\.json: is missing"):
        config_file(Path("/nowhere"))
