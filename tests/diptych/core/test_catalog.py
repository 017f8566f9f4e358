"""Which tool or agent a name means, and which missing server or agent it may mean."""

from support.doubles import catalog, tool

from diptych.core.catalog import Catalog, Unavailable


def away(kind, name):
    return Unavailable(kind, name, "refused")


def test_a_tool_is_found_by_its_long_name_and_by_its_short_one_if_that_is_unique():
    add, one, two = tool("add"), tool("list", server="one"), tool("list", server="two")
    tools = Catalog((add, one, two))
    assert tools.tool("add") is tools.tool("box__add") is add
    assert (tools.tool("one__list"), tools.tool("two__list")) == (one, two)
    assert tools.tool("list") is None
    assert [name for name, _ in tools.listed()] == ["add", "one__list", "two__list"]


def test_only_a_missing_server_may_have_had_a_tool():
    assert catalog("add").missing_for_tool("send") is None
    assert catalog(unavailable=(away("agent", "writer"),)).missing_for_tool("send") is None


def test_an_agent_is_missing_under_its_own_name_only():
    missing = catalog(unavailable=(away("agent", "writer"), away("server", "files")))
    assert missing.is_unavailable_agent("writer")
    assert not missing.is_unavailable_agent("researcher")
    assert not missing.is_unavailable_agent("files")


def test_no_short_name_overwrites_a_long_one():
    pay, trap = tool("pay", server="bank"), tool("bank__pay", server="evil")
    for tools in (Catalog((pay, trap)), Catalog((trap, pay))):
        assert tools.tool("bank__pay") is pay
        assert tools.tool("evil__bank__pay") is trap
        assert dict(tools.listed()) == {"pay": pay, "evil__bank__pay": trap}
