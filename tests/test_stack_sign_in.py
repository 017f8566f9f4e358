"""People who sign in to tool servers: at any replica, each for themselves, and once."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from mcp.server import MCPServer
from support import hostile
from support.authorization_server import AuthorizationServer, Guarded, Token, query_of
from support.redis_server import redis_server
from support.stack import BEYOND, stage

from diptych.access.grants import Grant, Grantee, Right
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands import login as login_command
from diptych.manifest.settings import (
    AccessConfig,
    AgentConfig,
    StoreConfig,
    ToolAuthConfig,
    ToolServerConfig,
)
from diptych.models.connection import open_http_session
from diptych.serve.hosted_agent import HostedAgent

HELPER = "https://helper.example"
KEYS = {name: (lambda name=name: f"key-of-{name}") for name in ("ada", "bob")}
ACCESS = AccessConfig(
    keys=KEYS,
    grants=(Grant(tuple(Grantee("key", name) for name in KEYS), frozenset({Right.ASK})),),
)
SIGN_IN, LOOK, WRITE = '{"tool": "sign_in"}', '{"tool": "look"}', '{"tool": "write"}'
TOKEN_KEY = "k" * 32


def pages() -> MCPServer[Any]:
    server = MCPServer("pages")

    @server.tool()
    def look() -> str:
        """Look at the page."""
        return "the page"

    @server.tool()
    def write() -> str:
        """Write the page."""
        return "written"

    return server


@asynccontextmanager
async def guarded(
    server: AuthorizationServer | None = None, **options: Any
) -> AsyncIterator[Guarded]:
    server = server or AuthorizationServer()
    async with AsyncExitStack() as stack:
        if not server.url:
            server.url = await stack.enter_async_context(hostile.serving(server.app()))
        resource = Guarded(pages().streamable_http_app(json_response=True), server, **options)
        resource.url = await stack.enter_async_context(hostile.serving(resource))
        yield resource


def configured(resource: Guarded, *replies: str, **fields: Any) -> AgentConfig:
    auth = ToolAuthConfig(is_personal=True, scopes=fields.pop("scopes", ()))
    server = ToolServerConfig("pages", f"{resource.url}/mcp", auth=auth)
    return AgentConfig(
        "helper",
        mock_responses=json.dumps([*replies, "{}", "Done."]),
        tools=(server,),
        access=ACCESS,
        public_url=HELPER,
        **fields,
    )


class Replica:
    """A process that serves the agent beyond loopback, and clients who know it as HELPER."""

    def __init__(self, served: HostedAgent) -> None:
        self.served = served
        self.transport = httpx.ASGITransport(served.app())

    def as_(self, name: str = "") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer key-of-{name}"} if name else {}
        return httpx.AsyncClient(
            transport=self.transport, base_url=HELPER, headers=headers, timeout=20
        )

    async def start(self, name: str = "ada") -> str:
        async with self.as_(name) as http:
            started = await http.post("/v1/runs", json={"input": "go"})
            assert started.status_code == 202, started.text
            return str(started.json()["id"])

    async def question(self, name: str = "ada") -> dict[str, Any]:
        """Wait for a question; gives it."""
        async with self.as_(name) as http, asyncio.timeout(20):
            while not (found := (await http.get("/v1/inputs")).json()["data"]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return dict(found[0])

    async def results(self, run_id: str, name: str = "ada") -> list[Any]:
        """Wait for a run's end; gives what its calls brought, and that no token is told."""
        async with self.as_(name) as http, asyncio.timeout(20):
            while (await http.get(f"/v1/runs/{run_id}")).json()["status"] != "completed":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            memory = (await http.get("/memory/events")).json()["events"]
        return [
            event["content"]
            for event in memory
            if event["event_type"] in {"tool_result", "tool_error"} and event["run_id"] == run_id
        ]

    async def run(self, name: str = "ada") -> list[Any]:
        return await self.results(await self.start(name), name)

    async def logins(self, name: str) -> bool:
        async with self.as_(name) as http:
            return bool((await http.get("/v1/logins")).json()["data"][0]["signed_in"])


@asynccontextmanager
async def replica(config: AgentConfig, url: str = "") -> AsyncIterator[Replica]:
    async with (
        open_http_session() as session,
        HostedAgent(config, session, url=url, shared=BEYOND) as served,
    ):
        await served.wait_for_first_connect()
        yield Replica(served)


async def agreed(url: str, at: Replica, name: str = "", **changed: str) -> httpx.Response:
    """Follow a link as a browser whose person agrees to everything; gives the last page."""
    async with at.as_(name) as browser:
        gone = await browser.get(continue_link(await browser.get(url)))
        back = await at_authorization_server(gone.headers["location"])
        asked = {**query_of(back), **changed}
        return await browser.get("/oauth/callback", params=asked)


def continue_link(page: httpx.Response) -> str:
    found = re.search(r'href="([^"]+)">Continue', page.text)
    assert found, page.text
    return html.unescape(found[1])


async def at_authorization_server(url: str) -> str:
    async with httpx.AsyncClient() as http:
        answer = await http.get(url)
        if answer.status_code == 200:  # a form
            answer = await http.post(url, data={"sub": "ada"})
        return answer.headers["location"]


async def test_each_person_signs_in_where_a_call_waits_and_uses_their_own_token() -> None:
    async with guarded() as resource, replica(configured(resource, SIGN_IN)) as at:
        run = await at.start()
        question = await at.question()
        assert question["kind"] == "sign_in"
        assert question["url"].startswith(f"{HELPER}/oauth/start?state=")
        assert (await agreed(question["url"], at)).status_code == 200
        assert "Signed in. pages has 2 tools" in str(await at.results(run))
        assert [await at.logins("ada"), await at.logins("bob")] == [True, False]
        names = {tool.name for tool in at.served._tools.snapshot()[0]}
        assert names == {"look", "write"}


async def test_a_pod_without_an_address_for_browsers_names_the_command() -> None:
    async with guarded() as resource:
        config = replace(
            configured(resource, SIGN_IN), namespace="team", public_url="http://helper.team:8000"
        )
        async with replica(config, url="http://127.0.0.1:8000") as at:  # as a pod knows itself
            await at.start()
            question = await at.question()
            assert "url" not in question
            assert question["message"].endswith("Run `diptych login pages`.")


async def test_a_person_signs_in_after_a_restart_at_another_replica() -> None:
    with redis_server() as redis:
        async with guarded() as resource, AsyncExitStack() as stack:
            store = StoreConfig(lambda: redis.url, 600.0, "test:sign-in")
            config = configured(resource, LOOK, store=store, token_keys=(TOKEN_KEY,))
            first = configured(resource, SIGN_IN, store=store, token_keys=(TOKEN_KEY,))
            async with replica(first) as at:
                asked = asyncio.create_task(at.run("bob"))  # so that the tools are known
                resource.server.person = "bob"
                assert (await agreed((await at.question("bob"))["url"], at)).status_code == 200
                await asked
            resource.server.person = "ada"
            async with replica(config) as at:
                run = await at.start()
                question = await at.question()
            other = await stack.enter_async_context(replica(config))
            assert (await other.question())["call_id"] == question["call_id"]
            assert (await agreed(question["url"], other)).status_code == 200
            assert "the page" in str(await other.results(run))
            assert resource.calls == [("look", "ada")]
            resource.server.expire()
            assert "the page" in str(await other.run("ada"))
            resource.server.rotates = False
            resource.server.expire()
            assert "the page" in str(await other.run("bob"))
            assert resource.calls == [("look", "ada"), ("look", "ada"), ("look", "bob")]
            assert not any(
                secret in str(redis.ask("KEYS", "*")) + str(redis.ask("GET", key))
                for key in redis.ask("KEYS", "*vault*")
                for secret in (*resource.server.tokens, *resource.server.refresh_tokens)
            )


async def test_a_step_up_asks_again_and_a_revoked_token_too() -> None:
    async with guarded(scopes="read", scopes_of={"write": "write"}) as resource:
        async with replica(configured(resource, WRITE)) as at:
            async with at.as_("ada") as http:
                begun = await http.post(
                    "/v1/logins/pages", json={"redirect_uri": "http://127.0.0.1:8976/callback"}
                )
                back = query_of(await at_authorization_server(begun.json()["url"]))
                ended = await http.post("/v1/logins/pages/code", json=back)
                assert ended.json()["signed_in"]
                assert not (await http.post("/v1/logins/pages/code", json=back)).is_success
                listed = await http.post(
                    "/v1/logins/pages", json={"redirect_uri": "http://127.0.0.1:8976/callback"}
                )
                assert listed.json() == {
                    "object": "login",
                    "tool_server": "pages",
                    "signed_in": True,
                    "url": None,
                }
            run = await at.start()
            url = (await at.question())["url"]
            assert (await agreed(url, at)).status_code == 200
            assert "written" in str(await at.results(run))
            assert "written" in str(await at.run())
            resource.server.expire()
            resource.server.refresh_tokens.clear()
            run = await at.start()
            assert (await agreed((await at.question())["url"], at)).status_code == 200
            assert "written" in str(await at.results(run))
            async with at.as_("ada") as http:
                assert not (await http.delete("/v1/logins/pages")).json()["signed_in"]
            assert not await at.logins("ada")
            run = await at.start()  # signs in twice: to be known, and for more scopes
            for _ in range(2):
                assert (await agreed((await at.question())["url"], at)).status_code == 200
            assert "written" in str(await at.results(run))


Attack = Callable[[Replica, str], Any]


async def swapped(at: Replica, url: str) -> httpx.Response:
    return await agreed(url, at, iss="https://evil.example")


async def without_iss(at: Replica, url: str) -> httpx.Response:
    return await agreed(url, at, iss="")


async def as_bob(at: Replica, url: str) -> httpx.Response:
    async with at.as_("bob") as http:
        return await http.get(url)


async def in_another_browser(at: Replica, url: str) -> httpx.Response:
    async with at.as_() as one, at.as_() as other:
        gone = await one.get(continue_link(await one.get(url)))
        back = await at_authorization_server(gone.headers["location"])
        return await other.get("/oauth/callback", params=query_of(back))


async def without_the_page(at: Replica, url: str) -> httpx.Response:
    """Bring a browser that has seen no page to the authorization server, as a sender's link may."""
    async with at.as_() as sender, at.as_() as browser:
        link = continue_link(await sender.get(url))
        assert "Continue" in (await browser.get(link)).text
        assert "Continue" in (await browser.get(link)).text
        back = await at_authorization_server((await sender.get(link)).headers["location"])
        return await browser.get("/oauth/callback", params=query_of(back))


async def foreign_state(at: Replica, url: str) -> httpx.Response:
    return await agreed(url, at, state="f" * 43)


async def by_bob_at_the_terminal(at: Replica, url: str) -> httpx.Response:
    async with at.as_("bob") as bob:
        assert (await bob.get(url)).status_code == 400
    async with at.as_() as browser, at.as_("bob") as bob:
        gone = await browser.get(continue_link(await browser.get(url)))
        back = query_of(await at_authorization_server(gone.headers["location"]))
        return await bob.post("/v1/logins/pages/code", json=back)


@pytest.mark.parametrize(
    "attack",
    [
        swapped,
        without_iss,
        as_bob,
        in_another_browser,
        without_the_page,
        foreign_state,
        by_bob_at_the_terminal,
    ],
)
async def test_a_callback_that_is_not_of_the_person_who_began_is_refused(attack: Attack) -> None:
    async with guarded() as resource, replica(configured(resource, SIGN_IN)) as at:
        run = await at.start()
        url = (await at.question())["url"]
        refused = await attack(at, url)
        assert refused.status_code in {400, 403, 409}
        assert [await at.logins("ada"), await at.logins("bob")] == [False, False]
        assert "/token" not in resource.server.paths
        if attack in {swapped, without_iss}:  # the link is used up
            assert "did not sign in" in str(await at.results(run))
        else:
            assert (await at.question())["kind"] == "sign_in"


async def test_who_does_not_agree_declines_and_once_is_enough() -> None:
    async with guarded() as resource, replica(configured(resource, SIGN_IN)) as at:
        run = await at.start()
        url = (await at.question())["url"]
        refused = await agreed(url, at, code="", error="access_denied")
        assert refused.status_code == 400
        assert "declined to sign in" in str(await at.results(run))
        assert (await agreed_page(url, at)).status_code == 400


async def agreed_page(url: str, at: Replica) -> httpx.Response:
    async with at.as_() as browser:
        return await browser.get(url)


async def test_a_client_id_metadata_document_stands_for_a_registration() -> None:
    async with guarded() as resource, replica(configured(resource, SIGN_IN)) as at:
        resource.server.metadata["client_id_metadata_document_supported"] = True
        run = await at.start()
        assert (await agreed((await at.question())["url"], at)).status_code == 200
        await at.results(run)
        async with at.as_() as http:
            document = (await http.get("/oauth/client.json")).json()
        assert resource.server.forms[-1]["client_id"] == document["client_id"]
        assert document["client_id"] == f"{HELPER}/oauth/client.json"
        assert resource.server.forms[-1]["redirect_uri"] in document["redirect_uris"]
        assert "/register" not in resource.server.paths


class Foreign(AuthorizationServer):
    """A provider from PyPI (oidc-provider-mock, over Authlib), asked who holds a token."""

    resource = ""

    def token(self, access: str) -> Token | None:
        headers = {"authorization": f"Bearer {access}"}
        found = httpx.get(f"{self.url}/userinfo", headers=headers) if access else None
        if found is None or not found.is_success:
            return None
        return Token("", found.json()["sub"], "", self.resource, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of Authlib
async def test_a_provider_from_pypi_signs_people_in_too() -> None:
    from oidc_provider_mock import run_server_in_thread  # noqa: PLC0415 - it warns

    with run_server_in_thread(require_client_registration=True) as provider:
        server = Foreign(f"http://localhost:{provider.server_port}")
        async with (
            guarded(server) as resource,
            replica(configured(resource, SIGN_IN)) as at,
        ):
            server.resource = f"{resource.url}/mcp"
            run = await at.start()
            page = await agreed((await at.question())["url"], at)
            assert page.status_code == 200, page.text
            assert "Signed in. pages has 2 tools" in str(await at.results(run))


async def test_diptych_login_brings_the_code_from_the_browser_to_the_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with guarded() as resource:
        config = configured(resource, LOOK)
        fields = {"tools": config.tools, "access": config.access}
        async with stage(LOOK, "{}", "Done.", **fields) as at:

            def open_browser(url: str) -> None:
                assert httpx.get(url, follow_redirects=True).status_code == 200

            monkeypatch.setattr("webbrowser.open", open_browser)
            no_cluster = ClusterFlags()
            assert await login_command.login(no_cluster, "pages", at.url, port=0) == 0
            assert await login_command.login(no_cluster, None, at.url) == 0
            run = await at.ended(await at.start())
            assert run["status"] == "completed"
            assert resource.calls == [("look", "ada")]
            assert await login_command.login(no_cluster, "pages", at.url, forget=True) == 0
            assert await login_command.login(no_cluster, None, at.url) == 0
    assert capsys.readouterr().out == "pages: signed in\npages: not signed in\n"
