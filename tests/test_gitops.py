"""What GitOps tools make of an Agent's status: Argo CD by its script, Flux by docs/gitops.md.

Argo CD's is run by a real Lua 5.1 with as few libraries as Argo CD gives it, and, where there is
Go, by the interpreter that Argo CD embeds (`gitops/argocd`). Flux's is run by a real CEL. Neither
Argo CD nor Flux is here, nor is kstatus' own library.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel
from lupa import lua51
from support.agent_states import STATES
from support.agents import agent

from diptych_operator.status.conditions import agent_status

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "charts" / "diptych" / "files" / "argocd" / "health.lua"
PAGE = ROOT / "docs" / "gitops.md"
NOW = "2026-11-21T12:00:00Z"
PINNED = agent(tools=[{"name": "t", "url": "http://t", "pin": [{"tool": "add"}]}])


def health(content: dict[str, Any]) -> tuple[str, str]:
    """Judge an object as Argo CD does, which opens the basic and table libraries only."""
    lua = lua51.LuaRuntime(register_eval=False)
    lua.execute("string, io, os, debug, math, coroutine = nil, nil, nil, nil, nil, nil")
    lua.globals().obj = lua.table_from(content, recursive=True)
    found = lua.execute(SCRIPT.read_text())
    return found.status, found.message


def live(inputs: Any, generation: int = 1) -> dict[str, Any]:
    status = agent_status(PINNED, inputs, NOW)
    return {"metadata": {"generation": generation}, "status": status}


def test_each_state_has_its_health_and_says_why() -> None:
    for name, (inputs, expected) in STATES.items():
        content = live(inputs)
        assert health(content) == (expected, content["status"]["advice"]), name


def test_an_agent_that_no_operator_has_seen_is_progressing() -> None:
    for content in ({}, {"status": {}}):
        status, message = health({"metadata": {"generation": 1}, **content})
        assert (status, message) == ("Progressing", "No operator has seen it yet.")


def test_a_status_of_an_older_manifest_is_not_believed() -> None:
    status, message = health(live(STATES["all is well"][0], generation=2))
    assert (status, "newest manifest" in message) == ("Progressing", True)


def argo_cds(contents: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Judge objects by the Lua interpreter of Argo CD; skips where it cannot be built."""
    if not (go := shutil.which("go")):
        pytest.skip("there is no Go: ARGO CD'S INTERPRETER WAS NOT TRIED")
    folder = Path(__file__).parent / "gitops" / "argocd"
    ran = subprocess.run(
        [go, "run", ".", str(SCRIPT)],
        cwd=folder,
        input=json.dumps(contents),
        capture_output=True,
        text=True,
        check=False,
    )
    if "proxy" in ran.stderr:
        pytest.skip(f"ARGO CD'S INTERPRETER WAS NOT TRIED: {ran.stderr[-200:]}")
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


@pytest.mark.timeout(300)  # the first time it is built
def test_argo_cds_own_interpreter_finds_the_same() -> None:
    contents = [live(inputs) for inputs, _ in STATES.values()]
    contents += [{"metadata": {"generation": 1}}, live(STATES["all is well"][0], generation=2)]
    wanted = [{"status": status, "message": message} for status, message in map(health, contents)]
    assert argo_cds(contents) == wanted
    assert len(contents) > 10


def flux(content: dict[str, Any]) -> str:
    """Judge an object by the page's expressions, in the order in which Flux evaluates them."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (checks,) = yaml.safe_load(block)["spec"]["healthCheckExprs"]
    fields = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    environment = cel.NewEnv(variables={"status": fields, "metadata": fields})
    data = {"metadata": content["metadata"], "status": content.get("status", {})}
    for stage in ("inProgress", "failed", "current"):
        value = environment.compile(checks[stage]).eval(data=data)
        assert value.type().name() == "BOOL", value
        if value.plain_value():
            return stage
    return "inProgress"


def test_flux_waits_fails_and_goes_on_as_argo_cd_does() -> None:
    """But for what is Stalled by nothing: Flux waits for a pod that does not come up."""
    allowed = {
        "Healthy": {"current"},
        "Progressing": {"inProgress"},
        "Degraded": {"failed", "inProgress"},
        "Suspended": {"failed"},
    }
    for name, (inputs, expected) in STATES.items():
        assert flux(live(inputs)) in allowed[expected], name


def test_flux_waits_for_an_operator_that_has_not_seen_the_newest_manifest() -> None:
    assert flux({"metadata": {"generation": 1}}) == "inProgress"
    assert flux(live(STATES["all is well"][0], generation=2)) == "inProgress"
