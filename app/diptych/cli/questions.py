"""What a waiting call asks: a form's fields, read from text, and the answer at a terminal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.cli.output.wording import asked_text, one_line, visible
from diptych.core.codec import Record
from diptych.core.events import InputAction, WaitKind
from diptych.core.messages import JSON
from diptych.core.reading.arguments import SCHEMA_PROBLEMS, schema_validator
from diptych.core.reading.bounded_schema import errors_of

_CALL_CHARS = 100  # in a prompt, which says which call is meant; all of it stands above
_YES = {"y", "yes"}
_NO = {"", "n", "no"}
_WORDS: Mapping[str, InputAction] = {"/decline": "decline", "/cancel": "cancel"}
_BOOLEANS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_NOUNS = {"integer": "whole number", "number": "number", "boolean": "yes or no"}


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form. MCP allows texts, numbers, booleans, and choices of one or several."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool

    @property
    def choices(self) -> dict[str, JSON]:
        """The values to choose from, by their titles; none if the field is free."""
        of = self.schema.get("items") if self.is_list else self.schema
        if not isinstance(of, Mapping):
            return {}
        given = _list(of.get("oneOf") or of.get("anyOf"))
        titled = [one for one in given if isinstance(one, Mapping) and "const" in one]
        if titled:
            return {str(one.get("title", one["const"])): one["const"] for one in titled}
        values = _list(of.get("enum"))
        return dict(zip(map(str, _list(of.get("enumNames")) or values), values, strict=False))

    @property
    def is_list(self) -> bool:
        return self.schema.get("type") == "array"

    @property
    def prompt(self) -> str:
        """Ask for it: `? Size (1 small, 2 large) [small]: `."""
        schema, choices = self.schema, self.choices
        of_choice = ", ".join(f"{number} {title}" for number, title in enumerate(choices, 1))
        if of_choice and self.is_list:
            of_choice += "; several by commas"
        kind = of_choice or _NOUNS.get(str(schema.get("type")), schema.get("format", ""))
        notes = [schema.get("description"), kind, None if self.is_required else "optional"]
        note = "; ".join(str(each) for each in notes if each)
        default = f" [{_text(schema['default'])}]" if "default" in schema else ""
        return visible(f"? {schema.get('title') or self.name}{note and f' ({note})'}{default}: ")

    def read(self, text: str) -> JSON:
        """Read a value; of an empty text the default. Raises `ValueError` for a wrong one.

        None stands for an optional field that is left out.
        """
        if not text:
            if "default" in self.schema:
                default: JSON = self.schema["default"]
                return default
            if self.is_required:
                raise ValueError("a value is needed")
            return None
        value = self._value(text)
        if problem := _problem(self.schema, value):
            raise ValueError(problem)
        return value

    def _value(self, text: str) -> JSON:
        if choices := self.choices:
            if not self.is_list:
                return _chosen(text, choices)
            return [_chosen(each.strip(), choices) for each in text.split(",") if each.strip()]
        match self.schema.get("type"):
            case "boolean" if text.lower() in _BOOLEANS:
                return _BOOLEANS[text.lower()]
            case "boolean":
                raise ValueError("type yes or no")
            case "integer" | "number" as kind:
                try:
                    number = int(text) if kind == "integer" else float(text)
                    json.dumps(number, allow_nan=False)
                except ValueError:
                    raise ValueError(f"type a {_NOUNS[kind]}") from None
                return number
        return text


def form_fields(schema: object) -> list[FormField]:
    """List the fields of a form's schema, in its order."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        return []
    required = _list(schema.get("required"))
    return [
        FormField(name, field if isinstance(field, Mapping) else {}, name in required)
        for name, field in schema["properties"].items()
    ]


def read_form(schema: object, given: Sequence[str]) -> dict[str, JSON]:
    """Read `NAME=VALUE` for the fields of a form. Raises `ValueError` that names the field."""
    fields = {field.name: field for field in form_fields(schema)}
    texts = dict.fromkeys(fields, "")
    for each in given:
        name, sign, text = each.partition("=")
        if not sign or name not in fields:
            known = visible(", ".join(fields)) or "none"
            raise ValueError(f"{each!r} is not NAME=VALUE of one of the fields: {known}")
        texts[name] = text
    content: dict[str, JSON] = {}
    for name, text in texts.items():
        try:
            value = fields[name].read(text)
        except ValueError as error:
            raise ValueError(visible(f"{name}: {error}")) from None
        if value is not None:
            content[name] = value
    return content


class Question:
    """What a call asks at a terminal, answered line by line.

    `take` returns the answer with the last, as `/v1/runs/…/approvals` or `…/inputs` takes it.
    """

    def __init__(self, record: Record) -> None:
        metadata = record.metadata
        is_approval = record.event_type == "approval_requested"
        self.wait_kind: WaitKind = "approval" if is_approval else "input"
        self.kind = "approval" if is_approval else str(metadata["kind"])
        self._record = record
        self._fields = form_fields(metadata.get("schema")) if self.kind == "form" else []
        self._content: dict[str, JSON] = {}

    @property
    def prompt(self) -> str:
        """Ask for the next line."""
        match self.kind:
            case "approval":
                content: Any = self._record.content
                call = one_line(asked_text(content), _CALL_CHARS)
                call_id = self._record.metadata["call_id"]
                return f"? {call} ({call_id}): make this call? [y]es, [n]o, or why not: "
            case "sign_in":
                return "? sign in there, and this goes on; or type /decline or /cancel: "
            case "url":
                return "? open it and press Enter; or type /decline or /cancel: "
        return self._fields[0].prompt if self._fields else "? press Enter to agree: "

    def take(self, line: str) -> dict[str, JSON] | None:
        """Take a line. Raises `ValueError` if it does not fit."""
        if self.kind == "approval":
            decision = "approve" if line.lower() in _YES else "reject"
            return {"decision": decision, "reason": "" if line.lower() in _YES | _NO else line}
        if word := _WORDS.get(line.lower()):
            return {"action": word}
        if self.kind == "sign_in":
            raise ValueError("only /decline and /cancel can be typed here")
        if self.kind == "url":
            return {"action": "accept"}
        if self._fields:
            value = self._fields[0].read(line)
            field = self._fields.pop(0)
            if value is not None:
                self._content[field.name] = value
        return None if self._fields else {"action": "accept", "content": self._content}


def _list(value: Any) -> list[Any]:  # noqa: ANN401 - a stranger's schema
    return value if isinstance(value, list) else []


def _chosen(text: str, choices: Mapping[str, JSON]) -> JSON:
    for title, value in choices.items():
        if text in {title, str(value)}:
            return value
    if text.isdecimal() and 0 < int(text) <= len(choices):
        return list(choices.values())[int(text) - 1]
    raise ValueError(f"choose one of {', '.join(choices)}")


def _problem(schema: Mapping[str, Any], value: JSON) -> str | None:
    """Return why a value does not fit; a schema that cannot be used is left to the tool."""
    try:
        errors = errors_of(schema_validator(json.dumps(schema)), value, 1)
    except SCHEMA_PROBLEMS:
        return None
    return errors[0].message if errors else None


def _text(value: JSON) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
