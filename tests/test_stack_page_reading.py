"""What the page draws, in a real browser: answers, the first screen, sessions, several agents.

With DIPTYCH_SCREENSHOTS=1 it writes the pictures of the docs, too: docs/images/page-*.png.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, expect
from support.browser import CHROMIUM, ask, browsing, shows
from support.model_server import ModelServer, model_server
from support.stack import agent, box, call, stage, stages

from diptych.manifest.settings import AgentConfig, ModelConfig, PeerConfig
from diptych.policy.rules import Policy, Rule

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not here: THE PAGE WAS NOT TRIED IN A BROWSER"
    ),
]

IMAGES = Path(__file__).parent.parent / "docs/images"
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
TAKES_PICTURES = os.environ.get("DIPTYCH_SCREENSHOTS") == "1"
DRAWN = {"p", "h3", "h4", "ul", "ol", "li", "br", "code", "pre", "a", "span", "bdi", "div"} | {
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}
ANSWER = """## A weekend in Oslo

Saturday is **sunny**; see [the forecast](https://weather.example/oslo?days=2).

| day | high | low |
|:--|--:|--:|
| Saturday | 21 | 12 |
| Sunday | 19 | 11 |

1. Take the *ferry*
2. Pack light

```python
def is_warm(high: int) -> bool:
    return high > 18
```
"""
HOSTILE = """#### Deep first

<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>

<table><tr><td><table><tr><td><iframe src="https://evil.example/"></iframe></td></tr></table>

| a | <table><tr><td>b</td></tr></table> |
|---|---|
| <svg onload="document.title='owned'"> | [c](javascript:alert(1)) |

[one](javascript:document.title='owned') [two](JaVaScRiPt&#58;alert(1)) [three](vbscript:x)
[four](data:text/html,<script>alert(1)</script>) [five](https://bank.example@evil.example/)
[six](/v1/runs) [seven](//evil.example/x) <javascript:alert(1)> [eight](file:///etc/passwd)
![picture](data:image/png;base64,iVBORw0KGgo=) ![picture](https://evil.example/pixel.png)
[\u202egnp.elif](https://evil.example/\u202egnp.exe) \u0645\u0631\u062d\u0628\u0627 &lt;b&gt; &#0;

[ref]

[ref]: javascript:alert(1)
"""
COUNT_RENDERS = """() => {
    window.renders = 0;
    const isProse = ({target}) => target.className === "prose";
    new MutationObserver((seen) => { window.renders += Number(seen.some(isProse)); })
        .observe(document.getElementById("conversation"), {childList: true, subtree: true});
}"""


COUNT_LAYOUTS = """() => {
    window.layouts = 0;
    const {get} = Object.getOwnPropertyDescriptor(Element.prototype, "scrollHeight");
    Object.defineProperty(Element.prototype, "scrollHeight", {
        get() { window.layouts += 1; return get.call(this); },
    });
}"""
"""Counts how often the page asks how high it is, for which a browser lays out all of it."""


async def weather(city: str, days: int) -> dict[str, Any]:
    """Read the forecast of a city."""
    return {"city": city, "days": [{"high": 21, "low": 12}, {"high": 19, "low": 11}][:days]}


async def book(ferry: str, people: int) -> str:
    """Book a ferry; somebody must agree."""
    return f"{ferry} is booked for {people}"


REPLIES = (
    call("weather", city="Oslo", days=2),
    json.dumps({"agent": "researcher", "task": "Which ferry is quiet?"}),
    call("book", ferry="B1", people=2),
    "{}",
    ANSWER,
)


def guide(model: ModelServer) -> AgentConfig:
    config = agent(
        model=model,
        name="guide",
        description="Plans weekends: reads forecasts, asks the researcher, books ferries.",
        examples=("How is the weather in Oslo?", "Plan a weekend in Bergen."),
        tools=(box(weather, book),),
        agents=(PeerConfig("researcher", url="researcher"), PeerConfig("away", url=_NOWHERE)),
        policy=Policy((Rule("tool", "book", "ask", reason="Bookings need a person."),)),
    )
    return replace(config, model=ModelConfig("gpt-5-mini", model.url))


def researcher() -> AgentConfig:
    return agent("{}", "B1 is quiet.", name="researcher", description="Looks things up.")


_NOWHERE = "http://127.0.0.1:9"


async def tells(page: Page, *events: tuple[str, Any, dict[str, Any]]) -> None:
    """Let every run tell these events, each a type, a content and its metadata."""
    told = "".join(
        f"id: {seq}\nevent: {kind}\ndata: "
        + json.dumps({"content": content, "metadata": about, "timestamp": "2026-11-23T12:00:00Z"})
        + "\n\n"
        for seq, (kind, content, about) in enumerate(events, 1)
    )

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/event-stream", body=told)

    await page.route("**/v1/runs/*/events", answer)


async def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the page, dark and light."""
    found = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        found += (await Axe().run(page)).response["violations"]
    return [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in found]


async def picture(page: Page, name: str) -> None:
    """Write a picture of the docs, if that is asked for."""
    if TAKES_PICTURES:
        IMAGES.mkdir(exist_ok=True)
        await page.screenshot(path=IMAGES / f"page-{name}.png")
        assert (IMAGES / f"page-{name}.png").stat().st_size < 150_000


async def test_each_screen_is_accessible(browser: Browser) -> None:
    width = 800 if TAKES_PICTURES else 360
    async with (
        model_server(*REPLIES) as model,
        stages(guide(model), researcher()) as (served, _),
        browsing(browser, "about:blank") as page,
    ):
        await page.set_viewport_size({"width": width, "height": 740})
        await page.goto(served.url)
        about = page.get_by_role("region", name="About this agent")
        for text in (
            "readygpt-5-mini",
            "weather Read the forecast of a city.",
            "researcher Looks things up.",
            "unavailableAgent away: ",
        ):
            await expect(about).to_contain_text(text)
        assert await violations(page) == []
        await picture(page, "first")
        await page.get_by_role("button", name="How is the weather in Oslo?").press("Enter")
        await expect(page.get_by_label("Message to the agent")).to_be_focused()
        approve = page.get_by_role("button", name="Approve", exact=True)
        await expect(approve).to_be_enabled()
        assert await violations(page) == []
        await picture(page, "approval")
        await approve.press("Enter")
        await expect(page.locator(".became")).to_be_focused()
        await shows(page, "The call was made: B1 is booked for 2", "done after", "tokens: ")
        await expect(page.locator(".work")).to_have_js_property("open", value=False)
        await expect(page.locator(".work > summary")).to_have_text(
            re.compile(r"Worked: 3 calls · .* · \d+ tokens")
        )
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            await picture(page, f"answer-{scheme}")
        await page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true })")
        await expect(page.locator("#sessions a")).to_have_text(["How is the weather in Oslo?"])
        assert await violations(page) == []
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.evaluate(wide)


async def test_an_answer_is_drawn_as_markdown_and_copied_as_it_is(browser: Browser) -> None:
    reply = {"content": ANSWER, "chunk_ms": 1}
    async with stage("{}", reply) as helper, browsing(browser, helper.url) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await ask(page, "Go")
        await shows(page, "done after")
        answer = page.locator(".answer")
        await expect(answer.get_by_role("heading", name="A weekend in Oslo")).to_be_visible()
        await expect(answer.get_by_role("row")).to_have_text(
            ["dayhighlow", "Saturday2112", "Sunday1911"]
        )
        await expect(answer.locator("ol > li")).to_have_text(["Take the ferry", "Pack light"])
        link = answer.get_by_role("link", name="the forecast")
        assert await link.get_attribute("target") == "_blank"
        assert await link.get_attribute("rel") == "noopener noreferrer"
        await shows(page, "(https://weather.example/oslo?days=2)")
        clipboard = "navigator.clipboard.readText()"
        await answer.get_by_role("button", name="Copy the code").click()
        await expect(answer.get_by_role("button", name="Copy the code")).to_have_text("Copied")
        code = "def is_warm(high: int) -> bool:\n    return high > 18"
        assert await page.evaluate(clipboard) == code
        await answer.get_by_role("button", name="Copy the answer").click()
        await expect(answer.get_by_role("button", name="Copy the answer")).to_have_text("Copied")
        assert await page.evaluate(clipboard) == ANSWER


async def test_hostile_markdown_is_text_or_harmless(browser: Browser) -> None:
    asked: list[str] = []
    async with stage("{}", HOSTILE) as helper, browsing(browser, helper.url) as page:
        page.on("request", lambda request: asked.append(request.url))
        await ask(page, "Go")
        await shows(page, "done after")
        drawn = await page.locator(".prose *").evaluate_all("all => all.map(e => e.localName)")
        assert set(drawn) <= DRAWN
        links = page.locator(".prose a")
        addresses = [await each.get_attribute("href") for each in await links.all()]
        evil = "https://evil.example/"
        assert addresses == [f"{evil}pixel.png", f"{evil}%E2%80%AEgnp.exe"]
        await shows(page, "<b>", "[one](javascript:document.title='owned')", "[ref]")
        await shows(page, "<table><tr><td><table>")
        assert await page.title() == helper.name
        assert all(url.startswith(helper.url) for url in asked)
        assert await violations(page) == []  # a heading leaves no level out


async def test_what_is_long_or_deep_is_shown_as_text(browser: Browser) -> None:
    long = "**word** " * 600_000  # 5 MB
    deep = ">" * 20_000 + " down"
    lists = "".join(f"{' ' * 2 * n}- a\n" for n in range(200))
    async with stage("{}", "x") as helper, browsing(browser, helper.url) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        texts = (long, deep, lists)
        answers = [("agent_response", text, {}) for text in texts]
        await tells(page, ("text", long, {}), *answers, ("completed", "", {}))
        await ask(page, "Go")
        await shows(page, "done after", "characters more are not drawn")
        prose = page.locator(".prose")
        lengths = await prose.evaluate_all("all => all.map((each) => each.textContent.length)")
        assert 500_000 < lengths[0] < 501_000
        assert await prose.nth(1).text_content() == deep
        depth = "(each) => { let n = 0; for (; each; each = each.parentElement) n += 1; return n }"
        deepest = prose.nth(2).locator(":scope *").last
        assert await deepest.evaluate(depth) < 70
        await page.get_by_role("button", name="Copy the answer").first.click()
        await shows(page, "Copied")
        assert await page.evaluate("navigator.clipboard.readText().then((t) => t.length)") == len(
            long
        )


async def test_2000_events_are_drawn_in_few_steps_and_nodes(browser: Browser) -> None:
    calls = 500
    pieces = [f"line {n}\n\n" for n in range(2 * calls)]
    events: list[tuple[str, Any, dict[str, Any]]] = [("user_message", "Go", {})]
    for n in range(calls):
        about = {"call_id": f"call_{n}"}
        arguments = {"numbers": list(range(50)), "text": "word " * 50}
        events.append(("tool_call", {"tool": "add", "arguments": arguments}, about))
        events.append(("tool_result", "word " * 100, about))
    events += [("text", piece, {}) for piece in pieces]
    events += [("agent_response", "".join(pieces), {}), ("completed", "", {})]
    async with stage("{}", "x") as helper, browsing(browser, helper.url) as page:
        await tells(page, *events)
        await page.evaluate(COUNT_RENDERS)
        await page.evaluate(COUNT_LAYOUTS)
        await ask(page, "Go")
        await shows(page, "done after", "Worked: 500 calls")
        await expect(page.locator(".prose p")).to_have_count(len(pieces))
        assert 0 < await page.evaluate("window.renders") < len(pieces) / 4
        assert await page.evaluate("window.layouts") < len(pieces) / 3
        assert await page.locator(".work *").count() < 12 * calls
        first = page.locator(".steps details").first
        await page.locator(".work > summary").click()
        await first.locator("summary").click()
        await expect(first.get_by_role("group", name="Arguments")).to_contain_text('"numbers"')
        await expect(first.get_by_role("group", name="Result")).to_contain_text("word word")


async def test_a_question_is_asked_again_or_changed_in_a_session_of_its_own(
    browser: Browser,
) -> None:
    replies = [f"Answer {n}." for n in range(1, 6)]
    script = [each for answer in replies for each in ("{}", answer)]
    async with (
        model_server(*script) as model,
        stage(model=model) as helper,
        browsing(browser, helper.url) as page,
    ):
        questions, answers = page.locator(".question p"), page.locator(".answer .prose")
        again = page.get_by_role("button", name="Ask again")
        await ask(page, "First?")
        await again.click()  # there is nothing before it
        await expect(answers).to_have_text(["Answer 2."])
        await ask(page, "Second?")
        await expect(answers).to_have_text(["Answer 2.", "Answer 3."])
        before = page.url
        await page.get_by_role("button", name="Edit the question").click()
        field = page.get_by_label("Message to the agent")
        await expect(field).to_have_value("Second?")
        await field.press("Escape")
        await expect(field).to_have_value("")
        await page.get_by_role("button", name="Edit the question").click()
        await field.fill("Third?")
        await page.get_by_role("button", name="Ask this instead").click()
        await expect(answers).to_have_text(["Answer 2.", "Answer 4."])
        await again.click()
        await expect(answers).to_have_text(["Answer 2.", "Answer 5."])
        await page.reload()
        await expect(again).to_be_visible()
        await expect(questions).to_have_text(["First?", "Third?"])
        await expect(answers).to_have_text(["Answer 2.", "Answer 5."])
        await page.goto(before)
        await expect(answers).to_have_text(["Answer 2.", "Answer 3."])
        asked = [e["content"] for e in await helper.memory() if e["event_type"] == "user_message"]
        assert asked == ["First?", "First?", "Second?", "Third?", "Third?"]


async def test_sessions_are_found_by_their_first_words(browser: Browser) -> None:
    async with (
        stage("{}", "One.", "{}", "Two.", "{}", "Three.") as helper,
        browsing(browser, helper.url) as page,
    ):
        for text, session in (("Hats, please", "a"), ("And shoes", "a"), ("A red coat", "b")):
            await helper.ended(await helper.start(text, session_id=session))
        await page.get_by_text("Sessions", exact=True).click()
        links = page.locator("#sessions a")
        await expect(links).to_have_text(["A red coat", "Hats, please"])
        await page.get_by_label("Search").fill("please HATS")
        await expect(links).to_have_text(["Hats, please"])
        await links.click()
        await expect(page.locator(".question p")).to_have_text(["Hats, please", "And shoes"])
        await page.get_by_label("Search").fill("shoes")
        await shows(page, "No session has these words.")


async def test_the_first_port_offers_each_agent(browser: Browser) -> None:
    configs = [agent("{}", f"I am {n}.", name=n, description=f"Is {n}.") for n in ("ada", "bob")]
    async with stages(*configs) as (ada, bob), browsing(browser, ada.url) as page:
        choice = page.get_by_label("Agent", exact=True)
        await shows(page, "Is ada.")
        await choice.select_option("bob")
        await shows(page, "Is bob.")
        await ask(page, "Who?")
        await shows(page, "I am bob.", "done after")
        await page.reload()
        await shows(page, "I am bob.", "done after")
        await expect(choice).to_have_value("bob")
        assert len((await bob.http.get("/v1/runs")).json()["data"]) == 1
        await choice.select_option("ada")
        await expect(page.get_by_role("heading", name="ada")).to_be_visible()
        await expect(page.locator(".answer")).to_have_count(0)
        await page.goto(f"{ada.url}/agents/bob/")
        await shows(page, "Is bob.")
        await expect(choice).to_be_hidden()
