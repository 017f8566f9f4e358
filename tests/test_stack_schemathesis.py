"""Schemathesis, which nobody here wrote, reads the OpenAPI document and attacks the agent by it.

An open agent, and a closed one with a key, with a wrong key and with none. What the document
cannot say (of a body's fields, which go together) is not held against the agent: that valid
requests are taken is for other tests.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.stack import listening

from diptych.manifest.loader import LocalOptions, load_agents
from diptych.models.connection import open_http_session
from diptych.serve.hosted_agent import HostedAgent, ProcessParts

pytestmark = pytest.mark.long

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
)
FUZZING = ("--phases", "fuzzing")
KEY = "k3y-of-the-fuzzer-" + "0" * 24
MANIFEST = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: helper}
spec:
  container: {env: [{name: DEBUG_MOCK_RESPONSES, value: '["{}", "Hello!"]'}]}
  access: """
OPEN = MANIFEST + "{mode: open}\n"
CLOSED = MANIFEST + "{keys: [{name: ci, secretKeyRef: {name: agent-keys, key: ci}}]}\n"


@asynccontextmanager
async def served(folder: Path, manifest: str) -> AsyncIterator[str]:
    """Serve an agent as beyond loopback, at a loopback address; gives its URL."""
    file = folder / "agent.yaml"
    file.write_text(manifest)
    local = LocalOptions({"AGENT_KEYS_CI": KEY})
    (configured,) = load_agents([file], local).resolve(["http://127.0.0.1:1"])
    shared = ProcessParts(on_loopback=False, has_docs=True)
    async with (
        open_http_session() as session,
        HostedAgent(configured, session, shared=shared) as agent,
        listening(agent.app()) as url,
    ):
        yield url


async def attack(url: str, document: Path, *options: str) -> tuple[int, str]:
    """Let Schemathesis attack an agent; gives its exit code and what it printed."""
    program = Path(sys.executable).with_name("schemathesis")
    arguments = ("run", str(document), "--url", url, "--seed", "1", "--no-color", *options)
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=document.parent,  # it keeps what it found there
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def document_of(url: str, folder: Path, key: str | None = None) -> Path:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient() as http:
        reply = await http.get(f"{url}/openapi.json", headers=headers)
    assert reply.status_code == 200, reply.text
    file = folder / "openapi.json"
    file.write_text(reply.text)
    return file


def counted(printed: str) -> int:
    """Give how many requests it made."""
    (line,) = (line for line in printed.splitlines() if " generated, " in line)
    return int(line.split()[0].replace(",", ""))


@pytest.mark.timeout(300)
async def test_an_open_agent_is_what_its_document_says(tmp_path: Path) -> None:
    async with served(tmp_path, OPEN) as url:
        document = await document_of(url, tmp_path)
        options = ("--phases", "coverage,fuzzing", "-n", "4", "-c", ",".join(CHECKS))
        code, printed = await attack(url, document, *options)
        assert code == 0, printed
        assert counted(printed) > 250, printed


@pytest.mark.timeout(300)
async def test_a_closed_agent_answers_nobody_without_a_key(tmp_path: Path) -> None:
    async with served(tmp_path, CLOSED) as url:
        document = await document_of(url, tmp_path, KEY)
        key = ("-H", f"Authorization: Bearer {KEY}")
        code, printed = await attack(
            url, document, "-n", "3", *FUZZING, "-c", ",".join(CHECKS), *key
        )
        assert code == 0, printed
        described = json.loads(document.read_text())
        for operations in described["paths"].values():
            for operation in operations.values():
                if operation["security"] == [{"bearer": []}]:
                    operation["responses"] = {"401": operation["responses"]["401"]}
        document.write_text(json.dumps(described))
        checks = "status_code_conformance,not_a_server_error,response_schema_conformance"
        wrong = ("-H", "Authorization: Bearer wrong")
        code, printed = await attack(url, document, "-n", "1", *FUZZING, "-c", checks, *wrong)
        assert code == 0, printed
