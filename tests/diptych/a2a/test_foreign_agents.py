"""Agents of other frameworks, as they answered a delegation: each recording says which (`from`)."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.a2a_agents import running

from diptych.a2a.agents import A2aAgents
from diptych.core.errors import DelegationError
from diptych.core.messages import CallOutput
from diptych.manifest.settings import PeerConfig
from diptych.ports import DelegationRequest

RECORDINGS = Path(__file__).parents[2] / "recorded/a2a"
ECHO = "[1] You said: hello there"
JS_PARTS = 'Two rows:\n[f.csv: https://x/f.csv]\n{"row": 1}\n{"row": 2}\n\nAnd a second artifact.'


class Recording:
    """Answers as an agent did: the n-th request of a method gets its n-th reply, then the last."""

    def __init__(self, name: str) -> None:
        recorded = json.loads((RECORDINGS / f"{name}.json").read_text())
        self.card: dict[str, Any] = recorded["card"]
        self.replies: list[dict[str, Any]] = recorded["replies"]
        self.seen: list[dict[str, Any]] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=self.card)
        body = json.loads(request.content)
        self.seen.append(body)
        mine = [reply for reply in self.replies if reply["method"] == body["method"]]
        reply = mine.pop(0)
        if mine:
            self.replies.remove(reply)
        headers = {"Content-Type": reply["content_type"]}
        return httpx.Response(reply["status"], headers=headers, text=reply["body"])

    @property
    def methods(self) -> list[str]:
        return [body["method"] for body in self.seen]


@asynccontextmanager
async def agents_of(recording: Recording) -> AsyncIterator[A2aAgents]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(recording.answer)) as http:
        agents = A2aAgents([PeerConfig("echo", _base(recording.card))], "http://me:8000", http)
        async with running(agents):
            yield agents


def _base(card: dict[str, Any]) -> str:
    url: str = card.get("url") or card["supportedInterfaces"][0]["url"]
    return url


async def delegated(recording: Recording, told: list[Any] | None = None) -> CallOutput:
    request = DelegationRequest("echo", "hello there", "c-1", seconds_left=5.0)
    async with agents_of(recording) as agents:
        return await agents.delegate(request, (told if told is not None else []).append)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("adk", "[1] You said: send a file\n[a.pdf of 14 bytes, not shown]"),
        ("adk-js", ECHO),
        ("ag2", ECHO),
        ("agent-framework", ECHO),
        ("agent-framework-streamed", ECHO),
        ("agno", ECHO),
        ("beeai", "[1] You said: Your task: hello there"),
        ("fasta2a", ECHO),
        ("fasta2a-0.6", ECHO),
        ("js-sdk", JS_PARTS),
        ("langgraph", ECHO),
        ("strands", f"{ECHO}\n"),
    ],
)
async def test_the_answer_of_each_framework_is_read_whole(name: str, answer: str) -> None:
    output = await delegated(recording := Recording(name))
    assert output.text == answer
    assert output.child is not None
    assert output.child.state == "completed"
    sends = {"SendMessage", "SendStreamingMessage", "message/send", "message/stream"}
    assert len(sends.intersection(recording.methods)) == 1
    assert len([m for m in recording.methods if m in sends]) == 1  # never sent twice


async def test_an_answer_that_is_one_message_is_read() -> None:
    assert (await delegated(Recording("crewai"))).text.startswith("[1] You said: lo")


@pytest.mark.parametrize("name", ["fasta2a", "langgraph"])
async def test_what_is_told_while_an_agent_answers_is_its_answer_once(name: str) -> None:
    told: list[Any] = []
    output = await delegated(Recording(name), told)
    assert "".join(text for text in told if isinstance(text, str)) == output.text


async def test_an_agent_of_an_older_version_hears_which_forms_are_taken() -> None:
    await delegated(recording := Recording("fasta2a-0.6"))
    configuration = recording.seen[0]["params"]["configuration"]
    assert configuration["acceptedOutputModes"] == ["application/json"]


async def test_what_an_interrupted_graph_asks_reaches_the_caller() -> None:
    with pytest.raises(DelegationError) as caught:
        await delegated(Recording("langgraph-interrupt"))
    assert caught.value.message.startswith('agent echo asked for input: {"id": "')
    assert caught.value.message.endswith('"value": {"question": "Really?"}}')


async def test_a_task_that_ends_in_an_error_was_taken() -> None:
    with pytest.raises(DelegationError, match="broke the task off: Error code: 500"):
        await delegated(Recording("ag2-failed"))


@pytest.mark.parametrize("name", ["beeai", "strands", "adk-js"])
async def test_a_time_without_a_zone_loses_no_streamed_answer(name: str) -> None:
    """As `datetime.now().isoformat()` writes it, in agents after the first examples of A2A."""
    expected = (await delegated(Recording(name))).text
    recording = Recording(name)
    (reply,) = recording.replies
    times = re.compile(r'("timestamp": ?"[^"Z+]*)(Z|\+00:00)"')
    reply["body"], count = times.subn(r'\1"', reply["body"])
    assert count > 0
    assert (await delegated(recording)).text == expected


@pytest.mark.parametrize("name", ["agno", "strands"])
async def test_an_event_of_an_older_version_is_known_without_its_kind(name: str) -> None:
    recording = Recording(name)
    (reply,) = recording.replies
    reply["body"] = re.sub(r'"kind": ?"(task|message|status-update)", ?', "", reply["body"])
    assert (await delegated(recording)).text.strip() == ECHO
