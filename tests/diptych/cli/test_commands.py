"""The commands as a person types them: what they print where, and their exit codes."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.upstream_habits import said
from support.upstream_server import upstream_in_thread

from diptych.cli import main
from diptych.manifest.providers import PROVIDERS

Type = Callable[..., Any]

AGENT = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: {name}}}
spec:
  {spec}
  container:
    env: [{{name: DEBUG_MOCK_RESPONSES, value: '{script}'}}]
"""


SCRIPT = '["{}", "Hi."]'


def file_of(folder: Path, script: str, *, spec: str = "description: A test.") -> str:
    path = folder / "agent.yaml"
    path.write_text(AGENT.format(name="helper", script=script, spec=spec))
    return str(path)


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_names_the_commands(typed: Type, word: str) -> None:
    outcome = typed(word)
    assert outcome.code == 0
    for command in ("serve", "run", "chat", "events", "attach", "check", "demo"):
        assert f"│ {command} " in outcome.out
    for command in ("status", "token", "purge-sessions"):
        assert f"│ {command} " in outcome.out
    assert "demo-tools" not in outcome.out


def test_the_version_is_said(typed: Type) -> None:
    assert typed("--version").out.startswith("diptych 0")


def test_as_kubectls_plugin_it_is_called_so(
    typed: Type, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/some/bin/kubectl-diptych", "token", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "Usage: kubectl diptych token" in capsys.readouterr().out


def test_an_unknown_command_is_misuse(typed: Type) -> None:
    assert typed("rum").code == 2


def test_check_takes_a_pipe_and_passes_over_kinds_of_somebody_else(
    typed: Type, tmp_path: Path
) -> None:
    """As `kustomize build | diptych check /dev/stdin`."""
    reading, writing = os.pipe()
    service = b"---\napiVersion: v1\nkind: Service\nmetadata: {name: tools}\n"
    os.write(writing, Path(file_of(tmp_path, SCRIPT)).read_bytes() + service)
    os.close(writing)
    outcome = typed("check", f"/dev/fd/{reading}")
    os.close(reading)
    assert (outcome.code, outcome.out) == (0, f"/dev/fd/{reading}: helper: ok\n")
    note = "document 2 (tools): a Service of v1 is passed over\n"
    assert outcome.err == f"note: /dev/fd/{reading}: {note}"


def test_check_says_what_is_wrong_a_line_each(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(
        "apiVersion: diptych.dev/v1alpha1\nkind: Agent\nmetadata: {name: A_}\nspec: {modle: {}}"
    )
    outcome = typed("check", str(file), str(tmp_path / "none.yaml"))
    assert outcome.code == 2
    assert not outcome.out
    lines = outcome.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: ") for line in lines)


def test_run_gives_the_answer_alone_to_stdout(typed: Type, tmp_path: Path) -> None:
    outcome = typed("run", file_of(tmp_path, '["{}", "An answer."]'), "Hi?")
    assert (outcome.code, outcome.out) == (0, "An answer.\n")
    assert "DEBUG_MOCK_RESPONSES" in outcome.err
    assert "✓ done" in outcome.err


TEAM = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: coordinator}
spec:
  tools: [{name: demo, command: [diptych, demo-tools], allow: [echo]}]
  agents: [{name: researcher}]
---
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: researcher}
spec: {description: Finds out.}
"""
ECHO = '{"tool": "echo", "arguments": {"text": "hello"}}'
ASK = '{"agent": "researcher", "task": "Find quantum info"}'


LIMIT = "Reached maximum reasoning steps (5)"


@pytest.mark.parametrize(
    ("script", "ends"),
    [
        pytest.param([ECHO, "{}", "It returned: hello"], (0, "It returned: hello\n"), id="a tool"),
        pytest.param([ASK, "{}", "Qubits."], (0, "Qubits.\n"), id="a delegation"),
        pytest.param([ASK] * 6, (3, f"{LIMIT}\n"), id="a delegation, repeated"),
    ],
)
def test_a_script_of_each_agent_may_be_exported(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: list[str], ends: Any
) -> None:
    (tmp_path / "team.yaml").write_text(TEAM)
    scripts = {"coordinator": script, "researcher": ["{}", "They are odd."]}
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", orjson.dumps(scripts).decode())
    outcome = typed("run", str(tmp_path / "team.yaml"), "Hi?")
    assert (outcome.code, outcome.out) == ends, outcome.err


def test_a_script_that_is_one_text_is_told_that_phase_1_comes_first(
    typed: Type, tmp_path: Path
) -> None:
    outcome = typed("run", file_of(tmp_path, "Hello"), "Hi?")
    assert outcome.code == 1
    said = " ".join(outcome.err.split())
    assert 'Phase 1 comes first, and ends with a reply without a call: ["{}", "Hello"]' in said


def test_run_waits_for_a_tool_server_that_starts_late(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diptych.serve.hosted_agent.FIRST_CONNECT_SECONDS", 0.01)  # `/ready`'s
    monkeypatch.setattr("diptych.cli.client.local.SAY_AFTER_SECONDS", 0.01)
    script = '["{\\"tool\\": \\"echo\\", \\"arguments\\": {\\"text\\": \\"a\\"}}", "{}", "Said."]'
    spec = "tools: [{name: demo, command: [diptych, demo-tools]}]"
    outcome = typed("run", file_of(tmp_path, script, spec=spec), "Hi?")
    assert (outcome.code, outcome.out) == (0, "Said.\n")
    assert "Waiting for demo to start" in outcome.err
    assert "unavailable" not in outcome.err
    assert "✓ a" in outcome.err


def test_run_reads_the_question_from_stdin(typed: Type, tmp_path: Path) -> None:
    outcome = typed("run", file_of(tmp_path, '["{}", "Yes."]'), "-", "--json", stdin="Is it\nso?\n")
    first, *_ = map(orjson.loads, outcome.out.splitlines())
    assert (first["event_type"], first["content"]) == ("user_message", "Is it\nso?")


def test_run_as_json_shows_events_to_the_last(typed: Type, tmp_path: Path) -> None:
    file = file_of(tmp_path, '["{}", "Yes."]')
    outcome = typed("run", file, "Hi", "--json", "--session", "s")
    events = [orjson.loads(line) for line in outcome.out.splitlines()]
    assert [event["event_type"] for event in events][-2:] == ["agent_response", "completed"]
    assert {event["session_id"] for event in events} == {"s"}
    assert not outcome.err


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        pytest.param(('["{}"]', "description: x"), 1, "mock_exhausted", id="failed"),
        pytest.param(('[{"error": "oh"}]', "description: x"), 1, "oh", id="a model's error"),
        pytest.param(
            ('["{\\"tool\\": \\"x\\"}"]', "loop: {maxSteps: 1}"),
            3,
            "limit of steps",
            id="max_steps",
        ),
        pytest.param(("[1]", "description: x"), 2, "error: ", id="a script that is none"),
        pytest.param(('["x"]', "modle: {}"), 2, "error: ", id="a manifest with a mistake"),
    ],
)
def test_the_exit_code_is_how_it_ended(
    typed: Type, tmp_path: Path, content: tuple[str, str], code: int, said: str
) -> None:
    script, spec = content
    outcome = typed("run", file_of(tmp_path, script, spec=spec), "Hi")
    assert outcome.code == code
    assert said in outcome.err


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AGENT_NAME": "Not A Label"}, "error: AGENT_NAME: "),
        ({"MEMORY_LIMIT": "much"}, "error: MEMORY_LIMIT: must be bytes"),
        (
            {"AGENT_NAME": "x", "DEBUG_MOCK_RESPONSES": "x", "REDIS_URL": "http://:sesame@x"},
            "error: REDIS_URL: the store's URL must start with redis://",
        ),
    ],
)
def test_serve_without_a_file_reads_the_environment(
    typed: Type, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], said: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    outcome = typed("serve")
    assert outcome.code == 2
    assert said in outcome.err
    assert "sesame" not in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--agent", "eve"], "error: --agent eve: ", id="an agent that is not there"),
        pytest.param(["--service", "x"], "error: --service x: must be", id="a service without URL"),
        pytest.param(
            ["--session", "a b"], "HTTP 400: a session id has", id="a session id that is none"
        ),
        pytest.param(["--secrets", "none"], "error: none: there is no", id="no file of secrets"),
    ],
)
def test_run_refuses_options_that_make_no_sense(
    typed: Type, tmp_path: Path, words: list[str], said: str
) -> None:
    outcome = typed("run", file_of(tmp_path, '["{}", "x"]'), "Hi", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert not outcome.out


def test_run_says_what_is_unavailable(typed: Type, tmp_path: Path) -> None:
    spec = 'tools: [{name: bank, url: "http://127.0.0.1:9/mcp"}]'
    outcome = typed("run", file_of(tmp_path, '["{}", "x"]', spec=spec), "Hi")
    assert "! unavailable: the tools of bank: connection refused" in outcome.err


def test_chat_is_one_session(typed: Type, tmp_path: Path) -> None:
    outcome = typed("chat", file_of(tmp_path, '["{}", "Yes."]'), stdin="One?\n\nTwo?\n")
    assert (outcome.code, outcome.out) == (0, "Yes.\nYes.\n")


def test_chat_without_a_terminal_ends_as_its_failed_run(typed: Type, tmp_path: Path) -> None:
    file = file_of(tmp_path, '["{}", {"error": "no"}]')
    assert typed("chat", file, stdin="One?\n/new\n").code == 1


def test_chat_has_commands_and_says_what_is_none(typed: Type, tmp_path: Path) -> None:
    file, lines = (
        file_of(tmp_path, SCRIPT),
        ("/help", "/tools", "/etc/hosts?", "/later One?", "/new"),
    )
    outcome = typed("chat", file, stdin="\n".join((*lines, "Two?", "/exit", "Three?")))
    assert (outcome.code, outcome.out) == (0, "Hi.\nHi.\n")
    for line in ("/tools  list the tools", "/etc/hosts? is none of the commands: /tools, /new"):
        assert line in outcome.err
    assert "a new conversation begins" in outcome.err


@pytest.mark.parametrize("words", [["chat"], ["run", "Well?"]])
def test_without_a_file_a_model_is_asked(
    typed: Type, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for provider in PROVIDERS.values():
        monkeypatch.delenv(provider.key_variable or "NONE", raising=False)
    outcome = typed(*words, stdin="Well?")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--model ollama:llama3.2, or set the key of a provider" in outcome.err
    with upstream_in_thread(lambda _: said("Hi.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        for given in ([], ["--model", "openai:mine"]):
            assert typed(*words, *given, stdin="Well?").out == "Hi.\n"
    assert [asked["model"] for asked in server.requests] == ["gpt-5-mini", "mine"]
    assert {headers["authorization"] for headers in server.headers} == {"bearer sk-1"}


def test_serve_says_which_port_it_cannot_have(typed: Type, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = typed("serve", file_of(tmp_path, "x"), "--port", port)
    assert outcome.code == 2
    assert f"error: --port {port}: cannot listen" in outcome.err
    assert "; --port 0 takes a free port" in outcome.err


def test_serve_without_a_file_or_an_agent_in_the_environment_asks_for_a_file(
    typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "k")  # as many a laptop has it
    outcome = typed("serve")
    assert outcome.code == 2
    assert outcome.err.startswith("error: give a file: diptych serve agent.yaml; ")


FORMS = "the store's URL must start with redis://, rediss://, unix:// or redis+sentinel://"


@pytest.mark.parametrize("words", [("serve", "FILE", "--port", "0"), ("run", "FILE", "Hi")])
def test_a_file_whose_redis_can_be_none_is_refused_where_it_is_used(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("R_URL", "http://:sesame@x")
    spec = "sessions: {redis: {urlFrom: {secretKeyRef: {name: r, key: url}}}}"
    file = file_of(tmp_path, '["{}", "x"]', spec=spec)
    outcome = typed(*(file if word == "FILE" else word for word in words))
    said = f"error: {file}: spec.sessions.redis.urlFrom: {FORMS}\n"
    assert (outcome.code, outcome.err) == (2, said)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["events", "http://127.0.0.1:9"], 1, "nothing listens at", id="events"),
        pytest.param(["run", "http://127.0.0.1:9", "Hi"], 1, "nothing listens at", id="run"),
        pytest.param(["chat", "http://127.0.0.1:9"], 1, "nothing listens at", id="chat"),
        pytest.param(["events", "http://[::x"], 2, "must be an agent's URL", id="no URL"),
        pytest.param(["events", "ftp://x"], 2, "must be an agent's URL", id="another scheme"),
        pytest.param(
            ["run", "http://127.0.0.1:9", "Hi", "--agent", "x"], 2, "go with a file", id="--agent"
        ),
    ],
)
def test_an_agent_that_cannot_be_reached_is_one_line(
    typed: Type, words: list[str], code: int, said: str
) -> None:
    outcome = typed(*words)
    assert outcome.code == code
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_the_demo_ends_well_and_leaves_nothing(typed: Type) -> None:
    outcome = typed("demo")
    assert outcome.code == 0
    assert "half an hour more" in outcome.out
    for part in ("→ researcher", "│ On average", "✓ difference", "The events of researcher"):
        assert part in outcome.err.replace("  ✓ 30.6", "  ✓ difference")
    places = [line for line in outcome.err.splitlines() if "  ● " in line and "http://" in line]
    ports = {line.rpartition(":")[2] for line in places}
    for port in {int(port.partition("/")[0]) for port in ports}:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
