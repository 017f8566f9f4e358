"""How published models write a call: each template's own rendering is read back as that call.

`published_forms.json` holds the renderings; `support/chat_templates.py` makes them.
"""

import json

import pytest
from support.chat_templates import CALLS, FORMS, TYPES

from diptych.core.catalog import Catalog, Tool
from diptych.core.reading import Calls, Prose, read_reply

OFFERS = Catalog(
    tuple(
        Tool("s", name, "", {"type": "object", "properties": types})
        for (name, _), types in zip(CALLS, TYPES, strict=True)
    )
)
RENDERINGS = json.loads(FORMS.read_text("utf-8"))
RENDERS_NO_CALL = {
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
RENDERS_ONE_CALL = {"GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b"}
REFUSES_TWO_CALLS = {
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
}


def read(reply):
    return read_reply(reply, "stop", OFFERS).found


def asked_for(reply):
    found = read(reply)
    assert isinstance(found, Calls), found
    return [(call.name, call.arguments) for call in found.calls]


@pytest.mark.parametrize("template", sorted(RENDERINGS.keys() - RENDERS_NO_CALL))
def test_a_call_is_read_as_the_template_writes_it(template):
    one, two = RENDERINGS[template]
    assert asked_for(one) == [CALLS[0]]
    if template in REFUSES_TWO_CALLS:
        assert two is None
    elif template in RENDERS_ONE_CALL:
        assert asked_for(two) == [CALLS[0]]
    else:
        assert asked_for(two) == list(CALLS)


@pytest.mark.parametrize("template", sorted(RENDERINGS.keys() - RENDERS_NO_CALL))
def test_it_is_read_after_prose_too(template):
    prose = "I will look that up.\n\n"
    if template == "meetkai-functionary-medium-v3.2":
        prose = f"all\n{prose}>>>"  # the mark without which this template's calls are bare names
    assert asked_for(prose + RENDERINGS[template][0]) == [CALLS[0]]


@pytest.mark.parametrize("template", sorted(RENDERS_NO_CALL))
def test_templates_that_write_no_call_say_nothing(template):
    assert read(RENDERINGS[template][0]) == Prose()
