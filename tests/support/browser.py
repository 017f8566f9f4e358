"""A browser at an agent's page: Debian's chromium, by playwright. It ends with its block.

One is enough for many pages: to start it takes a second, and each page has a context of its own.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = shutil.which("chromium")
_OPTIONS = [  # root needs the first one; the others keep it from asking hosts of its maker
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 20  # for which a page may take to show something: the machine may be busy


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start a browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def browsing(browser: Browser, url: str, *allowed: str) -> AsyncIterator[Page]:
    """Open a page, as somebody who has never been there.

    Fails if it says anything on its console, as a broken policy of its contents would. What is
    `allowed` may be in it: of each response that is an error the browser itself says so there.
    """
    said: list[str] = []
    context = await browser.new_context(viewport={"width": 360, "height": 740})
    try:
        page = await context.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(url)
        yield page
    finally:
        await context.close()
    assert not [line for line in said if not any(each in line for each in allowed)]


async def ask(page: Page, text: str) -> None:
    """Write a message and send it."""
    await page.get_by_label("Message to the agent").fill(text)
    await page.keyboard.press("Enter")


async def shows(page: Page, *texts: str) -> None:
    """Wait until the page shows texts."""
    for text in texts:
        await page.get_by_text(text, exact=False).first.wait_for()
