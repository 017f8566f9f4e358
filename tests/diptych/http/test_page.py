"""The page's files over HTTP; what it does in a browser is in `tests/test_stack_page.py`."""

import hashlib
import re
from pathlib import Path

from support.face import face

from diptych.http.page import routes
from diptych.http.page.routes import AGENT_PATH, PAGE_PATHS

FOLDER = Path(routes.__file__).parent
TEXTS = {
    file.name: file.read_text()
    for file in FOLDER.iterdir()
    if file.suffix != ".py" and file.is_file()
}


async def test_a_file_is_served_closed_and_asked_about_each_time() -> None:
    async with face() as helper:
        for path in sorted(PAGE_PATHS):
            first = await helper.http.get(path)
            assert first.status_code == 200
            assert first.headers["cache-control"] == "no-cache"
            assert first.headers["x-content-type-options"] == "nosniff"
            assert first.headers["referrer-policy"] == "no-referrer"
            policy = first.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "frame-ancestors 'none'", "script-src 'self'"} <= set(
                policy
            )
            assert not any("unsafe" in each or "http" in each for each in policy)
            known = {"If-None-Match": f'"x", W/{first.headers["etag"]}'}
            again = await helper.http.get(path, headers=known)
            assert (again.status_code, again.content) == (304, b"")
            other = await helper.http.get(path, headers={"If-None-Match": '"x"'})
            assert other.status_code == 200
            assert (await helper.http.post(path, json={})).status_code == 405


async def test_what_it_says_of_the_agent_is_what_its_card_says() -> None:
    async with face() as helper:
        card = (await helper.http.get("/.well-known/agent-card.json")).json()
        told = (await helper.http.get(AGENT_PATH)).json()
        assert (told["name"], told["description"]) == (card["name"], card["description"])
        assert told["asks_for_token"] is False


def test_the_page_works_below_a_gateways_prefix() -> None:
    assert not re.findall(r'(?:src|href)="/', TEXTS["index.html"])
    for name, text in TEXTS.items():
        assert not re.findall(r"""(?:send|read|act)\((?:["'`])/""", text), name


def test_what_others_wrote_is_unchanged() -> None:
    vendor = FOLDER / "vendor"
    sums = dict(line.split()[::-1] for line in (vendor / "SHA256SUMS").read_text().splitlines())
    ours = {"SHA256SUMS", "README.md"}
    assert sums.keys() == {file.name for file in vendor.iterdir()} - ours
    for name, digest in sums.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name
