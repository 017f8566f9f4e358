from dataclasses import dataclass, fields
from decimal import Decimal

import pytest

from diptych.core.budget import Budget, Prices
from diptych.core.run_settings import RunSettings, decode_settings, encode_settings

AS_RECORDED = {
    "max_steps": 5,
    "on_max_steps": "stop",
    "max_retries": 3,
    "max_calls_per_step": 16,
    "max_parallel_calls": 8,
    "memory_context_limit": 6,
    "answer_mode": "separate",
    "answer_repairs": 2,
    "output_schema": None,
    "reply_rules": 2,
    "action_format": "json",
    "queue_mode": "one",
}
OTHERS = {
    "max_steps": 9,
    "on_max_steps": "answer",
    "max_retries": 0,
    "max_calls_per_step": 2,
    "max_parallel_calls": 1,
    "memory_context_limit": 0,
    "answer_mode": "direct",
    "answer_repairs": 0,
    "output_schema": {"type": "object"},
    "reply_rules": 1,
    "action_format": "auto",
    "queue_mode": "all",
    "hooks": ("beforeCall", "validateAnswer"),
    "budget": Budget(tokens=7, cost=Decimal("0.50")),
    "prices": Prices(Decimal(1), Decimal("2.5")),
}


@dataclass(frozen=True)
class LaterSettings(RunSettings):
    mood: str = "good"
    words: tuple[str, ...] = ()


def test_a_new_setting_is_on_record_only_where_it_is_used():
    assert encode_settings(LaterSettings()) == AS_RECORDED == encode_settings(RunSettings())
    assert encode_settings(LaterSettings(mood="bad")) == {**AS_RECORDED, "mood": "bad"}


def test_an_older_version_reads_settings_without_what_is_new():
    assert decode_settings(encode_settings(LaterSettings(3))) == RunSettings(3)
    with pytest.raises(TypeError, match="mood"):
        decode_settings(encode_settings(LaterSettings(mood="bad")))


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_is_read_as_it_was_recorded(name):
    settings = RunSettings(**{name: OTHERS[name]})
    assert settings != RunSettings()
    assert decode_settings(encode_settings(settings)) == settings


def test_every_setting_is_tried_here():
    assert [each.name for each in fields(RunSettings)] == list(OTHERS)


def test_settings_of_version_0_1_are_read_by_its_rules():
    recorded = {"max_steps": 4, "hooks": ["beforeCall"]}
    expected = RunSettings(4, reply_rules=1, queue_mode="all", hooks=("beforeCall",))
    assert decode_settings(recorded) == expected
