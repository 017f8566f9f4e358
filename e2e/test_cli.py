"""`diptych` from outside the cluster, as people use it: kubectl says which cluster that is."""

import subprocess
import sys
from pathlib import Path

from harness.commands import output
from harness.objects import agent
from harness.release import Release
from harness.space import Space

BIN = Path(sys.executable).parent
HELLO = ["{}", "Hello!"]


def test_an_agent_is_asked_and_followed_by_its_name_and_by_the_plugin_of_kubectl(space: Space):
    space.serve(agent("hello", HELLO))
    assert _diptych(space, "run", "hello", "Who is there?").strip() == "Hello!"
    assert "Hello!" in _diptych(space, "chat", "hello", stdin="Who is there?\n")
    assert "agent_response" in _diptych(space, "events", "hello")

    # The plugin is the same.
    env = {**space.kubectl.env, "PATH": f"{BIN}:{space.kubectl.env['PATH']}"}
    asked = ("kubectl", "diptych", "run", f"{space.name}/hello", "Who is there?")
    assert output(*asked, env=env).strip() == "Hello!"


def test_status_names_the_operator_and_an_agent_that_is_not_ready(diptych: Release, space: Space):
    space.kubectl.apply(agent("hello", HELLO, podTemplate={"spec": {"nodeSelectr": {"a": "b"}}}))
    space.kubectl.wait_for_condition("hello", "Accepted", "False", reason="Refused")
    told = _status(diptych)
    assert f"operator  {diptych.kubectl.namespace}/{diptych.name}" in told
    assert f"{space.name}/hello" in told


def _diptych(space: Space, *arguments: str, stdin: str | None = None) -> str:
    command = (str(BIN / "diptych"), *arguments, "--namespace", space.name)
    return output(*command, env=space.kubectl.env, stdin=stdin, timeout=60)


def _status(diptych: Release) -> str:
    """Give what `status` says, which fails while something is not as it should be."""
    result = subprocess.run(
        [BIN / "diptych", "status"],
        env=dict(diptych.kubectl.env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.stdout + result.stderr
