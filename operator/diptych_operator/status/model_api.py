"""The conditions of a ModelAPI, and its whole status. Pure.

Ready says what its proxy, or its hosted server, answered to the operator. Without either, the
Agents ask the endpoint themselves, and their condition Degraded says whether it answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from diptych_operator.resources.kinds import Object
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.status.advice import FINE
from diptych_operator.status.condition import MAX_MESSAGE, Condition, written
from diptych_operator.status.owner import OwnerInputs, accepted, kstatus, pod_counts, shortened

MAX_MODELS = 256


@dataclass(frozen=True, slots=True)
class ApiInputs(OwnerInputs):
    """The inputs of a ModelAPI's conditions; `answers` are those of its pods."""

    answers: Mapping[str, Object] = field(default_factory=dict)


def model_api_status(api: ModelApi, inputs: ApiInputs, now: str) -> dict[str, Any]:
    """Return the whole status. `now` becomes the time of conditions whose status has changed."""
    ready = _ready(api, inputs)
    shown = accepted(inputs), ready, *kstatus(inputs)
    models = _models(inputs.answers)
    status: dict[str, Any] = {
        "advice": _advice(shown)[:MAX_MESSAGE],
        "observedGeneration": api.generation,
        "models": models[:MAX_MODELS],
        "modelCount": len(models),
        "agents": inputs.agents,
        "conditions": written(api, shown, now),
    }
    if api.url:
        status["url"] = api.url
    if inputs.deployments:
        status |= pod_counts(inputs, api.ready_labels)
    return status


def _ready(api: ModelApi, inputs: ApiInputs) -> Condition:
    problem = inputs.obstacle
    if not inputs.deployments:
        if problem:
            return Condition("Ready", "False", problem.reason, problem.message)
        message = "Agents ask the endpoint themselves; their condition Degraded says if it answers."
        return Condition("Ready", "True", "NotProxied", message)
    if None in inputs.deployments:
        reason = problem.reason if problem else "RollingOut"
        return Condition("Ready", "False", reason, "Its pods are not all made yet.")
    if api.is_proxied and not api.replicas:
        message = "The proxy is scaled to no pods, as its manifest says; nobody can ask it."
        return Condition("Ready", "False", "ScaledToZero", message)
    if not inputs.is_rolled_out:
        return _rolling(inputs)
    if problem:
        message = f"The last good revision keeps serving. {problem.message}"
        return Condition("Ready", "True", "LastGoodRevision", message)
    answered = _answered(inputs.answers)
    if answered.reason == "KeyMissing":
        names = ", ".join(dict.fromkeys(f"{ref.kind} {ref.name}" for ref in api.key_refs))
        answered = replace(answered, message=f"{answered.message} See {names}.")
    return answered


def _rolling(inputs: ApiInputs) -> Condition:
    """Return the problem that keeps the newest pods from serving."""
    if problem := inputs.pods_problem:
        return Condition("Ready", "False", problem.reason, problem.message)
    message = "A rollout is going on; older pods, if there are any, keep serving."
    return Condition("Ready", "False", "RollingOut", message)


def _answered(answers: Mapping[str, Object]) -> Condition:
    found = [_problem_of(pod, answer) for pod, answer in sorted(answers.items())]
    if not found:
        return Condition("Ready", "Unknown", "NotAsked", "No pod has answered the operator yet.")
    if wrong := next(filter(None, found), None):
        return wrong
    count = len(_models(answers))
    message = "The endpoint answers"
    message += f", and lists {count} {'model' if count == 1 else 'models'}." if count else "."
    return Condition("Ready", "True", "Ready", message)


def _problem_of(pod: str, answer: Object) -> Condition | None:
    """Return the problem that a pod reports: with its endpoint, its budget or its file."""
    if refused := answer.get("refused"):
        return Condition("Ready", "Unknown", "TokenRefused", f"Pod {pod} {shortened(refused)}.")
    match answer:
        case {"endpoint": {"reason": str(reason)}} if reason:
            code, _, words = reason.partition(": ")
            if code == "unchecked":
                return Condition("Ready", "Unknown", "NotAsked", f"Pod {pod}: {_sentence(words)}")
            kind = _REASONS.get(code, "EndpointUnavailable")
            return Condition("Ready", "False", kind, f"Pod {pod}: {_sentence(words or reason)}")
        case {"notes": [note, *_]}:
            return Condition("Ready", "False", "ProxyImpaired", f"Pod {pod}: {_sentence(note)}")
        case {"status": _, **rest} if not rest:
            message = f"Pod {pod} does not say how its endpoint is."
            return Condition("Ready", "Unknown", "NotAsked", message)
    return None


_REASONS: Final = {"key_missing": "KeyMissing", "key_refused": "KeyRefused"}
"""By the code with which a proxy's reason begins."""


def _models(answers: Mapping[str, Object]) -> list[str]:
    """Return the models that the endpoint lists, sorted; a hosted server answers as OpenAI does."""
    found: set[str] = set()
    for answer in answers.values():
        match answer:
            case {"models": list(names)}:
                found.update(shortened(name) for name in names)
            case {"data": list(entries)}:
                ids = (one.get("id") for one in entries if isinstance(one, dict))
                found.update(shortened(one) for one in ids if one)
    return sorted(found)


def _advice(shown: Sequence[Condition]) -> str:
    """Return a sentence about what is wrong, for people."""
    wrong = next((one for one in shown[:2] if one.status != "True"), None)
    return f"Serving. {FINE}" if wrong is None else wrong.message


def _sentence(value: object) -> str:
    text = shortened(value)
    return text if text.endswith(".") else f"{text}."
