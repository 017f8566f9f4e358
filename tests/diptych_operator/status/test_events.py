"""Which changes of a status are worth an Event."""

import pytest
from support.agents import agent
from support.live_objects import DOWN, deployment, waiting

from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import MissingDependency, StatusInputs, agent_status
from diptych_operator.status.events import Transition, event_of, transitions

NOW = "2026-11-21T12:00:00Z"
REJECTED = Problem("NameConflict", "There is another.")


def events(before, after):
    old = agent_status(agent(), before, NOW) if before else {}
    new = agent_status(agent(), after, NOW)
    return [(t.reason, "Warning" if t.is_warning else "Normal") for t in transitions(old, new)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, StatusInputs(), [], id="a good start is no news"),
        pytest.param(
            None, StatusInputs(rejection=REJECTED), [("NameConflict", "Warning")], id="a bad one is"
        ),
        pytest.param(
            StatusInputs(), StatusInputs(deployment=deployment()), [("Ready", "Normal")], id="ready"
        ),
        pytest.param(
            StatusInputs(deployment=deployment()),
            StatusInputs(deployment=DOWN),
            [("RollingOut", "Normal")],
            id="roll",
        ),
        pytest.param(
            StatusInputs(deployment=deployment()),
            StatusInputs(deployment=deployment(), blocker=Problem("WaitsForOthers", "Later.")),
            [],
            id="others roll first",
        ),
        pytest.param(
            StatusInputs(deployment=DOWN),
            StatusInputs(deployment=DOWN, pods=[waiting("ErrImagePull")]),
            [("ImagePullFailed", "Warning")],
            id="a pod in trouble",
        ),
        pytest.param(
            StatusInputs(deployment=deployment(), missing_dependencies=()),
            StatusInputs(
                deployment=deployment(),
                missing_dependencies=(MissingDependency("key", "k", "gone"),),
            ),
            [("Degraded", "Normal"), ("KeyMissing", "Warning")],
            id="a key has gone",
        ),
        pytest.param(
            StatusInputs(unresolved=(Problem("AgentNotFound", ""),)),
            StatusInputs(),
            [("ResolvedRefs", "Normal")],
            id="an agent has come",
        ),
        pytest.param(StatusInputs(), StatusInputs(), [], id="nothing has changed"),
    ],
)
def test_an_event_tells_what_has_changed(before, after, expected):
    assert events(before, after) == expected


def test_an_events_note_is_never_longer_than_the_api_allows():
    status = agent_status(agent(), StatusInputs(rejection=Problem("TooLarge", "…" * 2000)), NOW)
    [event] = transitions({}, status)
    assert len(event.note.encode()) == 1023  # the next character has three bytes


@pytest.mark.parametrize(("is_warning", "kind"), [(True, "Warning"), (False, "Normal")])
def test_an_event_regards_its_agent(is_warning, kind):
    event = event_of(agent(), Transition(is_warning, "KeyMissing", "key k: gone"), NOW, "1f")
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "coordinator.1f", "namespace": "team"},
        "eventTime": "2026-11-21T12:00:00.000000Z",
        "reportingController": "diptych.dev/diptych-operator",
        "reportingInstance": "diptych-operator",
        "action": "Reconcile",
        "reason": "KeyMissing",
        "note": "key k: gone",
        "type": kind,
        "regarding": {
            "apiVersion": "diptych.dev/v1alpha1",
            "kind": "Agent",
            "namespace": "team",
            "name": "coordinator",
            "uid": "coordinator-1",
        },
    }


def status(kind, value, reason):
    return {"conditions": [{"type": kind, "status": value, "reason": reason, "message": ""}]}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            ("Degraded", "True", "KeyMissing"),
            ("Degraded", "False", "NothingMissing"),
            ["Normal"],
            id="a dependency is there again",
        ),
        pytest.param(
            ("Degraded", "Unknown", "NotAsked"),
            ("Degraded", "False", "NothingMissing"),
            [],
            id="the first poll finds nothing missing",
        ),
        pytest.param(
            ("Degraded", "Unknown", "NotAsked"),
            ("Degraded", "True", "KeyMissing"),
            ["Warning"],
            id="the first poll finds a missing key",
        ),
        pytest.param(
            ("Ready", "True", "Ready"),
            ("Ready", "False", "ScaledToZero"),
            ["Normal"],
            id="scaled to zero",
        ),
        pytest.param(
            ("Ready", "False", "RollingOut"),
            ("Ready", "False", "FormerOwner"),
            ["Normal"],
            id="a former Agent's children are still there",
        ),
        pytest.param(
            ("Progressing", "True", "RollingOut"),
            ("Progressing", "False", "Stuck"),
            [],
            id="Progressing is no news, as Ready says why",
        ),
    ],
)
def test_a_transition_to_an_expected_state_is_no_warning(before, after, expected):
    found = transitions(status(*before), status(*after))
    assert ["Warning" if t.is_warning else "Normal" for t in found] == expected
