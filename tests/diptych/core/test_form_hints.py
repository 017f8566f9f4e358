"""The forms of calls that are filled in for what a message names."""

import json

import pytest

from diptych.core.catalog import Catalog, Peer, Tool
from diptych.core.prompt import form_hints

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "loud": {"type": "boolean"},
        "tone": {"enum": ["warm", "cold"]},
        "kind": {"const": "note"},
        "any": {},
        "left_out": {"type": "string"},
    },
    "required": ["text", "count", "loud", "tone", "kind", "any"],
}
TOOLS = Catalog(
    (Tool("box", "echo", "", SCHEMA), Tool("box", "get-time", "", {})),
    (Peer("researcher", ""), Peer("writer", "")),
)


@pytest.mark.parametrize(
    ("said", "tools", "agents"),
    [
        ("Use `echo`, then 'get-time'", ["echo", "get-time"], []),
        ("Let writer use echo", ["echo"], ["writer"]),
        ("Echo it: the echoes of my_echo, echo-like, getting time", [], []),
        ("echo, get-time, researcher and writer", [], []),  # too many
    ],
)
def test_what_a_message_names_as_a_word_of_its_own_has_its_form(said, tools, agents):
    found = form_hints(TOOLS, said)
    assert [json.loads(form)["tool"] for form in found.tools] == tools
    assert [json.loads(form)["agent"] for form in found.agents] == agents


def test_required_arguments_have_a_blank_of_their_type():
    (form,) = form_hints(TOOLS, "echo").tools
    blanks = {
        "text": "...",
        "count": 0,
        "loud": False,
        "tone": "warm",
        "kind": "note",
        "any": "...",
    }
    assert json.loads(form) == {"tool": "echo", "arguments": blanks}
    (form,) = form_hints(TOOLS, "get-time").tools
    assert json.loads(form) == {"tool": "get-time", "arguments": {}}


def test_broken_schemas_do_no_harm():
    broken = {"properties": [], "required": {"x": 1}}
    also = {"properties": {"x": True, "y": {"type": ["string"]}}, "required": ["x", "y", "z", 1]}
    tools = Catalog((Tool("box", "one", "", broken), Tool("box", "two", "", also)))
    assert [json.loads(form)["arguments"] for form in form_hints(tools, "one two").tools] == [
        {},
        {"x": "...", "y": "...", "z": "..."},
    ]
