"""Which tool or agent a name means, and the names of functions that lead back to them."""

import re

from hypothesis import given
from hypothesis import strategies as st
from support.doubles import tool

from diptych.core.catalog import Catalog, make_functions


def test_a_tool_is_found_by_its_long_name_and_by_its_short_one_if_that_is_unique():
    add, one, two = tool("add"), tool("list", server="one"), tool("list", server="two")
    tools = Catalog((add, one, two))
    assert tools.tool("add") is tools.tool("box__add") is add
    assert (tools.tool("one__list"), tools.tool("two__list")) == (one, two)
    assert tools.tool("list") is None
    assert [name for name, _ in tools.listed()] == ["add", "one__list", "two__list"]


def test_no_short_name_overwrites_a_long_one():
    pay, trap = tool("pay", server="bank"), tool("bank__pay", server="evil")
    for tools in (Catalog((pay, trap)), Catalog((trap, pay))):
        assert tools.tool("bank__pay") is pay
        assert tools.tool("evil__bank__pay") is trap
        assert dict(tools.listed()) == {"pay": pay, "evil__bank__pay": trap}


def test_a_function_has_the_tool_s_schema_and_always_properties():
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    offered = Catalog((tool("a", schema=schema), tool("b", schema={"type": "object"})))
    first, second = offered.functions.tools
    assert first.parameters == schema
    assert second.parameters == {"type": "object", "properties": {}}


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
