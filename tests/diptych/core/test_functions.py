"""Names of functions, and what they lead back to."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doubles import catalog, tool

from diptych.core.catalog import Catalog, make_functions


def test_tools_and_agents_are_functions_in_the_catalog_s_order():
    offered = catalog("echo", "add", agents=["writer"])
    assert [f.name for f in offered.functions.tools] == ["echo", "add", "delegate_to_writer"]
    assert offered.functions.targets["delegate_to_writer"] == ("agent", "writer")
    assert offered.functions.tools[2].parameters["required"] == ["task"]


def test_a_function_has_the_tool_s_schema_and_always_properties():
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    offered = Catalog((tool("a", schema=schema), tool("b", schema={"type": "object"})))
    first, second = offered.functions.tools
    assert first.parameters == schema
    assert second.parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["fs/read.file", "größe", "x" * 65, "", "a b"])
def test_a_name_that_no_api_takes_is_written_so_that_it_leads_back(name):
    made = make_functions([(name, "", {})], [])
    (function,) = made.tools
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function.name)
    assert made.targets == {function.name: ("tool", name)}


def test_a_tool_that_is_named_as_an_agent_s_function_keeps_its_name():
    made = make_functions([("delegate_to_x", "", {})], [("x", "")])
    assert made.targets["delegate_to_x"] == ("tool", "delegate_to_x")
    assert ("agent", "x") in made.targets.values()


@given(st.lists(st.text(max_size=80), unique=True), st.lists(st.text(max_size=80), unique=True))
def test_all_names_fit_and_each_leads_back_to_its_own(tools, agents):
    made = make_functions([(name, "", {}) for name in tools], [(name, "") for name in agents])
    assert len(made.targets) == len(tools) + len(agents)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in made.targets)
    wanted = [*(("tool", name) for name in tools), *(("agent", name) for name in agents)]
    assert list(made.targets.values()) == wanted
