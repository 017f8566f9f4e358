"""The page at `/`, in a real browser, with real agents behind it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect
from support.browser import CHROMIUM, ask, browsing, shows
from support.model_server import breaks_off, model_server
from support.stack import BEYOND, Stage, agent, box, call, listening, stage, stages, until
from support.tcp_proxy import tcp_proxy

from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.settings import AccessConfig, AgentConfig, PeerConfig
from diptych.models.connection import open_http_session
from diptych.policy.rules import Policy, Rule
from diptych.serve.hosted_agent import HostedAgent

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not here: THE PAGE WAS NOT TRIED IN A BROWSER"
    ),
]

ASK = Policy((Rule("tool", "pay", "ask"),))
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
RIGHT_TO_LEFT = "\u202e"
CUT = ("ERR_CONNECTION_RESET", "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE")

WATCH = """(whole) => {
    window.wrong = [];
    new MutationObserver(() => {
        const text = document.querySelector(".answer p")?.textContent ?? "";
        if (!whole.startsWith(text)) window.wrong.push(text);
    }).observe(document.body, {childList: true, characterData: true, subtree: true});
}"""
"""Notes each text of the answer that is not the beginning of the whole one."""

paid: list[str] = []


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def pay(to: str) -> str:
    """Pay somebody."""
    paid.append(to)
    return f"paid {to}"


async def read(page: str) -> str:
    """Read a page."""
    return f"{page}: {MARKUP}"


@pytest.fixture(autouse=True)
def nobody_is_paid() -> None:
    paid.clear()


async def unfold(page: Page) -> None:
    """Unfold all that is folded in the conversation."""
    opens = "all => all.forEach((each) => { each.open = true })"
    await page.locator("#conversation details").evaluate_all(opens)


async def markup_in(page: Page) -> int:
    """Count elements that the page itself does not make."""
    return await page.locator("img, iframe, body script, svg, object, embed").count()


async def unnamed_in(page: Page) -> list[str]:
    """Give the controls in sight that have no name for a screen reader."""
    found: list[str] = await page.evaluate(
        """() => [...document.querySelectorAll("input, textarea, button, summary")]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.labels?.[0] ?? each).textContent.trim())
            .map((each) => each.outerHTML)"""
    )
    return found


def coordinator_and_researcher(answer: str, followed: asyncio.Event) -> Iterator[AgentConfig]:
    """Give an agent that asks another, which goes on once it is followed."""

    async def wait() -> str:
        """Wait until somebody follows the run: what happens below is told live only."""
        await followed.wait()
        return "go on"

    yield agent(
        json.dumps({"agent": "researcher", "task": "How much is 1 and 2?"}),
        call("add", a=20, b=22),
        {"content": "{}", "reasoning": "Let me think."},
        {"content": answer, "chunk_ms": 20},
        name="coordinator",
        description="Adds up.",
        tools=(box(add),),
        agents=(PeerConfig("researcher", url="researcher", share_context=True),),
    )
    yield agent(
        call("wait"),
        call("add", a=1, b=2),
        "{}",
        "Three, I found.",
        name="researcher",
        tools=(box(add, wait),),
    )


async def test_a_question_its_steps_below_too_and_its_answer(browser: Browser) -> None:
    followed, whole = asyncio.Event(), "It is 42.\nReally: 42."
    top, below = coordinator_and_researcher(whole, followed)
    async with (
        stages(top, below) as (coordinator, _),
        browsing(browser, f"{coordinator.url}/") as page,
    ):
        await shows(page, "coordinator", "Adds up.", "ready")
        await ask(page, "What is it?")
        await shows(page, "How much is 1 and 2?")
        followed.set()
        await shows(page, "done after", "tokens: ")
        answer = page.locator(".answer p")
        assert await answer.text_content() == whole
        calls = page.locator("#conversation .work > .body > ol > li")
        assert [await each.locator(".name").first.text_content() for each in await calls.all()] == [
            "researcher",
            "add",
        ]
        seen = await calls.first.locator("ol .brief").last.text_content()
        assert json.loads(seen or "") == {"a": 1, "b": 2}  # protobuf keeps no order
        assert await page.locator(".reasoning p").text_content() == "Let me think."
        await page.reload()  # the session stands in the address
        await shows(page, "done after")
        assert await answer.text_content() == whole
        assert not await unnamed_in(page)
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.evaluate(wide)


async def test_it_says_for_how_long_nothing_was_heard_from_below(browser: Browser) -> None:
    passed = {name: asyncio.Event() for name in ("one", "two")}

    async def halt(at: str) -> str:
        """Wait at a place."""
        await passed[at].wait()
        return "go on"

    halts = [call("halt", at=name) for name in passed]
    below = agent(*halts, "{}", "3.", name="researcher", tools=(box(halt),))
    asks = json.dumps({"agent": "researcher", "task": "How much is it?"})
    peers = (PeerConfig("researcher", url="researcher"),)
    top = agent(asks, "{}", "It is three.", name="coordinator", agents=peers)
    async with (
        stages(top, below) as (coordinator, _),
        browsing(browser, f"{coordinator.url}/") as page,
    ):
        await page.clock.install()
        await page.reload()
        silence = page.get_by_text("nothing heard for")
        await ask(page, "Go")
        await shows(page, "How much is it?")
        passed["one"].set()
        await expect(page.locator("ol ol .brief").last).to_have_text('{"at":"two"}')
        await page.clock.fast_forward(10_000)
        await expect(silence).to_have_count(0)
        await page.clock.fast_forward(15_000)
        await expect(silence).to_have_count(1)
        passed["two"].set()
        await shows(page, "done after")
        await expect(silence).to_have_count(0)


async def test_silence_while_a_call_below_waits_for_a_decision_is_not_said(
    browser: Browser,
) -> None:
    below = agent(call("pay", to="her"), "{}", "Paid.", name="below", tools=(box(pay),), policy=ASK)
    asks = json.dumps({"agent": "below", "task": "Pay her."})
    peers = (PeerConfig("below", url="below", share_context=True),)
    top = agent(asks, "{}", "It is paid.", name="top", agents=peers)
    async with stages(top, below) as (url, _), browsing(browser, f"{url.url}/") as page:
        await page.clock.install()
        await page.reload()
        await ask(page, "Pay")
        await shows(page, "waits for a decision: ")
        await page.clock.fast_forward(30_000)
        await expect(page.get_by_text("nothing heard for")).to_have_count(0)
        await page.get_by_role("button", name="Approve").first.click()
        await shows(page, "done after")


async def test_an_answer_goes_on_where_its_connection_broke(browser: Browser) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    async with stage("{}", {"content": words, "chunk_ms": 20}) as helper:
        port = urlsplit(helper.url).port or 0
        async with (
            tcp_proxy(port) as proxy,
            browsing(browser, f"http://127.0.0.1:{proxy.port}/", *CUT) as page,
        ):
            await shows(page, "ready")
            await ask(page, "Count")
            await shows(page, "word5")
            await page.evaluate(WATCH, words)
            proxy.cut()
            await shows(page, "done after")
            assert await page.locator(".answer p").text_content() == words
            assert await page.evaluate("window.wrong") == []


@pytest.mark.parametrize("decision", ["Approve", "Reject"])
async def test_a_call_waits_for_a_decision_and_hides_nothing(
    browser: Browser, decision: str
) -> None:
    to = f"bob{RIGHT_TO_LEFT}eve"
    async with (
        stage(call("pay", to=to), "{}", "Well.", tools=(box(pay),), policy=ASK) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Pay bob")
        card = page.get_by_role("group", name="May this call be made?")
        await card.get_by_text("⟨U+202E⟩").wait_for()
        assert RIGHT_TO_LEFT not in (await card.text_content() or "")
        await expect(card).to_contain_text(re.compile(r"Rejected by itself at .*\d{4}"))  # a date
        assert not paid
        if decision == "Reject":
            await card.get_by_label("Reason").fill("not him")
        await card.get_by_role("button", name=decision, exact=True).click()
        became = {
            "Approve": ["Approved.", "The call was made: paid bob"],
            "Reject": ["Rejected: not him.", "The call was not made."],
        }
        await shows(page, *became[decision], "done after")
        assert paid == ([to] if decision == "Approve" else [])
        errors = [
            each["content"] for each in await helper.memory() if each["event_type"] == "tool_error"
        ]
        assert ["not him" in str(each) for each in errors] == [True] * (decision == "Reject")


async def test_the_list_of_what_waits_stays_true_and_keeps_what_is_written(
    browser: Browser,
) -> None:
    look = 11_000  # ms, in which the page looks again
    async with (
        stage(call("pay", to="bob"), "{}", "Well.", tools=(box(pay),), policy=ASK) as helper,
        browsing(browser, "about:blank") as page,
    ):
        await page.clock.install()
        await page.goto(f"{helper.url}/")
        await page.get_by_text("Waiting for you").click()
        await shows(page, "No call that you may see waits")
        runs = [await helper.start("Pay bob"), await helper.start("Pay bob")]
        for run_id in runs:
            await until(lambda run_id=run_id: _waits(helper, run_id))
        cards = page.locator("#approvals .approval")
        await page.clock.fast_forward(look)
        await expect(cards).to_have_count(2)
        assert await page.get_by_text("No call that you may see waits").count() == 0
        written = cards.nth(1).get_by_label("Reason")
        await written.fill("not him")
        decided = await cards.nth(0).get_attribute("aria-labelledby")
        first = (await helper.http.get("/v1/approvals")).json()["data"][0]
        path = f"/v1/runs/{first['run_id']}/approvals/{first['call_id']}"
        await helper.http.post(path, json={"decision": "reject"})
        await page.clock.fast_forward(look)
        over = page.locator("#approvals .approval.over")
        await expect(over).to_contain_text("Somebody else answered, or the run has ended.")
        assert await over.get_attribute("aria-labelledby") == decided
        await expect(cards.get_by_label("Reason")).to_have_value("not him")
        await expect(cards.get_by_label("Reason")).to_be_focused()


async def _waits(helper: Stage, run_id: str) -> bool:
    return bool((await helper.run(run_id))["status"] == "input-required")


async def test_a_card_that_moves_up_takes_no_click_that_was_for_another(browser: Browser) -> None:
    both = json.dumps([json.loads(call("pay", to="ada")), json.loads(call("pay", to="bob"))])
    async with (
        stage(both, "{}", "Well.", tools=(box(pay),), policy=ASK) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Pay both")
        approve = page.get_by_role("button", name="Approve", exact=True)
        await expect(approve).to_have_count(2)
        await expect(approve.nth(1)).to_be_enabled()
        was_enabled = await page.evaluate(
            """() => new Promise((told) => {
                const find = () => [...document.querySelectorAll(".approval")]
                    .map((card) => card.querySelector("button"));
                new MutationObserver(() => {
                    const [first, second] = find();
                    if (!first && second) told(!second.disabled);
                }).observe(document.body, {childList: true, subtree: true});
                find()[0].click();
            })"""
        )
        assert not was_enabled
        await approve.click()
        await shows(page, "done after")
        assert sorted(paid) == ["ada", "bob"]


async def test_a_call_that_holds_very_much_is_shown_too(browser: Browser) -> None:
    to = "".join(f"{n}\u200b" for n in range(70_000))  # more nodes than a stack holds arguments
    async with (
        stage(call("pay", to=to), "{}", "Well.", tools=(box(pay),), policy=ASK) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Pay")
        card = page.get_by_role("group", name="May this call be made?")
        await card.wait_for()
        shown = await card.locator("pre").text_content() or ""
        assert to.replace("\u200b", "⟨U+200B⟩") in shown
        await page.get_by_role("button", name="Stop").click()
        await shows(page, "aborted after")


async def test_arguments_are_edited_and_large_numbers_stay_as_they_are(browser: Browser) -> None:
    account = 2**53 + 1  # no number of JavaScript is this one
    sent: list[tuple[int, str]] = []

    async def pay(account: int, to: str) -> str:
        """Pay."""
        sent.append((account, to))
        return "paid"

    async with (
        stage(
            call("pay", account=account, to="eve"), "{}", "Well.", tools=(box(pay),), policy=ASK
        ) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Pay")
        card = page.get_by_role("group", name="May this call be made?")
        await expect(card.locator("pre")).to_contain_text(str(account))
        await page.get_by_text("Change the arguments").click()
        written = page.get_by_label("Arguments, as JSON")
        await written.fill((await written.input_value()).replace("eve", "bob"))
        await page.get_by_role("button", name="Approve with these arguments").click()
        await shows(page, "done after")
        assert sent == [(account, "bob")]
        assert str(account) in (await page.locator(".steps .brief").text_content() or "")


async def test_a_message_is_sent_once_however_often_enter_is_pressed(browser: Browser) -> None:
    async with stage("{}", "Once.") as helper, browsing(browser, f"{helper.url}/") as page:
        held, go = asyncio.Event(), asyncio.Event()

        async def hold(route: Route) -> None:
            held.set()
            await go.wait()
            await route.continue_()

        await page.route("**/v1/runs", hold)
        await ask(page, "Go")
        await held.wait()
        for _ in range(3):
            await page.keyboard.press("Enter")
        go.set()
        await shows(page, "done after")
        assert len((await helper.http.get("/v1/runs")).json()["data"]) == 1


async def test_a_run_is_steered_then_cancelled_then_resumed(browser: Browser) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        """Hang."""
        begun.set()
        await end.wait()
        return "x"

    async with (
        stage(call("hang"), "{}", "Here I am.", tools=(box(hang),)) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Go")
        await asyncio.wait_for(begun.wait(), 20)
        await ask(page, "Rather left")
        await expect(page.get_by_label("Message to the agent")).to_have_value("")
        (run,) = (await helper.http.get("/v1/runs")).json()["data"]
        waiting = (await helper.run(run["id"]))["queue"]["steer"]
        assert ["Rather left" in str(each) for each in waiting] == [True]
        await page.get_by_role("button", name="Stop").click()
        await shows(page, "aborted after")
        end.set()
        await page.get_by_role("button", name="Resume this run").click()
        await shows(page, "Here I am.", "done after")
        said = [
            each["content"]
            for each in await helper.memory()
            if each["event_type"] == "user_message"
        ]
        assert said[:1] == ["Go"]


async def test_what_others_say_is_text(browser: Browser) -> None:
    hostile = f"{MARKUP} {RIGHT_TO_LEFT}"
    async with (
        stage(
            call("read", page=MARKUP),
            {"content": "{}", "reasoning": hostile},
            hostile,
            tools=(box(read),),
            description=MARKUP,
        ) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, hostile)
        await shows(page, "done after")
        await unfold(page)
        await shows(page, f"{MARKUP}: {MARKUP}")
        assert await page.locator("#description").text_content() == MARKUP
        assert await page.locator(".answer p").text_content() == hostile
        assert await markup_in(page) == 0
        assert await page.title() == helper.name


async def test_what_passes_is_tried_again_and_said(browser: Browser) -> None:
    refused = {"/page/agent.json": 1, "/v1/runs": 1}
    full = {"error": {"message": "there is no room", "code": "overloaded"}}

    async def refuse(route: Route) -> None:
        path = urlsplit(route.request.url).path
        refused[path] -= 1
        if refused[path] < 0:
            await route.continue_()
        else:
            await route.fulfill(status=503, json=full)

    async with stage("{}", "Here.") as helper, browsing(browser, "about:blank", "503") as page:
        for path in refused:
            await page.route(f"**{path}", refuse)
        await page.goto(f"{helper.url}/")
        await shows(page, "there is no room; trying again")
        await expect(page.get_by_role("heading", name="helper")).to_be_visible()
        await expect(page.locator("#problem")).to_be_empty()
        await ask(page, "Go")
        await shows(page, "there is no room; trying again", "Here.", "done after")
        await expect(page.locator("#problem")).to_be_empty()


async def test_a_run_that_was_resumed_is_not_shown_twice(browser: Browser) -> None:
    async with (
        model_server("{}", breaks_off("Half "), "{}", "Whole.") as model,
        stage(model=model) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        resume = page.get_by_role("button", name="Resume this run")
        await ask(page, "Go")
        await resume.wait_for()
        await resume.evaluate("(button) => { button.click(); button.click(); }")
        await shows(page, "Whole.", "done after")
        await expect(page.get_by_role("article")).to_have_count(2)
        await page.reload()
        await shows(page, "Whole.", "done after", "failed (")
        await expect(resume).to_have_count(0)


async def test_a_page_that_comes_late_says_what_it_has_not_seen_below(browser: Browser) -> None:
    followed, end = asyncio.Event(), asyncio.Event()

    async def start() -> str:
        """Wait until the page follows the run: what happens below is told live only."""
        await followed.wait()
        return "go on"

    async def wait() -> str:
        """Wait."""
        await end.wait()
        return "go on"

    asks = json.dumps({"agent": "researcher", "task": "How much is it?"})
    replies = (call("add", a=1, b=2), call("wait"), "{}", "Three.")
    below = agent(*replies, name="researcher", tools=(box(add, wait),))
    peers = (PeerConfig("researcher", url="researcher"),)
    replies = (call("start"), asks, "{}", "It is three.")
    top = agent(*replies, name="coordinator", tools=(box(start),), agents=peers)
    async with (
        stages(top, below) as (coordinator, _),
        browsing(browser, f"{coordinator.url}/") as page,
    ):
        gap = "What happened here earlier is not shown."
        await ask(page, "Go")
        await page.locator(".steps").get_by_text("start").wait_for()
        followed.set()
        await page.locator("ol ol").get_by_text("wait").wait_for()
        assert await page.get_by_text(gap).count() == 0
        await page.reload()
        await shows(page, gap)
        end.set()
        await shows(page, "done after")
        await page.reload()
        await shows(page, "done after")
        await unfold(page)
        await shows(page, "below: 4 requests to models, 2 calls of tools, ")
        assert await page.get_by_text(gap).count() == 0


async def test_a_page_that_missed_what_happened_below_says_so(browser: Browser) -> None:
    """It started the run itself: its first connection came late, and its second one broke."""
    reached = {name: asyncio.Event() for name in ("one", "two", "three")}
    passed = {name: asyncio.Event() for name in reached}
    follow = {name: asyncio.Event() for name in ("first", "second")}

    async def halt(at: str) -> str:
        """Wait at a place."""
        reached[at].set()
        await passed[at].wait()
        return "go on"

    asks = json.dumps({"agent": "researcher", "task": "How much is it?"})
    halts = [call("halt", at=name) for name in reached]
    below = agent(
        *halts, call("add", a=1, b=2), "{}", "3.", name="researcher", tools=(box(halt, add),)
    )
    peers = (PeerConfig("researcher", url="researcher"),)
    top = agent(asks, "{}", "It is three.", name="coordinator", agents=peers)
    async with stages(top, below) as (coordinator, _):
        port = urlsplit(coordinator.url).port or 0
        async with (
            tcp_proxy(port) as proxy,
            browsing(browser, f"http://127.0.0.1:{proxy.port}/", *CUT) as page,
        ):
            awaited = iter(follow.values())

            async def delay(route: Route) -> None:
                await next(awaited).wait()
                await route.continue_()

            await page.route("**/v1/runs/*/events", delay)
            gap = page.get_by_text("What happened here earlier is not shown.")
            drawn = page.locator("ol ol .brief")
            await ask(page, "Go")
            await reached["one"].wait()
            follow["first"].set()
            await shows(page, "How much is it?")
            passed["one"].set()
            await expect(drawn).to_have_text([json.dumps({"at": "two"}, separators=(",", ":"))])
            await expect(gap).to_have_count(1)
            proxy.cut()
            passed["two"].set()
            await reached["three"].wait()
            follow["second"].set()
            passed["three"].set()
            await shows(page, "done after")
            await unfold(page)
            await shows(page, "Not all of what happened here is shown. below: 6 requests")
            await expect(gap).to_have_count(0)


async def test_the_page_follows_an_answer_until_somebody_scrolls_up(browser: Browser) -> None:
    lines = {"content": "\n".join(f"line {n}." for n in range(120)), "chunk_ms": 15}
    is_down = "innerHeight + scrollY > document.documentElement.scrollHeight - 80"
    async with stage("{}", lines) as helper, browsing(browser, f"{helper.url}/") as page:
        await ask(page, "Go")
        await shows(page, "line 119.", "done after")
        await until(lambda: page.evaluate(is_down))
        await ask(page, "Again")
        second = page.locator(".answer p").nth(1)
        await expect(second).to_contain_text("line 40.")
        await page.evaluate("scrollTo(0, 0)")
        await expect(second).to_contain_text("line 119.")
        await expect(page.get_by_text("done after")).to_have_count(2)
        assert await page.evaluate("scrollY") == 0


@asynccontextmanager
async def beyond(config: AgentConfig) -> AsyncIterator[str]:
    """Serve an agent as beyond loopback, where it asks who asks, on a socket of loopback."""
    async with (
        open_http_session() as session,
        HostedAgent(config, session, shared=BEYOND) as served,
        listening(served.app()) as url,
    ):
        yield url


async def test_it_asks_for_a_token_and_keeps_it_in_memory(browser: Browser) -> None:
    keys: dict[str, Any] = {"ada": lambda: "key-of-ada-Yx3"}
    access = AccessConfig(
        keys=keys, grants=(Grant((Grantee("key", "ada"),), frozenset({Right.ASK})),)
    )
    async with (
        beyond(agent("{}", "Hello, ada.", access=access)) as url,
        browsing(browser, f"{url}/", "401") as page,
    ):
        await expect(page.locator("#state")).to_have_text("ready")  # that is told to everybody
        secret = page.get_by_label("Token or key")
        await secret.fill("key-of-nobody")
        await secret.press("Enter")
        await ask(page, "Who am I?")
        await secret.wait_for()  # it was refused
        await secret.fill("key-of-ada-Yx3")
        await secret.press("Enter")
        await shows(page, "Hello, ada.", "done after")
        kept = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        assert "key-of" not in await page.evaluate(kept)
        assert "key-of" not in await page.content()
        await page.reload()
        await secret.wait_for()


async def test_who_types_is_not_made_to_type_a_token(browser: Browser) -> None:
    async with stage("{}", "x") as helper, browsing(browser, f"{helper.url}/", "401") as page:
        await shows(page, "ready")
        await page.route("**/v1/models", lambda route: route.fulfill(status=401, json={}))
        await page.get_by_label("Message to the agent").fill("Half a mess")
        await page.evaluate("import('/page/api.js').then(({read}) => { read('v1/models'); })")
        await page.get_by_label("Token or key").wait_for()
        await page.keyboard.type("age")
        await expect(page.get_by_label("Message to the agent")).to_have_value("Half a message")


async def test_a_session_is_not_called_by_somebody_elses_question(browser: Browser) -> None:
    """Nor is it taken for one's own that has the same id."""
    names = ("ada", "bob", "reader")
    keys: dict[str, Any] = {name: (lambda name=name: f"key-of-{name}-Yx3") for name in names}
    may_ask = Grant((Grantee("key", "ada"), Grantee("key", "bob")), frozenset({Right.ASK}))
    may_read = Grant((Grantee("key", "reader"),), frozenset({Right.READ, Right.ASK}))
    config = agent("{}", "x", access=AccessConfig(keys=keys, grants=(may_ask, may_read)))
    async with beyond(config) as url, httpx.AsyncClient(base_url=url) as http:
        for name in names:
            body = {"input": f"a question of {name}", "session_id": "plans"}
            headers = {"Authorization": f"Bearer key-of-{name}-Yx3"}
            await http.post("/v1/runs", json=body, headers=headers)
        async with browsing(browser, f"{url}/") as page:
            await page.get_by_label("Token or key").fill("key-of-reader-Yx3")
            await page.keyboard.press("Enter")
            await page.get_by_text("Sessions", exact=True).click()
            links = page.locator("#sessions a")
            await expect(links).to_have_text([f"a question of {name}" for name in reversed(names)])
            question = page.locator(".question p")
            for name in names:
                await page.locator(f"#sessions a[href$={name}]").click()
                await expect(question).to_have_text(f"a question of {name}")
                asks = page.get_by_label("Message to the agent")
                await expect(asks).to_be_visible(visible=name == "reader")


async def test_it_shows_what_is_missing(browser: Browser) -> None:
    peers = (PeerConfig("away", url="http://127.0.0.1:9"),)
    async with (
        stage("{}", "x", agents=peers) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        about = page.get_by_role("region", name="About this agent")
        await expect(about).to_contain_text("unavailableAgent away: ")
        await page.get_by_text("1 unavailable").click()
        await shows(page, "unavailable: agent away")
        await until(lambda: page.locator("#state.good, #state.bad").count())
