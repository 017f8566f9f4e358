"""`diptych init`: writes an agent with a Python tool, and a test for it."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from diptych.core.errors import ConfigError

_FALLBACK_NAME = "assistant"
_SCHEMA = "agent.schema.json"
_KEYLESS = "openai"  # whose model an agent names that a script answers for
_AGENT = """\
# yaml-language-server: $schema={schema}
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: {name}}}
spec:
  description: Answers questions about texts.
  instructions: You are a helpful assistant. Count words with the tool, never by yourself.
  model:
{model}
    # A run has two phases: the model calls tools until it knows enough, then it writes the answer.
    # How it calls them: native (the API's tool calls), json (JSON in its text, which every model
    # can write), or auto (native, unless the endpoint refuses that).
    actionFormat: {action_format}
  tools:
  - name: tools
    command: [{python}, tools.py]  # found from the folder that diptych is started in
"""
_MOCK = """\
  # This script answers in place of the model: a call, no more calls, the answer. To ask the model,
  # set {variable} and remove these lines.
  container:
    env:
    - name: DEBUG_MOCK_RESPONSES
      value: |
        [
          "{{\\"tool\\": \\"count_words\\", \\"arguments\\": {{\\"text\\": \\"the quick brown fox\\"}}}}",
          "{{}}",
          "It has 4 words."
        ]
"""  # noqa: E501
_TOOLS = '''\
"""The agent's tools: an MCP server on stdin and stdout. Each function is a tool."""

from mcp.server import MCPServer

server = MCPServer("tools")


@server.tool()
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


if __name__ == "__main__":
    server.run("stdio")
'''
_TEST = '''\
"""Tests the agent without a model: a script stands in for it, but the tool is really called.

Run it with Python or with pytest.
"""

import json
import os

from diptych import Agent, ToolResultEvent

SCRIPT = [
    '{"tool": "count_words", "arguments": {"text": "the quick brown fox"}}',  # phase 1: a call
    "{}",  # phase 1: no more calls
    "It has 4 words.",  # phase 2: the answer
]


def test_it_counts_with_the_tool() -> None:
    os.environ["DEBUG_MOCK_RESPONSES"] = json.dumps(SCRIPT)
    with Agent.from_file("agent.yaml") as agent:
        result = agent.run_sync("How many words does 'the quick brown fox' have?")
    counts = [event.text for event in result.events if isinstance(event, ToolResultEvent)]
    assert (counts, result.text) == (["4"], "It has 4 words.")


if __name__ == "__main__":
    test_it_counts_with_the_tool()
    print("ok: the tool was called, and the agent answered")
'''


def init(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The agent's name, and a folder for it; else here."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="PROVIDER",
            help="Whose model to ask, such as openai or ollama; else the first whose key is set.",
        ),
    ] = None,
) -> None:
    """Write an agent with a Python tool, and a test that runs without a model.

    Without --provider, and without the key of any, a script answers in place of the model.

    Example: `diptych init helper --provider ollama`
    """
    import diptych.manifest
    from diptych.cli.output.screen import print_report
    from diptych.manifest.fields import DNS_LABEL
    from diptych.manifest.providers import PROVIDERS, provider_of, unknown_provider

    if provider is not None and provider not in PROVIDERS:
        raise ConfigError(f"--provider {provider}: {unknown_provider(provider)}")
    folder = Path(name or ".")
    agent = name or _name_like(folder.resolve().name)
    if not (DNS_LABEL.fullmatch(agent) and agent[0].isalpha()):
        raise ConfigError(
            f"{agent}: a name has lower-case letters, digits and -, and begins with a letter, such "
            f"as {_name_like(agent)}"
        )
    chosen = provider or provider_of(os.environ)
    variable = PROVIDERS[chosen or _KEYLESS].key_variable
    schema = Path(diptych.manifest.__file__).with_name(_SCHEMA)
    python = _python()
    files = {
        "agent.yaml": _agent_text(agent, chosen, python),
        "tools.py": _TOOLS,
        "test_agent.py": _TEST,
        _SCHEMA: schema.read_text(encoding="utf-8"),
    }
    _write(folder, files)
    steps = [
        ("diptych chat agent.yaml", "talk to it"),
        ("diptych serve agent.yaml --reload", "serve its API and a page; takes up your changes"),
        (f"{shlex.quote(python)} test_agent.py", "test it without a model"),
    ]
    print_report([(f"wrote {folder / file}",) for file in files])
    print_report([("",), (f"Go on in its folder (cd {name}):" if name else "Go on:",)])
    width = max(len(command) for command, _ in steps)
    print_report(((f"  {command:<{width}}", "bold"), f"  {why}") for command, why in steps)
    if chosen is None:
        step = f"set {variable} and remove container.env from agent.yaml"
        print_report([("",), (f"A script answers. To ask a model, {step}.",)])
    elif variable and not os.environ.get(variable, "").strip():
        print_report([("",), (f"First set {variable}, the key for {chosen}.",)])


def _agent_text(name: str, provider: str | None, python: str) -> str:
    from diptych.manifest.providers import PROVIDERS

    chosen = provider or _KEYLESS
    one = PROVIDERS[chosen]
    lines = [f"provider: {chosen}", f"name: {one.example_model}"]
    if one.secret:
        lines.append(
            f"apiKey: {{secretKeyRef: {{name: {one.secret}, key: api-key}}}}"
            f"  # on this machine the variable {one.key_variable}"
        )
    else:
        lines[0] += f"  # at {one.endpoint}; endpoint: http://… names another address"
    text = _AGENT.format(
        schema=_SCHEMA,
        name=name,
        model="\n".join(f"    {line}" for line in lines),
        action_format="auto" if one.has_native_tools else "json",
        python=json.dumps(python) if python != "python" else python,
    )
    return text if provider else text + _MOCK.format(variable=one.key_variable)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files, or none if one of them is there already."""
    if there := [str(folder / name) for name in files if (folder / name).exists()]:
        verb = "is" if len(there) == 1 else "are"
        raise ConfigError(f"{', '.join(there)} {verb} there already; choose another name or folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error


def _name_like(text: str) -> str:
    """Make a valid name of a text that is like it."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return name if name[:1].isalpha() else _FALLBACK_NAME


def _python() -> str:
    """Return how to call the Python that has Diptych: by name, if PATH leads to it."""
    found, own = shutil.which("python"), Path(sys.executable)
    return "python" if found and Path(found).parent == own.parent else str(own)
