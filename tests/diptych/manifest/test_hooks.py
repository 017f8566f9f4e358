"""Hooks of a manifest: what they may say, and where they may be."""

from pathlib import Path
from typing import Any

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import LocalOptions, config_from_content, load_agents


def config(**hook: Any) -> Any:
    content = {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "helper"},
        "spec": {
            "model": {"name": "m", "endpoint": "http://127.0.0.1:8000/v1"},
            "hooks": [{"at": "beforeCall", "url": "https://guards.example.com", **hook}],
        },
    }
    environ = {"GUARDS_KEY": "whsec_c2VjcmV0", "GUARDS_TOKEN": "t"}
    return config_from_content(content, SourceLocation("agent.yaml"), LocalOptions(environ))


def problem(**hook: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**hook)
    return "\n".join(caught.value.problems)


def test_a_hook_has_its_place_its_time_its_headers_and_its_key() -> None:
    (hook,) = config(
        timeout="500ms",
        headers=[
            {"name": "X-Token", "valueFrom": {"secretKeyRef": {"name": "guards", "key": "token"}}}
        ],
        signingKey={"secretKeyRef": {"name": "guards", "key": "key"}},
    ).hooks
    assert (hook.at, hook.url, hook.timeout) == ("beforeCall", "https://guards.example.com", 0.5)
    assert hook.headers["X-Token"]() == "t"
    assert hook.signing_key() == "whsec_c2VjcmV0"
    assert config().hooks[0].timeout == 2.0


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/x?y=1",
        "http://localhost:9000/x",
        "http://127.0.0.1:9000",
        "http://[::1]:9000",
        "http://guards",
        "http://guards:8080/x",
        "http://guards.team.svc",
        "http://guards.team.svc.cluster.local:80/x",
    ],
)
def test_where_nobody_reads_on_the_way_it_may_be_http(url: str) -> None:
    assert config(url=url).hooks[0].url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "http://guards.team",
        "http://guards.team.svc.example.com",
        "http://10.0.0.1/x",
        "http://2130706433/x",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://169.254.169.254/latest",
    ],
)
def test_elsewhere_http_is_refused_with_the_fix(url: str) -> None:
    assert "spec.hooks[0].url: must be https" in problem(url=url)
    assert "name.namespace.svc" in problem(url=url)


@pytest.mark.parametrize("key", ["on", '"on"'])
def test_on_is_read_as_at_and_said_to_be(tmp_path: Path, key: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(
        "apiVersion: diptych.dev/v1alpha1\nkind: Agent\nmetadata: {name: a}\nspec:\n"
        '  container: {env: [{name: DEBUG_MOCK_RESPONSES, value: \'["{}", "Hello!"]\'}]}\n'
        f"  hooks: [{{{key}: beforeCall, url: https://h.example.com}}]\n"
    )
    loaded = load_agents([file], LocalOptions())
    assert [hook.at for hook in loaded.resolve(["http://127.0.0.1:1"])[0].hooks] == ["beforeCall"]
    (note,) = loaded.notes
    assert "spec.hooks[0].on is read as at" in note
