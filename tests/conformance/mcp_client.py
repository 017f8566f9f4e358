"""The client that MCP's conformance suite starts: an agent with one tool server, at the URL given.

A script in place of a model calls the scenario's tools; a caller with a key starts the run, answers
the questions of tools with what their schemas preset, and signs in where an authorization server
asks, as a browser whose user agrees to everything.
"""

import asyncio
import html
import json
import os
import sys
from typing import Any

import httpx

from diptych.manifest import API_VERSION, KIND
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import LocalOptions, load_content
from diptych.serve.local_agents import host_file

AUTH = "auth/"
AS_AGENT = "auth/client-credentials"
KEY = "the-key-of-the-conformance-driver"
POLL_SECONDS = 0.1
CONNECT_POLLS = 300
INVALID_TOOLS = tuple(
    f"invalid_{fault}"
    for fault in (
        *("empty_header", "object_header", "array_header", "null_header", "number_header"),
        *("duplicate_same_case", "duplicate_diff_case", "space_in_name", "colon_in_name"),
        *("non_ascii_name", "control_char_name"),
    )
)


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": name, "arguments": arguments}


VALID = tool("valid_tool", region="eu")
REPLIES: dict[str, list[Any]] = {
    "tools_call": [tool("add_numbers", a=5, b=3)],
    "elicitation-sep1034-client-defaults": [tool("test_client_elicitation_defaults")],
    "sse-retry": [tool("test_reconnection")],
    "sep-2322-client-request-state": [
        [tool("test_mrtr_echo_state"), tool("test_mrtr_unrelated"), tool("test_mrtr_no_state")],
        tool("test_mrtr_no_result_type"),
    ],
    "http-standard-headers": [[tool("test_headers"), tool("my-hyphenated-tool")]],
    "http-invalid-tool-headers": [
        reply for name in INVALID_TOOLS for reply in (tool(name, value="x"), VALID)
    ],
}
"""The model's replies by scenario: a call, or several at once."""


def replies_of(scenario: str, context: dict[str, Any]) -> list[Any]:
    if scenario.startswith(AS_AGENT):
        return [tool("test-tool")]
    if scenario.startswith(AUTH):  # one of them is unknown: in the first run the tool, then sign_in
        return [tool("test-tool"), tool("sign_in")]
    calls = [tool(each["name"], **each["arguments"]) for each in context.get("toolCalls", ())]
    return REPLIES.get(scenario, calls)


async def auth_of(scenario: str, context: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the tool server's `auth`, as a person writes it who knows the server."""
    if not scenario.startswith(AUTH):
        return {}
    auth: dict[str, Any] = {"as": "agent" if scenario.startswith(AS_AGENT) else "person"}
    if scenario == "auth/basic-cimd":
        auth["clientId"] = "https://conformance-test.local/client-metadata.json"
    if "client_id" in context:
        auth |= {"clientId": context["client_id"], "issuer": await issuer_of(url)}
    for field, name in (("clientSecret", "client_secret"), ("privateKey", "private_key_pem")):
        if name in context:
            auth[field] = {"secretKeyRef": {"name": "suite", "key": name}}
    return {"auth": auth}


async def issuer_of(url: str) -> str:
    """Return the authorization server that an MCP server names."""
    parts = httpx.URL(url)
    metadata = parts.copy_with(path=f"/.well-known/oauth-protected-resource{parts.path}")
    async with httpx.AsyncClient() as http:
        return str((await http.get(metadata)).json()["authorization_servers"][0])


async def main(url: str) -> int:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    replies = replies_of(scenario, context)
    script = [*map(json.dumps, replies), "{}", "Done."]
    auth = await auth_of(scenario, context, url)
    content = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "client"},
        "spec": {
            "instructions": "Call the tools.",
            "access": {
                "keys": [{"name": "ada", "secretKeyRef": {"name": "suite", "key": "ada"}}],
                "grants": [{"to": [{"key": "ada"}], "may": ["ask", "read"]}],
            },
            "tools": [{"name": "suite", "url": url, **auth}],
            "loop": {"maxSteps": 50},
            "container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(script)}]},
        },
    }
    secrets = {f"SUITE_{name.upper()}": str(value) for name, value in context.items()}
    options = LocalOptions({"SUITE_ADA": KEY, **secrets})
    async with (
        host_file(load_content(content, SourceLocation(scenario), options), "client") as agent,
        httpx.AsyncClient(
            base_url=agent.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=30
        ) as http,
    ):
        if not auth:
            await connected(http)
        runs = 2 if auth.get("auth", {}).get("as") == "person" else 1 if replies else 0
        for _ in range(runs):
            if not await has_results(http):
                return 1
        return 0


async def connected(http: httpx.AsyncClient) -> None:
    """Wait until the tool server is there: a busy machine may need a second try."""
    for _ in range(CONNECT_POLLS):
        if not (await http.get("/ready")).json()["missing"]:
            return
        await asyncio.sleep(POLL_SECONDS)


async def has_results(http: httpx.AsyncClient) -> bool:
    """Start a run, follow it to its end, and return whether each call made has a result."""
    started = await http.post("/v1/runs", json={"messages": [{"role": "user", "content": "Go."}]})
    run = started.raise_for_status().json()
    while run["status"] in ("queued", "running", "input-required"):
        await answer_questions(http)
        await asyncio.sleep(POLL_SECONDS)
        run = (await http.get(f"/v1/runs/{run['id']}")).raise_for_status().json()
    events = (await http.get(f"/v1/runs/{run['id']}/events")).text
    print(events)
    made, answered = (events.count(f"event: tool_{kind}\n") for kind in ("call", "result"))
    return run["status"] == "completed" and 0 < made == answered


async def answer_questions(http: httpx.AsyncClient) -> None:
    asked = await http.get("/v1/inputs")
    for question in asked.json()["data"] if asked.is_success else ():
        if question["kind"] == "sign_in":
            async with httpx.AsyncClient(follow_redirects=True, timeout=30) as browser:
                page = (await browser.get(question["url"])).text
                link = html.unescape(page.partition('href="')[2].partition('"')[0])
                print((await browser.get(link)).text)
        else:
            await http.post(
                f"/v1/runs/{question['run_id']}/inputs/{question['call_id']}",
                json={"action": "accept", "content": {}},
            )


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
