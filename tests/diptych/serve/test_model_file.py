"""The model that the operator resolves for a pod: taken up by new runs, without a new process."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.stack import Stage, stages, until
from support.upstream_habits import chunk, said, sse
from support.upstream_server import Answer, UpstreamServer, upstream_server

from diptych.core.errors import ConfigError
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.model_file import MODEL_FILE

MANIFEST = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: helper, annotations: {{diptych.dev/references: {folder}}}}}
spec:
  loop: {{answerMode: direct}}
  budget: {{cost: "5"}}
"""
PRICES = {"input": "1", "output": "2"}


class Pod:
    """The files of a pod: manifest, model file and key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model_file = folder / "model" / "model.json"
        self.model_file.parent.mkdir()
        self.manifest = folder / "agent.yaml"
        self.manifest.write_text(MANIFEST.format(folder=folder))
        (folder / "key").write_text("key-of-the-first\n")

    def write(self, endpoint: str, name: str, **fields: Any) -> None:
        self.write_text(
            json.dumps(
                {"endpoint": endpoint, "name": name, "apiKey": {"file": "key"}, "prices": PRICES}
                | fields
            )
        )

    def write_text(self, text: str) -> None:
        """Replace the file at once, as the kubelet does."""
        newer = self.folder / "newer"
        newer.write_text(f"{text}\n")
        newer.rename(self.model_file)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Stage]:
        options = LocalOptions({MODEL_FILE: str(self.model_file)})
        (config,) = load_agents([self.manifest], options).resolve(["http://127.0.0.1:1"])
        async with stages(config) as (stage,):
            yield stage


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def answering(text: str) -> Any:
    usage = {"choices": [], "usage": {"prompt_tokens": 500_000, "completion_tokens": 250_000}}
    return lambda _: sse(chunk({"content": text}), chunk({}, "stop"), usage, None)


async def about(stage: Stage) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (await stage.http.get("/v1/agent")).json()
    return found


async def notes(stage: Stage) -> list[str]:
    found: list[str] = (await stage.http.get("/ready")).json()["notes"]
    return found


async def metric(stage: Stage, name: str) -> float:
    lines = (await stage.http.get("/metrics")).text.splitlines()
    return float(next((line for line in lines if line.startswith(f"{name} ")), "x 0").split()[-1])


async def test_new_runs_ask_the_new_model_and_a_run_under_way_keeps_its_own(pod: Pod) -> None:
    may_end = asyncio.Event()

    class Slow(UpstreamServer):
        async def _write(self, answer: Answer, *streams: Any) -> None:
            first, *rest = answer.pieces
            _, writer = streams
            writer.write(b"HTTP/1.1 200 Word\r\nContent-Type: text/event-stream\r\n\r\n" + first)
            await may_end.wait()
            writer.write(b"".join(rest))

    async with (
        upstream_server(answering("new")) as second,
        upstream_server(lambda _: said("old, ", "and whole")) as first,
    ):
        first.__class__ = Slow
        pod.write(first.url, "one", parameters={"maxTokens": 77})
        async with pod.served() as stage:
            under_way = asyncio.create_task(stage.answer("first"))
            await until(lambda: len(first.requests) == 1)
            pod.write(second.url, "two", prices={"input": "3", "output": "0"})
            assert await stage.answer("second") == "new"
            assert second.requests[0]["model"] == "two"
            assert "max_tokens" not in second.requests[0]
            assert second.headers[-1]["authorization"] == "bearer key-of-the-first"
            assert (await about(stage))["models"] == ["two"]
            assert await metric(stage, "diptych_cost_total") == 1.5
            may_end.set()
            assert await under_way == "old, and whole"
            assert len(first.requests) == 1
    assert first.requests[0]["model"] == "one"
    assert first.requests[0]["max_tokens"] == 77


async def test_a_file_that_cannot_be_used_leaves_the_former_model_and_says_so(
    pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    async with upstream_server(answering("still here")) as server:
        pod.write(server.url, "one")
        async with pod.served() as stage:
            for text, problem in (
                ("{", "is not valid JSON"),
                ('{"name": "x", "endpoint": "http://a.b", "colour": "red"}', "spec.model.colour"),
                ('{"name": "x", "endpoint": "http://a.b"}', "prices"),  # the budget needs them
            ):
                pod.write_text(text)
                assert await stage.answer() == "still here"
                (note,) = [note for note in await notes(stage) if note.startswith("model file: ")]
                assert problem in note
                assert note in caplog.text
            pod.write(server.url, "three")
            assert await stage.answer() == "still here"
            assert server.requests[-1]["model"] == "three"
            assert not [note for note in await notes(stage) if note.startswith("model file: ")]
            pod.write(server.url, "four", apiKey={"file": "secrets/models/none"})
            missing = (await stage.http.get("/ready")).json()["missing"]
            assert [each["kind"] for each in missing] == ["key"]
            assert missing[0]["name"].endswith("secrets/models/none")


async def test_a_run_s_cost_is_that_of_the_model_it_began_with(pod: Pod) -> None:
    async with upstream_server(answering("ok")) as server:
        pod.write(server.url, "one")
        async with pod.served() as stage:
            first = await stage.start()
            await until(lambda: server.requests)
            pod.write(server.url, "one", prices={"input": "4", "output": "4"})
            second = await stage.start()
            for run_id, cost in ((first, "1"), (second, "3")):
                await stage.http.get(f"/v1/runs/{run_id}/events")
                tree = (await stage.http.get(f"/v1/runs/{run_id}/tree")).json()
                assert tree["cost"] == cost


async def test_the_new_endpoint_is_watched_in_place_of_the_former(pod: Pod) -> None:
    async with upstream_server(answering("ok")) as server:
        pod.write("http://127.0.0.1:9", "away")
        async with pod.served() as stage:

            async def missing() -> list[str]:
                found = (await stage.http.get("/ready")).json()["missing"]
                return [each["name"] for each in found if each["kind"] == "model"]

            async with asyncio.timeout(5):
                while await missing() != ["away"]:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)
            pod.write(server.url, "here")
            assert await missing() == []
            await until(lambda: server.paths)  # its list of models
            assert server.paths == ["/v1/models"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "must be a JSON object"),
        ('{"name": "x", "endpoint": "ftp://a.b", "prices": {}}', "spec.model.endpoint"),
        (None, "there is no such file"),
    ],
)
def test_a_pod_without_a_usable_model_file_does_not_start(
    pod: Pod, text: str | None, problem: str
) -> None:
    if text is not None:
        pod.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_agents([pod.manifest], LocalOptions({MODEL_FILE: str(pod.model_file)}))
