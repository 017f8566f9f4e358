"""Pins are written into the text of a manifest, and nothing else of it changes."""

from pathlib import Path

import pytest
import yaml

from diptych.core.errors import ConfigError
from diptych.manifest.pinning import check_written, with_pins

FILE = Path("agent.yaml")
ONE = f"sha256:{'1' * 64}"
TWO = f"sha256:{'2' * 64}"
PINS = {("default", "clerk"): {"bank": {"pay": ONE, "see": TWO}}}
HEAD = """\
# An agent.
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: clerk}   # in default
spec:
  instructions: |
    Be brief.   # no comment
  tools:
"""


def written(text: str, pins: object = None) -> str:
    chosen = PINS if pins is None else pins
    after = with_pins(text, chosen)  # type: ignore[arg-type]
    check_written(FILE, text, after, chosen)  # type: ignore[arg-type]
    return after


BLOCK = """\
  - url: http://bank/mcp  # the bank
    name: bank   # ours

    # what it may
    allow: [pay]
  # the next
  - name: other
    url: http://other/mcp
# end
"""


def test_pins_are_added_after_the_name_and_comments_stay() -> None:
    after = written(HEAD + BLOCK)
    assert after == (HEAD + BLOCK).replace(
        "    name: bank   # ours\n",
        "    name: bank   # ours\n    pin:\n"
        f'    - {{"tool": "pay", "digest": "{ONE}"}}\n'
        f'    - {{"tool": "see", "digest": "{TWO}"}}\n',
    )


def test_pins_that_are_there_are_replaced() -> None:
    once = written(HEAD + BLOCK)
    again = written(once, {("default", "clerk"): {"bank": {"pay": TWO}}})
    assert again == (HEAD + BLOCK).replace(
        "    name: bank   # ours\n",
        f'    name: bank   # ours\n    pin:\n    - {{"tool": "pay", "digest": "{TWO}"}}\n',
    )
    assert written(once) == once
    none = written(once, {("default", "clerk"): {"bank": {}}})
    assert yaml.safe_load(none)["spec"]["tools"][0]["pin"] == []


@pytest.mark.parametrize(
    "tools",
    [
        "  - {name: bank, url: http://bank/mcp}  # flow\n",
        "  - {url: http://bank/mcp, name: bank}",
        '    [{"url": "http://bank/mcp", "name": "bank"}]\n',
        f"  - {{name: bank, pin: [{{tool: x, digest: '{TWO}'}}], url: http://bank/mcp}}\n",
        f"  - name: bank\n    pin: [{{tool: x, digest: '{TWO}'}}]  # of May\n    url: http://b\n",
        f"  - name: bank\n    pin:\n      - tool: x\n        digest: {TWO}\n\n    # c\n",
        "  -   name: 'bank'\n      url: http://bank/mcp",
        "  - name: bank",
        "  - name:\n      bank\n    url: u\n",
        "  - env: &e [{name: A, value: b}]\n    name: bank\n  - {name: two, env: *e}\n",
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_form_of_yaml_is_written_into(tools: str, newline: str) -> None:
    text = (HEAD + tools).replace("\n", newline)
    after = written(text)
    assert after != text
    comments = [line.partition("#")[2] for line in text.split(newline) if "#" in line]
    assert all(f"#{comment}" in after for comment in comments)
    assert written(after) == after
    assert ("\n" in after.replace("\r\n", "")) == (newline == "\n")


def test_json_stays_json() -> None:
    text = (
        '{"kind": "Agent", "metadata": {"name": "clerk"}, "spec": {"tools": '
        '[{"name": "bank", "url": "http://bank"}]}}'
    )
    import json  # noqa: PLC0415

    assert json.loads(written(text))["spec"]["tools"][0]["pin"][1] == {"tool": "see", "digest": TWO}


def test_only_the_agent_that_is_meant_is_changed() -> None:
    other = (HEAD + BLOCK).replace("name: clerk", "name: clerk, namespace: far")
    secret = "kind: Secret\nmetadata: {name: clerk}\nstringData: {a: b}\n"
    both = "---\n".join([other, HEAD + BLOCK, secret])
    assert written(both) == "---\n".join([other, written(HEAD + BLOCK), secret])


@pytest.mark.parametrize(
    "tools",
    [
        "  - &s {name: bank, url: http://bank/mcp}\n  - <<: *s\n    name: other\n",
        "  - &s\n    name: bank\n    url: u\n  - <<: *s\n    name: other\n",
    ],
)
def test_what_would_change_more_than_pins_is_refused(tools: str) -> None:
    text = HEAD + tools
    with pytest.raises(ConfigError, match="cannot be changed without changing more"):
        written(text)
