"""The conditions of an Agent."""

from dataclasses import replace

import pytest
from support.agents import agent
from support.live_objects import DOWN, deployment, waiting

from diptych_operator.desired.schedules import cron_job_name
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import (
    Condition,
    MissingDependency,
    StatusInputs,
    agent_status,
    conditions,
)

NOW = "2026-11-21T12:00:00Z"
LATER = "2026-11-21T13:00:00Z"
EVEN_LATER = "2026-11-21T14:00:00Z"
REJECTED = Problem("NameConflict", "There is another.")


def condition(inputs, kind):
    return next(c for c in conditions(inputs) if c.type == kind)


UP = deployment()
NO_DNS = MissingDependency("dns", "10.96.0.10", "the name server does not answer")


@pytest.mark.parametrize(
    ("inputs", "status", "reason"),
    [
        ({"deployment": DOWN}, "False", "RollingOut"),
        ({"deployment": deployment(generation=0)}, "False", "RollingOut"),  # not seen yet
        ({"deployment": deployment(updated=0, total=1)}, "False", "RollingOut"),
        ({"deployment": deployment(total=2)}, "False", "RollingOut"),  # an old pod besides
        ({"deployment": UP, "blocker": Problem("Denied", "")}, "True", "LastGoodRevision"),
        ({"deployment": UP, "blocker": Problem("WaitsForOthers", "")}, "True", "Ready"),
        ({"deployment": UP, "blocker": Problem("KindMissing", "")}, "True", "Ready"),
        ({"rejection": REJECTED}, "False", "NameConflict"),
        ({"blocker": Problem("Forbidden", "")}, "False", "Forbidden"),
        ({"deployment": DOWN, "pods": [waiting("ErrImagePull")]}, "False", "ImagePullFailed"),
        ({"deployment": DOWN, "missing_dependencies": [NO_DNS]}, "False", "NameServerSilent"),
    ],
)
def test_ready_means_that_the_newest_pods_can_take_work(inputs, status, reason):
    found = condition(StatusInputs(**inputs), "Ready")
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (["key"], "KeyMissing"),
        (["server"], "ToolServerUnavailable"),
        (["agent"], "AgentUnavailable"),
        (["model"], "ModelUnavailable"),
        (["rule"], "RuleMatchesNothing"),
        (["dns"], "NameServerSilent"),
        (["pod"], "TokenRefused"),
        (["moon"], "Missing"),
        (["agent", "key"], "Missing"),
    ],
)
def test_degraded_says_what_is_missing(kinds, reason):
    missing = [MissingDependency(kind, "a", "b") for kind in kinds]
    inputs = StatusInputs(deployment=UP, missing_dependencies=missing)
    found = condition(inputs, "Degraded")
    assert (found.status, found.reason) == ("True", reason)
    assert condition(inputs, "Ready").reason == "Degraded"


def test_the_former_degraded_condition_holds_until_the_first_poll():
    former = {"type": "Degraded", "status": "True", "reason": "KeyMissing", "message": "key k"}
    inputs = StatusInputs(deployment=deployment(), former_degraded=former)
    assert condition(inputs, "Degraded") == Condition("Degraded", "True", "KeyMissing", "key k")
    assert condition(inputs, "Ready").reason == "Degraded"


def test_degraded_names_everything_once():
    missing = (
        MissingDependency("server", "w", "away"),
        MissingDependency("key", "k", "gone"),
    ) * 2
    message = condition(StatusInputs(missing_dependencies=missing), "Degraded").message
    assert message == "server w: away; key k: gone"


def test_all_unresolved_references_are_named_under_the_first_ones_reason_and_are_missing():
    problems = (Problem("ServiceNotAllowed", "Not yours."), Problem("ServiceNotFound", "No w."))
    inputs = StatusInputs(deployment=UP, unresolved=problems, missing_dependencies=())
    for kind, status in (("ResolvedRefs", "False"), ("Degraded", "True")):
        said = Condition(kind, status, "ServiceNotAllowed", "Not yours.; No w.")
        assert condition(inputs, kind) == said
    assert condition(inputs, "Ready").reason == "Degraded"
    key = MissingDependency("key", "k", "gone")
    both = condition(replace(inputs, missing_dependencies=(key,)), "Degraded")
    assert (both.reason, both.message) == (
        "ServiceNotAllowed",
        "Not yours.; No w.; key k: gone",
    )


def test_a_bad_rollout_says_that_the_revision_before_keeps_serving():
    rolling = deployment(updated=1, total=2, available=1)
    found = condition(StatusInputs(deployment=rolling, pods=[waiting("ErrImagePull")]), "Ready")
    assert found.message.endswith("The revision before it keeps serving meanwhile.")


def test_a_time_stays_as_long_as_the_status_does():
    first = agent_status(agent(), StatusInputs(deployment=DOWN), NOW)
    same = agent_status(_with(first), StatusInputs(deployment=DOWN), LATER)
    assert same == first
    ready = agent_status(_with(first), StatusInputs(deployment=deployment()), LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in ready["conditions"]}
    assert times["Ready"] == LATER
    assert times["Accepted"] == NOW
    not_ready = agent_status(_with(ready), StatusInputs(deployment=DOWN), EVEN_LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in not_ready["conditions"]}
    assert times["Ready"] == EVEN_LATER


ALL_GOOD = {
    "Accepted": ("True", "Accepted", "The manifest can be served."),
    "ResolvedRefs": (
        "True",
        "ResolvedRefs",
        "All that the manifest names is there.",
    ),
    "Progressing": ("False", "UpToDate", "All pods run the newest revision."),
    "Ready": ("True", "Ready", "1 of 1 pods can take work."),
    "Available": ("True", "Available", "1 pod can take work."),
    "Degraded": ("False", "NothingMissing", "All that the agent uses is there."),
}
MADE = "A rollout is going on: {} of 1 pods of the newest revision are made."
NOTHING = ("False", "NoPodAvailable", "No pod can take work.")
GOOD = StatusInputs(deployment=deployment(), missing_dependencies=())
PAUSED = deployment(updated=0, total=1)
PAUSED["spec"]["paused"] = True
PAUSED_WORDS = (
    "Somebody has paused the Deployment, so that changes wait; `kubectl rollout resume deployment` "
    "of the Agent's name goes on."
)
QUOTA = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q."}
QUOTA_WORDS = "The cluster refuses the pods: exceeded quota: q."
UNASKED = "No pod has answered the operator yet, so missing dependencies are unknown."
NOT_APPLIED = (
    "1 of 1 pods can take work. Not all that it needs could be applied; "
    "the last good revision keeps serving."
)
STUCK_WORDS = "The newest revision does not come up; Ready says why."
STUCK = [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]


@pytest.mark.parametrize(
    ("inputs", "changed"),
    [
        pytest.param(GOOD, {}, id="all is well"),
        pytest.param(
            replace(GOOD, rejection=REJECTED),
            {
                "Accepted": ("False", "NameConflict", "There is another."),
                "Progressing": ("False", "NotAccepted", "Nothing is changed meanwhile."),
                "Stalled": ("True", "NameConflict", "There is another."),
                "Ready": (
                    "True",
                    "LastGoodRevision",
                    (
                        "1 of 1 pods can take work. The manifest was not accepted; "
                        "the last good revision keeps serving."
                    ),
                ),
            },
            id="rejected",
        ),
        pytest.param(
            replace(GOOD, deployment=None, missing_dependencies=None),
            {
                "Progressing": ("True", "RollingOut", MADE.format(0)),
                "Reconciling": ("True", "RollingOut", MADE.format(0)),
                "Available": NOTHING,
                "Ready": ("False", "RollingOut", "There are no pods yet."),
                "Degraded": ("Unknown", "NotAsked", UNASKED),
            },
            id="nothing exists yet",
        ),
        pytest.param(
            replace(GOOD, deployment=deployment(0, 0, 0)),
            {
                "Available": ("False", "ScaledToZero", "No pod can take work."),
                "Ready": (
                    "True",
                    "ScaledToZero",
                    "The agent is scaled to no pods, as its manifest says.",
                ),
            },
            id="scaled to zero",
        ),
        pytest.param(
            replace(GOOD, deployment=deployment(available=0, conditions=STUCK)),
            {
                "Progressing": ("False", "Stuck", STUCK_WORDS),
                "Stalled": ("True", "Stuck", STUCK_WORDS),
                "Available": NOTHING,
                "Ready": ("False", "RollingOut", "0 of 1 pods can take work."),
            },
            id="stuck",
        ),
        pytest.param(
            replace(GOOD, blocker=Problem("WriteFailed", "A webhook is gone.")),
            {
                "Progressing": ("False", "WriteFailed", "A webhook is gone."),
                "Stalled": ("True", "WriteFailed", "A webhook is gone."),
                "Ready": ("True", "LastGoodRevision", NOT_APPLIED),
            },
            id="a write that fails",
        ),
        pytest.param(
            replace(GOOD, blocker=Problem("FormerOwner", "It is still there.")),
            {
                "Progressing": ("False", "FormerOwner", "It is still there."),
                "Reconciling": ("True", "FormerOwner", "It is still there."),
                "Ready": ("True", "LastGoodRevision", NOT_APPLIED),
            },
            id="waiting for a former Agent's children",
        ),
        pytest.param(
            replace(
                GOOD,
                deployment=DOWN,
                missing_dependencies=(MissingDependency("store", "r", "gone"),),
            ),
            {
                "Progressing": ("True", "RollingOut", MADE.format(1)),
                "Reconciling": ("True", "RollingOut", MADE.format(1)),
                "Available": NOTHING,
                "Ready": ("False", "StoreUnavailable", "The pods take no work: gone."),
                "Degraded": ("True", "StoreUnavailable", "store r: gone"),
            },
            id="a store that is away",
        ),
        pytest.param(
            replace(GOOD, deployment=PAUSED),
            {
                "Progressing": ("False", "Paused", PAUSED_WORDS),
                "Stalled": ("True", "Paused", PAUSED_WORDS),
                "Ready": (
                    "False",
                    "Paused",
                    f"{PAUSED_WORDS} The revision before it keeps serving meanwhile.",
                ),
            },
            id="a change of a paused Deployment",
        ),
        pytest.param(
            replace(GOOD, deployment=deployment(updated=0, total=1, conditions=[QUOTA])),
            {
                "Progressing": ("False", "PodsRefused", QUOTA_WORDS),
                "Stalled": ("True", "PodsRefused", QUOTA_WORDS),
                "Ready": (
                    "False",
                    "PodsRefused",
                    f"{QUOTA_WORDS} The revision before it keeps serving meanwhile.",
                ),
            },
            id="a rollout that a quota blocks",
        ),
        pytest.param(
            replace(
                GOOD, missing_dependencies=(MissingDependency("store", "redis", "full since 9"),)
            ),
            {
                "Ready": (
                    "False",
                    "StoreFull",
                    "The pods take no new runs: the store is full since 9.",
                ),
                "Degraded": ("True", "StoreFull", "store redis: full since 9"),
            },
            id="a store that is full, while all pods are up",
        ),
        pytest.param(
            replace(
                GOOD,
                deployment=DOWN,
                start_problem=Problem("VolumeNotMounted", "Pod p does not start: no ca."),
            ),
            {
                "Progressing": ("True", "RollingOut", MADE.format(1)),
                "Reconciling": ("True", "RollingOut", MADE.format(1)),
                "Available": NOTHING,
                "Ready": ("False", "VolumeNotMounted", "Pod p does not start: no ca."),
            },
            id="a pod that does not start, as its Events say",
        ),
    ],
)
def test_the_conditions_say_all(inputs, changed):
    found = {c.type: (c.status, c.reason, c.message) for c in conditions(inputs)}
    assert found == ALL_GOOD | changed


def test_an_agent_that_was_never_served_has_no_url_which_may_be_somebody_else_s():
    for reason in ("NameConflict", "ExposeNotAllowed", "PodTemplateInvalid"):
        inputs = StatusInputs(rejection=Problem(reason, "No."))
        assert agent_status(agent(), inputs, NOW)["url"] == ""
        served = replace(inputs, deployment=deployment())
        assert agent_status(agent(), served, NOW)["url"] == "http://coordinator.team:8000"


def test_a_message_never_outgrows_the_crd():
    problems = [Problem("ServiceNotFound", f"{n}" * 50) for n in range(200)]
    status = agent_status(agent(), StatusInputs(unresolved=problems), NOW)
    assert max(len(c["message"]) for c in status["conditions"]) == 2048


def _with(status):
    return replace(agent(), status=status)


def drift_of(missing, pins=({"tool": "pay", "digest": "sha256:0"},), status=None):
    tools = [{"name": "bank", "url": "http://bank", "pin": list(pins)}]
    inputs = StatusInputs(deployment=deployment(), missing_dependencies=missing)
    pinned = replace(agent(tools=tools), status=status or {})
    shown = agent_status(pinned, inputs, NOW)["conditions"]
    return next((c for c in shown if c["type"] == "ToolsDrifted"), None), shown


def test_changed_tools_have_a_condition_of_their_own() -> None:
    changed = MissingDependency("tool", "bank", "changed since pinned: pay, void (gone)")
    other = MissingDependency("tool", "bank", "1 left out, as its schema is long: big")
    drift, shown = drift_of([changed])
    assert (drift["status"], drift["reason"]) == ("True", "ToolsChanged")
    assert drift["message"].startswith("bank: changed since pinned: pay, void (gone). ")
    degraded = next(c for c in shown if c["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ToolsDrifted")
    drift, shown = drift_of([other])
    assert (drift["status"], drift["reason"]) == ("False", "AsPinned")
    assert next(c for c in shown if c["type"] == "Degraded")["reason"] == "ToolsLeftOut"


def test_only_agents_with_pins_say_whether_tools_have_changed() -> None:
    assert drift_of([], pins=())[0] is None
    assert drift_of([])[0]["status"] == "False"


def test_an_operator_that_has_not_asked_yet_leaves_the_word_of_the_one_before() -> None:
    assert drift_of(None)[0]["status"] == "Unknown"
    former, _ = drift_of([MissingDependency("tool", "bank", "changed since pinned: pay")])
    assert drift_of(None, status={"conditions": [former]})[0] == former


@pytest.mark.parametrize(("count", "said"), [(1, "1 rule holds"), (3, "3 rules hold")])
def test_accepted_says_how_many_rules_of_the_platform_hold(count, said):
    accepted = conditions(StatusInputs(platform_rules=count))[0]
    assert (accepted.type, accepted.status) == ("Accepted", "True")
    assert said in accepted.message
    assert "platform" not in conditions(StatusInputs())[0].message


def test_a_program_that_the_image_lacks_is_named_with_the_image():
    live = deployment()
    live["spec"]["template"] = {"spec": {"containers": [{"name": "agent", "image": "x:1"}]}}
    missing = [MissingDependency("server", "time", "no program mcp-server-time on PATH")]
    found = {one.type: one for one in conditions(StatusInputs(None, None, (), live, (), missing))}
    assert found["Degraded"].reason == "ProgramMissing"
    assert found["Degraded"].message == (
        "program mcp-server-time: the image x:1 lacks it, and tool server time needs it "
        "(spec.container.image)"
    )


def test_a_schedule_that_failed_is_degraded_and_named():
    given = agent(schedules=[{"name": "daily", "cron": "0 7 * * *", "message": "?"}])
    ends = {cron_job_name(given, "daily"): {"run_id": "run-1", "end": "failed"}}
    inputs = StatusInputs(deployment=deployment(), missing_dependencies=(), scheduled_ends=ends)
    found = {c["type"]: c for c in agent_status(given, inputs, NOW)["conditions"]}
    assert found["Degraded"]["reason"] == "ScheduleFailed"
    assert found["Degraded"]["message"] == "schedule daily: its last run failed: run-1"
