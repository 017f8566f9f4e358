"""What a manifest says arrives: no field of it is dropped on the way."""

import pytest
import yaml
from pydantic import create_model
from pydantic.alias_generators import to_camel

from diptych.core.run_settings import RunSettings
from diptych.manifest import API_VERSION
from diptych.manifest.agent import ChatSpec, LoopSpec
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.model import Parameters, Timeouts
from diptych.manifest.resolver import _fields_of
from diptych.manifest.settings import ChatConfig, ModelConfig, OverrideConfig, TimeoutConfig
from diptych.manifest.tools import Override

LOOP = {
    "max_steps": 7,
    "on_max_steps": "answer",
    "answer_mode": "direct",
    "max_calls_per_step": 3,
    "max_parallel_calls": 2,
    "max_retries": 9,
    "answer_repairs": 1,
    "memory_context_limit": 0,
    "deadline": 12.0,
}


def resolved(tmp_path, **spec):
    """Give the configuration of an agent with this spec."""
    file = tmp_path / "agent.yaml"
    model = {"name": "m", "endpoint": "https://models.example.com/v1"} | spec.pop("model", {})
    metadata = {"name": "helper"}
    content = {"apiVersion": API_VERSION, "kind": "Agent", "metadata": metadata}
    file.write_text(yaml.safe_dump(content | {"spec": {"model": model, **spec}}))
    return load_agents([file], LocalOptions()).resolve(["http://127.0.0.1:8001"])[0]


def test_every_bound_of_the_manifest_reaches_the_runs(tmp_path):
    assert set(LOOP) == set(LoopSpec.model_fields)
    asked = {to_camel(name): value for name, value in LOOP.items()} | {"deadline": "12s"}
    definition = resolved(tmp_path, loop=asked).definition
    arrived = {name: getattr(definition.settings, name) for name in LOOP if name != "deadline"}
    assert {**arrived, "deadline": definition.deadline} == LOOP


def test_what_the_model_and_the_sessions_set_for_runs_reaches_them_too(tmp_path):
    model = {"actionFormat": "native"}
    asked = {"whenBusy": "reject", "queueMode": "all"}
    definition = resolved(tmp_path, model=model, sessions=asked).definition
    assert definition.settings == RunSettings(action_format="native", queue_mode="all")
    assert definition.when_busy == "reject"


@pytest.mark.parametrize(
    ("part", "config", "needed"),
    [
        pytest.param(LoopSpec, RunSettings, {}, id="loop"),
        pytest.param(ChatSpec, ChatConfig, {}, id="chat"),
        pytest.param(Timeouts, TimeoutConfig, {}, id="timeouts"),
        pytest.param(Parameters, ModelConfig, {"name": "m", "endpoint": ""}, id="parameters"),
        pytest.param(Override, OverrideConfig, {"tool": "pay"}, id="override"),
    ],
)
def test_a_field_that_no_setting_has_is_refused_and_not_dropped(part, config, needed):
    misspelt = create_model("Misspelt", __base__=part, mood=(str, "good"))
    values = _fields_of(misspelt.model_construct(**needed), but="deadline")
    with pytest.raises(TypeError, match="mood"):
        config(**needed | values)
    del values["mood"]
    assert config(**needed | values)
