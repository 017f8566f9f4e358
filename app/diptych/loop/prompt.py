"""Every word that Diptych itself puts into a conversation.

The system prompt depends on the instructions and the catalog alone. So it is the same, byte for
byte, from step to step and from run to run, as prompt caches need (loop.md §4).

Not here: when the texts are sent (`reducer`), how a reply is read (`actions`).
"""

import json
from collections.abc import Mapping, Sequence

from diptych.loop.actions import ActionError
from diptych.loop.catalog import Catalog
from diptych.loop.messages import Call, Delegation, Message, Result

SAID_LIMIT = 500  # characters of its own reply that a model is shown again (loop.md §3)

FINAL_PROMPT = (
    "Now provide your final response to the user, in plain text. "
    "Do not ask for a tool or an agent any more."
)

OUTCOME_UNKNOWN = (
    "outcome: unknown. This call was started and may have taken effect; the process that made it "
    "ended before its result was known, and it is not made again. Say so where it matters."
)

SUPERSEDED = "skipped: superseded by a new message"

_TOOL_RULES = """\
To use a tool, respond with ONLY this JSON (no other text):
{"tool": "tool_name", "arguments": {"arg1": "value1"}}

Wait for the tool result before providing your final answer."""

_AGENT_RULES = """\
To delegate a task to another agent, respond with ONLY this JSON (no other text):
{"agent": "agent_name", "task": "task description"}

Wait for the agent's response before providing your final answer."""

_SEVERAL_RULES = """\
To make several calls at once, respond with ONLY a JSON array of them; they run side by side.
A call may have an "id", and may use the result of an earlier one as "${id}" or "${id.field}" \
in its arguments; "after": ["id"] makes it wait for a call whose result it does not use."""

_NO_ACTION_RULES = """\
When you have all the information needed to provide a final answer, respond with ONLY:
{}

Then you will be asked to provide your final response."""


def system_prompt(instructions: str, catalog: Catalog) -> str:
    """The system prompt: instructions, then what may be called and how, where it applies."""
    parts = [instructions] if instructions else []
    if catalog.tools:
        parts += [f"## Available Tools\n{_describe_tools(catalog)}", _TOOL_RULES]
    if catalog.agents:
        parts += [
            f"## Available Agents for Delegation\n{_describe_agents(catalog)}",
            _AGENT_RULES,
        ]
    if catalog.tools or catalog.agents:
        parts += [_SEVERAL_RULES, _NO_ACTION_RULES]
    if catalog.unavailable:
        parts.append(f"## Currently Unavailable\n{_describe_unavailable(catalog)}")
    return "\n\n".join(parts)


def with_caller(prompt: str, caller_system: str) -> str:
    """Add the caller's own system text, marked as subordinate to the agent's."""
    if not caller_system:
        return prompt
    addition = (
        "## Instructions from the caller\n"
        "They hold for this request only, and only where they do not contradict the above.\n"
        f"{caller_system}"
    )
    return f"{prompt}\n\n{addition}" if prompt else addition


def step_results(
    step: int, max_steps: int, calls: Sequence[Call], results: Mapping[str, Result]
) -> Message:
    """The results of one step as one message, in the order in which they were asked for.

    It is one message because many chat templates insist on alternating roles.
    """
    head = f"[Step {step}/{max_steps}]"
    return Message(
        "user", "\n\n".join(f"{head} {_describe_result(c, results[c.id])}" for c in calls)
    )


def step_error(step: int, max_steps: int, error: ActionError, said: str) -> Message:
    """What was wrong with the model's reply, so that it can correct it (loop.md §3)."""
    return Message(
        "user",
        f"[Step {step}/{max_steps}] Your reply could not be used; nothing of it was run.\n"
        f"error_type: {error.type}\ndetail: {error.detail}\n"
        f"you said: {said[:SAID_LIMIT]}",
    )


def max_steps_text(max_steps: int) -> str:
    """The literal text at `max_steps` (loop.md §2)."""
    return f"Reached maximum reasoning steps ({max_steps})"


def _describe_tools(catalog: Catalog) -> str:
    return "\n".join(
        f"- {name}: {_one_line(tool.description)}\n"
        f"  parameters: {json.dumps(tool.input_schema, ensure_ascii=False, sort_keys=True)}"
        for name, tool in catalog.listed()
    )


def _describe_agents(catalog: Catalog) -> str:
    lines = []
    for peer in catalog.agents:
        skills = f" (skills: {', '.join(peer.skills)})" if peer.skills else ""
        lines.append(f"- {peer.name}: {_one_line(peer.description)}{skills}")
    return "\n".join(lines)


def _describe_unavailable(catalog: Catalog) -> str:
    lines = ["Do not claim to have used these, and say so if the answer would need them."]
    names = {"server": "the tools of", "agent": "the agent"}
    lines += [f"- {names[u.kind]} {u.name}: {u.reason}" for u in catalog.unavailable]
    return "\n".join(lines)


def _describe_result(call: Call, result: Result) -> str:
    match call:
        case Delegation(agent=name):
            whose = f"agent {name}"
        case _:
            whose = f"tool {call.name}"
    if call.label:
        whose += f" (id {call.label})"
    if result.error:
        return f"Error from {whose}:\n{result.text}"
    return f"Result of {whose}:\n{result.text}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
