"""Questions of tools on the page, in a real browser: forms, links, and what is said of them."""

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect
from support.asking import FORM, PAGE, ask_in_calls
from support.browser import CHROMIUM, ask, browsing, shows
from support.stack import box, call, stage

from diptych.core.events import InputRequest

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not here: THE PAGE WAS NOT TRIED IN A BROWSER"
    ),
]
SCRIPT = (call("book"), "{}", "That is that.")


async def book() -> str:
    """Book a trip."""
    return ""


def card(page: Page):
    return page.get_by_role("group", name="A tool asks you")


async def press(page: Page, name: str) -> None:
    """Press a button once it takes clicks."""
    button = card(page).get_by_role("button", name=name)
    await expect(button).to_be_enabled()
    await button.press("Enter")


async def test_a_form_is_made_of_its_schema_and_comes_again_with_a_reload(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_in_calls(monkeypatch, FORM)
    async with (
        stage(*SCRIPT, tools=(box(book),)) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Book it")
        await card(page).wait_for()
        await page.reload()
        await shows(page, "Who travels?")
        found = (await Axe().run(page)).response["violations"]
        assert [each["id"] for each in found] == []
        await press(page, "Send")  # the name is needed, and the browser says so
        name = card(page).get_by_label("Your name")
        await expect(name).to_be_focused()
        await expect(card(page).get_by_label("seat")).to_have_value("1")
        await name.fill("Ada")
        await card(page).get_by_label("count").fill("12")
        await press(page, "Send")
        await expect(card(page).get_by_label("count")).to_be_focused()
        await card(page).get_by_label("count").fill("2")
        await card(page).get_by_label("gift").check()
        await card(page).get_by_label("cake").check()
        await press(page, "Send")
        await shows(page, "Answered.", "done after")
        content = '"name": "Ada", "seat": "a", "count": 2, "gift": true, "meals": ["cake"]'
        await expect(page.locator(".became")).to_contain_text(f'[["accept", {{{content}}}]]')
        assert await card(page).count() == 0


async def test_a_link_names_its_host_and_a_question_waits_in_the_list(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_in_calls(monkeypatch, PAGE, FORM)
    async with (
        stage(*SCRIPT, tools=(box(book),)) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await helper.start("Book it")
        await page.get_by_text("Waiting for you").click()
        link = card(page).get_by_role("link", name="Open pay.example.com")
        for name, value in (
            ("href", PAGE.url),
            ("rel", "noopener noreferrer"),
            ("target", "_blank"),
        ):
            await expect(link).to_have_attribute(name, value)
        await card(page).get_by_role("link", name="Open its session").click()
        await page.get_by_text("Waiting for you").click()
        await press(page, "I have opened it")
        await shows(page, "Who travels?")
        await press(page, "Decline")
        await shows(page, "Declined.", "done after")
        await shows(page, '[["accept", null], ["decline", null]]')


async def test_what_is_no_web_address_is_no_link(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = ("javascript:alert(1)", "data:text/html,hi", "nowhere", "")
    signs_in = [InputRequest("sign_in", f"Sign in at {url}.", url=url) for url in urls]
    ask_in_calls(monkeypatch, *signs_in)
    async with (
        stage(*SCRIPT, tools=(box(book),)) as helper,
        browsing(browser, f"{helper.url}/") as page,
    ):
        await ask(page, "Book it")
        for asked in signs_in:
            await expect(card(page)).to_contain_text(asked.message)
            complaint = card(page).get_by_text("Its link is no web address")
            assert await complaint.count() == (1 if asked.url else 0)
            assert await card(page).get_by_role("link").count() == 0
            buttons = await card(page).get_by_role("button").all_text_contents()
            assert buttons == ["Decline", "Not now"]
            await press(page, "Not now")
        await shows(page, "Cancelled.", "done after")
