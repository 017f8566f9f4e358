"""Renders the chat templates of published models, as their servers do.

llama.cpp brings 71 of them; `diptych-llm/templates` in the cache folder holds them where
the project's small model server is installed. `DIPTYCH_CHAT_TEMPLATES` names another folder.

Run as a script, it writes `published_forms.json`: how each template writes a call.
"""

import json
import os
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import SandboxedEnvironment

FORMS = Path(__file__).parents[1] / "diptych/core/reading/published_forms.json"
QUESTION = "QUESTION"
CALLS = (
    ("get_weather", {"city": 'Paris "x"', "days": 3}),
    ("echo", {"text": "hi\nthere"}),
)
TYPES = ({"city": {"type": "string"}, "days": {"type": "integer"}}, {"text": {"type": "string"}})


def folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("DIPTYCH_CHAT_TEMPLATES") or Path(cache) / "diptych-llm/templates")


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; it renders what is in it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def _refuse(message):
    raise jinja2.TemplateError(message)


def _to_json(value, **options):
    return json.dumps(value, default=list, **{"ensure_ascii": False, **options})


def _environment():
    environment = SandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: "2026-01-01"}
    return environment


def _tools():
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "It does.",
                "parameters": {"type": "object", "properties": _described(types), "required": []},
                "return": None,
            },
        }
        for (name, _), types in zip(CALLS, TYPES, strict=True)
    ]


def _described(types):
    return {name: {"description": "A value.", **about} for name, about in types.items()}


def _assistant(count, content, as_text):
    calls = [
        {
            "id": f"abcdefgh{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(value) if as_text else value},
        }
        for n, (name, value) in enumerate(CALLS[:count])
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def rendered_calls(source: str, count: int) -> str | None:
    """Give what a template writes for a reply of `count` calls, or None if it refuses it."""
    template = _environment().from_string(source)
    asked = [{"role": "user", "content": QUESTION}]
    about = {"tools": _tools(), "functions": "[]", "datetime": "now", "bos_token": ""}
    about["eos_token"] = "<EOS>"
    for as_text in (False, True):
        for content in ("", None):
            said = _assistant(count, content, as_text)
            try:
                before = template.render(messages=asked, add_generation_prompt=True, **about)
                whole = template.render(messages=[*asked, said], **about)
            except (jinja2.TemplateError, TypeError):
                continue
            return _after_prompt(before, whole)
    return None


def _after_prompt(prompt, whole):
    """Cut a dialogue where the prompt for the reply ends, never inside a tag."""
    same = zip(prompt, whole, strict=False)
    end = next((n for n, (a, b) in enumerate(same) if a != b), min(len(prompt), len(whole)))
    while end < len(prompt) and whole[end - 1] not in ">\n]":
        end -= 1
    return whole[end:]


def published_forms():
    """Give, for each template, what it writes for one call and for two."""
    forms = {}
    for file in sorted(folder().glob("*.jinja")):
        source = file.read_text("utf-8")
        forms[file.stem] = [rendered_calls(source, count) for count in (1, 2)]
    return forms


if __name__ == "__main__":
    FORMS.write_text(json.dumps(published_forms(), indent=1, ensure_ascii=False) + "\n", "utf-8")
