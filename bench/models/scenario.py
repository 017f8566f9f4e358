"""The agent that all questions are put to, and how a question becomes the loop's own requests."""

import json
import re
from typing import Any

from bench.models.questions import Kind, Question
from bench.models.stage import NONCE, Stage, begin
from diptych.core.catalog import Catalog, Peer, Tool
from diptych.core.events import Offered, RunRequested
from diptych.core.messages import Call, Delegation, JSONObject, Message, Result, ToolCall
from diptych.core.prompt import system_prompt
from diptych.core.reading import Calls, parse
from diptych.demo.arithmetic import evaluate

INSTRUCTIONS = "You are a helpful assistant."
NO_ACTION = "{}"
AGENTS = (Peer("researcher", "Finds facts."), Peer("writer", "Writes texts."))
USUAL_TOOLS = ("calculator", "get_weather", "search_notes")


def _tool(name: str, description: str, **parameters: str) -> Tool:
    properties: JSONObject = {key: {"type": kind} for key, kind in parameters.items()}
    schema: JSONObject = {"type": "object", "properties": properties, "required": list(parameters)}
    return Tool("box", name, description, schema)


TOOLS = {
    tool.name: tool
    for tool in (
        _tool("calculator", "Evaluate an arithmetic expression.", expression="string"),
        _tool("get_weather", "Get the current weather of a city.", city="string"),
        _tool("search_notes", "Search the user's notes.", query="string"),
        _tool("get_order", "Look up an order.", id="integer"),
        _tool("query_database", "Run a SQL query.", sql="string"),
        _tool("get_time", "Tell the time."),
        _tool("get_distance", "Give the distance between two places.", a="string", b="string"),
        _tool("translate", "Translate a text.", text="string", to="string"),
        _tool("get_price", "Give a price.", symbol="string"),
        _tool("get_stock", "Say how much of an item is in stock.", item="string"),
        _tool("get_trains", "Find the next train.", to="string"),
        _tool("read_file", "Read a file.", path="string"),
    )
}
FILLING = (
    ("Tell me something about bread.", "Bread is made of flour, water, yeast and salt."),
    ("And about tea?", "Tea is made of leaves and hot water."),
    ("Do you like rain?", "Rain makes plants grow."),
    ("Thanks.", "You are welcome."),
    ("What is a river?", "A river is water that flows to the sea."),
)


def catalog_for(question: Question) -> Catalog:
    """Give what the question's agent may call: the usual, and the tool that has answered it."""
    names = dict.fromkeys((*USUAL_TOOLS, *filter(None, [question.fields.get("tool")])))
    return Catalog(tuple(TOOLS[name] for name in names), AGENTS)


def opened(kind: Kind, question: Question) -> Stage:
    """Begin the run of a question; its first request asks for actions."""
    catalog = catalog_for(question)
    offered = Offered(catalog, system_prompt(INSTRUCTIONS, catalog), nonce=NONCE)
    history = _history(question) if kind == "histories" else ()
    return begin(
        RunRequested(question.ask), offered, lambda call: _outcome(call, question), history
    )


def answering(kind: Kind, question: Question) -> Stage:
    """Play the run of a question to phase 2; its last request asks for the answer."""
    stage = opened(kind, question)
    if kind == "results":
        stage.say(_call_text(question))
    stage.say(NO_ACTION)
    return stage


def names_of_calls(question: Question, reply: str) -> list[str]:
    """Give the tools and agents that a reply asks for, as the loop reads it."""
    found = parse(reply, catalog_for(question))
    calls = found.calls if isinstance(found, Calls) else ()
    return [call.agent if isinstance(call, Delegation) else call.name for call in calls]


def names_it(question: Question, reply: str) -> bool:
    """Say whether a reply names the tool or agent as JSON, though the rest may be of no use."""
    name = re.escape(question.fields["name"])
    return bool(re.search(rf'"(?:tool|agent|name)"\s*:\s*"{name}"', reply))


def _history(question: Question) -> tuple[Message, ...]:
    turns = ((question.fields["said"], "Thank you for telling me."), *FILLING)
    return tuple(
        message
        for said, answered in turns
        for message in (Message("user", said), Message("assistant", answered))
    )


def _call_text(question: Question) -> str:
    fields: dict[str, Any] = question.fields
    keys = ("tool", "arguments") if "tool" in fields else ("agent", "task")
    return json.dumps({key: fields[key] for key in keys}, ensure_ascii=False)


def _outcome(call: Call, question: Question) -> Result:
    """The result of the question's own call; of others, what a small tool or agent would say."""
    if "result" in question.fields:
        return Result(call.id, question.fields["result"])
    match call:
        case ToolCall(name="calculator"):
            try:
                return Result(call.id, str(evaluate(str(call.arguments["expression"]))))
            except ValueError as error:
                return Result(call.id, str(error), error="failed")
        case ToolCall(name="get_weather"):
            return Result(call.id, "20 degrees, sunny")
        case ToolCall():
            return Result(call.id, "nothing was found")
        case Delegation():
            return Result(call.id, "I could not find anything on this.", error="failed")
