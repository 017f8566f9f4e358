"""Questions of tools: the fields of a form, read from text."""

import pytest
from support.run_records import Writer

from diptych.cli.output.wording import event_text
from diptych.cli.questions import FormField, Question, form_fields, read_form

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]},
        "gift": {"type": "boolean", "default": False},
        "count": {"type": "integer", "minimum": 1, "description": "how many"},
    },
    "required": ["name"],
}
TITLED = {"oneOf": [{"const": "r", "title": "Red"}, {"const": "7", "title": "Seven"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "7.5", ValueError("type a whole number")),
        ({"type": "integer", "maximum": 5}, "7", ValueError("7 is greater than the maximum of 5")),
        ({"type": "number"}, "7.5", 7.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "no", False),
        ({"type": "boolean"}, "maybe", ValueError("type yes or no")),
        ({"type": "boolean", "default": True}, "", True),
        ({"type": "string"}, "", ValueError("a value is needed")),
        ({"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"type": "string", "enum": ["a", "b"]}, "1", "a"),
        ({"type": "string", "enum": ["2", "1"]}, "1", "1"),
        ({"type": "string", "enum": ["a", "b"]}, "3", ValueError("choose one of a, b")),
        ({"type": "string", **TITLED}, "Seven", "7"),
        ({"type": "array", "items": {"anyOf": TITLED["oneOf"]}}, "Red, 2", ["r", "7"]),
        ({"type": "array", "items": TITLED, "maxItems": 1}, "1,2", ValueError("too long")),
        ({"type": ["x"], "minLength": "x", "enum": 5, "oneOf": [1]}, "a", "a"),
    ],
)
def test_a_field_is_read_as_its_schema_says(schema, text, value) -> None:
    field = FormField("f", schema, is_required=True)
    if isinstance(value, ValueError):
        with pytest.raises(ValueError, match=str(value)):
            field.read(text)
    else:
        assert field.read(text) == value
        assert field.prompt.startswith("? f")


def test_prompts_say_what_a_field_wants() -> None:
    assert [field.prompt for field in form_fields(SCHEMA)] == [
        "? Your name: ",
        "? size (1 Small, 2 Large; optional): ",
        "? gift (yes or no; optional) [no]: ",
        "? count (how many; whole number; optional): ",
    ]
    odd = FormField("a\u202eb", {"type": "string"}, is_required=True)
    assert odd.prompt == "? a⟨U+202E⟩b: "


def test_a_form_takes_name_and_value() -> None:
    assert read_form(SCHEMA, ["name=Ada=1", "size=Large"]) == {
        "name": "Ada=1",
        "size": "l",
        "gift": False,
    }
    for given, problem in (
        ([], "name: a value is needed"),
        (["name=Ada", "colour=red"], "of the fields: name, size, gift, count"),
        (["name=Ada", "count=0"], "count: 0 is less than the minimum of 1"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_form(SCHEMA, given)
    assert read_form({"properties": 5}, []) == {}
    hostile = {"properties": {"\x1b[2J": {"enum": ["a\x1b[1m"]}, "n": {"type": "number"}}}
    for given, problem in (
        ("\x1b[2J=b", r"⟨U\+001B⟩\[2J: choose one of a⟨U\+001B⟩"),
        ("m=1", r"of the fields: ⟨U\+001B⟩\[2J, n"),
        ("n=nan", "n: type a number"),
        ("n=1e999", "n: type a number"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_form(hostile, [given])


def question(kind, **metadata):
    return Question(Writer()("input_requested", "?", call_id="c", kind=kind, **metadata))


def test_a_form_is_answered_line_by_line_and_a_wrong_line_is_asked_for_again() -> None:
    asked = question("form", schema=SCHEMA)
    with pytest.raises(ValueError, match="too short"):
        asked.take("A")
    assert asked.prompt == "? Your name: "
    assert [asked.take(line) for line in ("Ada", "", "y", "2")] == [
        *(None, None, None),
        {"action": "accept", "content": {"name": "Ada", "gift": True, "count": 2}},
    ]


@pytest.mark.parametrize("kind", ["form", "url", "sign_in"])
def test_words_decline_and_cancel(kind) -> None:
    assert question(kind, schema=SCHEMA).take("/decline") == {"action": "decline"}
    assert question(kind, schema=SCHEMA).take("/Cancel") == {"action": "cancel"}


def test_a_page_is_accepted_by_enter_and_a_sign_in_by_signing_in() -> None:
    assert question("url").take("") == {"action": "accept"}
    with pytest.raises(ValueError, match="only /decline and /cancel"):
        question("sign_in").take("")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://pay.example.com/x?y", "a page of pay.example.com, if you trust it: https://pay"),
        ("https://p\u0430y.example.com/", "a page of xn--py-7kc.example.com, if you trust it"),
        ("https://bank.example@evil.example/", "a page of evil.example, if you trust it"),
        ("javascript:alert(1)", "its link is no web address: do not open it"),
        ("https://[x", "its link is no web address: do not open it"),
    ],
)
def test_the_host_of_a_link_is_named(url, shown) -> None:
    assert shown in event_text("input_requested", "Pay", {"kind": "url", "url": url})


def test_a_sign_in_may_have_no_link() -> None:
    assert event_text("input_requested", "Run it", {"kind": "sign_in", "url": ""}) == "Run it"
