"""Every request that the loop can make, made by the loop itself: stories of events, played through
`advance`, of which the requests are kept.

A story is a request with its conversation, an agent, and what the model says, reply by reply. It is
told in each mode: the format for calls, whether phase 1 may answer, and whether a schema is asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from bench.models.stage import NONCE, begin
from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.events import CallFormat, Offered, RunRequested
from diptych.core.messages import Call, JSONObject, Message, NativeCall, Result
from diptych.core.model_request import ModelRequest
from diptych.core.prompt import native_system_prompt, summary, system_prompt
from diptych.core.rendering import summary_request
from diptych.core.run_settings import RunSettings

CALL = '{"tool": "calculator", "arguments": {"expression": "2 + 2"}}'
DELEGATION = '{"agent": "researcher", "task": "Find it."}'
SEVERAL = f"[{CALL}, {DELEGATION}]"
TWICE = f"[{CALL}, {CALL.replace('2 + 2', '3 + 3')}]"
WRONG = '{"tool": "no_such_tool", "arguments": {}}'
STEER = "steer:Another thing."

_SCHEMA: JSONObject = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}
TOOLS = (Tool("box", "calculator", "Evaluate an arithmetic expression.", _SCHEMA),)
FORMATS: tuple[CallFormat, ...] = ("json", "native")
ANSWER_MODES: tuple[Literal["separate", "direct"], ...] = ("separate", "direct")
AGENTS = (Peer("researcher", "Finds facts.", ("web",)),)
AWAY = (Unavailable("server", "mail", "connection refused"),)
CATALOGS = {
    "no tools": Catalog(),
    "tools": Catalog(TOOLS),
    "tools and agents": Catalog(TOOLS, AGENTS),
    "something away": Catalog(TOOLS, (), AWAY),
}


MODES: Mapping[str, RunSettings] = {
    f"{action_format}, {answer_mode}{', schema' if schema else ''}": RunSettings(
        on_max_steps="answer",
        action_format=action_format,
        answer_mode=answer_mode,
        output_schema=schema,
    )
    for action_format in FORMATS
    for answer_mode in ANSWER_MODES
    for schema in (None, _SCHEMA)
}


def _user(text: str) -> Message:
    return Message("user", text)


def _assistant(text: str) -> Message:
    return Message("assistant", text)


def _native(call_id: str, expression: str) -> NativeCall:
    return NativeCall(call_id, "calculator", f'{{"expression": "{expression}"}}')


HISTORIES: Mapping[str, tuple[Message, ...]] = {
    "no history": (),
    "one turn before": (_user("Hello."), _assistant("Hello!")),
    "two user messages in a row": (_user("Hello."), _user("Are you there?"), _assistant("Yes.")),
    "an unanswered message before": (_user("Hello."),),
    "opened by the assistant": (_assistant("How can I help?"),),
    "assistant twice": (
        _assistant("Hello."),
        _assistant("How can I help?"),
        _user("Well."),
        _assistant("Yes?"),
        _assistant("Go on."),
    ),
    "an empty answer": (_user("Hello."), _assistant("")),
    "a caller's calls": (
        _user("What is 1 + 1?"),
        Message("assistant", "", calls=(_native("a", "1 + 1"), _native("b", "1 + 2"))),
        Message("tool", "2", call_id="a"),
        Message("tool", "3", call_id="b"),
        _assistant("2."),
    ),
    "a caller's results last": (
        _user("What is 1 + 1?"),
        Message("assistant", "", calls=(_native("a", "1 + 1"),)),
        Message("tool", "2", call_id="a"),
    ),
    "a summary before": (_user(summary("They spoke of sums.")), _assistant("Yes.")),
}
SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "answer": ("{}", "Hello."),
    "prose": ("I think so.", "Hello."),
    "call": (CALL, "{}", "Four."),
    "delegation": (DELEGATION, "{}", "It is so."),
    "several calls": (SEVERAL, "{}", "It is so."),
    "several calls, twice": (TWICE, SEVERAL, "{}", "It is so."),
    "several calls, then a message": (TWICE, STEER, "{}", "{}", "It is so."),
    "an answer that does not fit": (CALL, "{}", '{"x": 1}', '{"expression": "4"}'),
    "two steps": (CALL, CALL, "{}", "Four."),
    "an error": (WRONG, "{}", "No."),
    "errors until the answer": (WRONG, WRONG, "{ not json", WRONG, "No."),
    "an error, then a call": (WRONG, CALL, "{}", "Four."),
    "a message before the reply": (STEER, CALL, "{}", "Four."),
    "a message after a result": (CALL, STEER, "{}", "{}", "Four."),
    "a message before a no-op": (STEER, "{}", "{}", "Four."),
    "a follow-up": (CALL, "{}", STEER, "Four.", "{}", "Five."),
    "a blank answer": (CALL, "{}", "", "Four."),
    "as many steps as there are": (CALL, CALL, CALL, CALL, CALL, "Four."),
}


@dataclass(frozen=True, slots=True)
class Story:
    name: str
    asked: RunRequested
    offered: Offered
    script: tuple[str, ...]
    history: tuple[Message, ...] = ()


def stories(modes: Iterable[str] = MODES) -> Iterator[Story]:
    """Give, in each mode, each script with each catalog, and each history with some scripts."""
    for name in modes:
        yield from _stories_in(name, MODES[name])


def _stories_in(mode: str, settings: RunSettings) -> Iterator[Story]:
    asked = RunRequested("What is 2 + 2?")
    for agent, catalog in CATALOGS.items():
        offered = _offered(catalog, settings)
        for name, script in SCRIPTS.items():
            yield Story(f"{name}, {agent}, {mode}", asked, offered, script)
    named = RunRequested("Use the calculator: what is 2 + 2?")
    offered = _offered(CATALOGS["tools and agents"], settings)
    yield Story(f"a tool is named, {mode}", named, offered, SCRIPTS["an error, then a call"])
    for history, messages in HISTORIES.items():
        for name in ("answer", "call", "a follow-up"):
            for system in ("", "Answer in rhymes."):
                told = f"{name}, {history}{', the caller has a system text' * bool(system)}"
                asked = RunRequested("What is 2 + 2?", system=system)
                script = SCRIPTS[name]
                yield Story(f"{told}, recorded, {mode}", asked, offered, script, messages)
                sent = replace(asked, earlier=messages)
                yield Story(f"{told}, sent along, {mode}", sent, offered, script)


def requests_of(story: Story) -> list[ModelRequest]:
    """Play a story, and give the requests that the loop made in it, in order."""
    stage = begin(story.asked, story.offered, _outcome, story.history)
    for said in story.script:
        if not stage.is_over:
            stage.say(said)
    return stage.requests


def request_for_a_summary() -> ModelRequest:
    """Give the request that a conversation is summarized with."""
    offered = _offered(CATALOGS["tools"], MODES["native, separate"])
    stage = begin(RunRequested("What is 2 + 2?"), offered, _outcome)
    return summary_request(stage.run, HISTORIES["a caller's calls"])


def _offered(catalog: Catalog, settings: RunSettings) -> Offered:
    instructions = "You are a careful assistant."
    is_native = settings.action_format == "native"
    return Offered(
        catalog,
        system_prompt(instructions, catalog),
        settings,
        nonce=NONCE,
        native_prompt=native_system_prompt(instructions, catalog) if is_native else "",
        action_format="native" if is_native else "json",
    )


def _outcome(call: Call) -> Result:
    return Result(call.id, "4")
