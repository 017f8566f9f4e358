"""`diptych pin` as a person types it, with the demo's tool server."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Type = Callable[..., Any]
MANIFEST = """\
# Mine.
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec:
  container: {env: [{name: DEBUG_MOCK_RESPONSES, value: '["{}", "x"]'}]}
  tools:
  - name: demo   # of this package
    command: [diptych, demo-tools]
"""


def pins_in(file: Path) -> Any:
    return yaml.safe_load(file.read_text())["spec"]["tools"][0].get("pin")


def test_pin_writes_the_pins_and_says_what_has_changed(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(MANIFEST)
    file.chmod(0o640)
    outcome = typed("pin", str(file))
    assert outcome.code == 0, outcome.err
    assert "✓ demo: 3 tools, new: " in outcome.out
    assert file.read_text().startswith(MANIFEST[: MANIFEST.index("    command")])
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]
    pins = pins_in(file)
    assert [sorted(pin) for pin in pins] == [["digest", "tool"]] * 3
    assert typed("check", str(file)).code == 0
    as_it_was = file.read_text()
    assert "3 tools, as before" in typed("pin", str(file)).out
    assert file.read_text() == as_it_was

    first = pins[0]["digest"]
    file.write_text(as_it_was.replace(first, f"sha256:{'0' * 64}"))
    changed = typed("check", "--online", str(file))
    assert (changed.code, f"changed since pinned: {pins[0]['tool']}" in changed.out) == (1, True)
    outcome = typed("pin", str(file))
    assert f"3 tools, changed: {pins[0]['tool']}" in outcome.out
    assert file.read_text() == as_it_was


def test_a_server_that_does_not_answer_keeps_its_pins(typed: Type, tmp_path: Path) -> None:
    pinned = f'    pin: [{{tool: pay, digest: "sha256:{"0" * 64}"}}]\n'
    away = f"  - name: away\n    url: http://127.0.0.1:9/mcp\n{pinned}"
    file = tmp_path / "agent.yaml"
    file.write_text(MANIFEST + away)
    outcome = typed("pin", str(file))
    assert outcome.code == 1
    assert "✗ away: connection refused; its pins stay as they are" in outcome.out
    assert file.read_text().endswith(away)
    assert pins_in(file)


def test_an_agent_without_tools_is_not_passed_over_in_silence(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(MANIFEST[: MANIFEST.index("  tools:")])
    outcome = typed("pin", str(file))
    assert outcome.code == 0
    assert "it has no tool servers, and nothing to pin" in outcome.out
