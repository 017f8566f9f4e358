"""A real Kubernetes API takes and refuses what the pod's models do of the kinds around an Agent."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.agents import MODEL
from support.kind_mistakes import mistakes
from support.real_api import ErrorResponse

from diptych_operator.resources.kinds import AGENT

FULL = Path(__file__).parents[1] / "diptych" / "manifest" / "full_kinds.yaml"
POOLED = {"model": MODEL, "hosting": {"pool": "default"}}
HOUSE = {"apiRef": {"name": "house"}}
IN_NO_POOL = {
    "podTemplate": {"podTemplate": {}},
    "replicas": {"replicas": 1},
    "container.image": {"container": {"image": "i"}},
    "container.imagePullPolicy": {"container": {"imagePullPolicy": "Always"}},
    "container.envFrom": {"container": {"envFrom": []}},
    "container.resources": {"container": {"resources": {}}},
    "container.env with anything": {"container": {"env": [{"name": "A", "value": "b"}]}},
    "a tool server with command": {"tools": [{"name": "t", "command": ["t"]}]},
}


@pytest.fixture
def create(kube_api):
    def dry_create(kind, spec, name="a"):
        path = replace(AGENT, plural=f"{kind.lower()}s").path("team")
        metadata = {"name": name, "namespace": "team"}
        content = {"apiVersion": AGENT.api_version, "kind": kind, "metadata": metadata}
        strict = "?dryRun=All&fieldValidation=Strict"
        return kube_api.ask("POST", path + strict, {**content, "spec": spec})

    return dry_create


def test_every_field_is_taken(create):
    for manifest in yaml.safe_load_all(FULL.read_text(encoding="utf-8")):
        made = create(manifest["kind"], manifest["spec"], manifest["metadata"]["name"])
        assert made["spec"] == manifest["spec"]


@pytest.mark.parametrize(("kind", "spec", "line"), mistakes())
def test_a_mistake_is_refused(create, kind, spec, line):
    with pytest.raises(ErrorResponse) as caught:
        create(kind, spec)
    said = line.partition(": ")[2]
    if "must be" not in said and "known field" not in said:  # a rule of ours, in our words
        assert said in str(caught.value)


def test_a_name_has_57_characters_at_most(create):
    create("AgentPool", {}, "a" * 57)
    with pytest.raises(ErrorResponse, match="57 characters at most"):
        create("AgentPool", {}, "a" * 58)


def test_an_agent_refers_to_them(create):
    create("Agent", {"model": HOUSE, "budget": {"cost": "1"}})
    create("Agent", {**POOLED, "container": {"env": [{"name": "DEBUG_MOCK_RESPONSES"}]}})
    create("Agent", {"model": MODEL, "tools": [{"name": "t", "ref": {"name": "calc"}}]})
    for spec, said in (
        ({"model": {}}, "needs provider, endpoint or apiRef"),
        ({"model": {**HOUSE, **MODEL}}, "apiRef takes provider, endpoint, apiKey and headers"),
        ({"model": {"endpoint": "http://m"}}, "name is required"),
        (
            {"model": MODEL, "tools": [{"name": "t", "ref": {"name": "c", "kind": "K"}}]},
            "apiGroup and kind belong together",
        ),
    ):
        with pytest.raises(ErrorResponse, match=said):
            create("Agent", spec)


@pytest.mark.parametrize("field", IN_NO_POOL)
def test_an_agent_in_a_pool_has_no_pods_of_its_own(create, field):
    create("Agent", {"model": MODEL, **IN_NO_POOL[field]})
    with pytest.raises(ErrorResponse, match=r"hosting\.pool excludes what needs pods"):
        create("Agent", {**POOLED, **IN_NO_POOL[field]})
