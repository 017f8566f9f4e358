"""The CEL expressions of an Agent's policy, and of the platform's: checked as the pod does. Pure.

The API has checked the rest of a policy by the CRD; it can only take an expression for a text.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from diptych_cel.expressions import About, InvalidExpression, check_expression
from diptych_operator.desired.locked_fields import LockedField, locked_field
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.owner import ManifestError

_CONTAINER = "spec.containers[agent]"
_LOCKED = (
    "spec.shareProcessNamespace",
    "spec.volumes[diptych]",
    *(
        f"{_CONTAINER}.{field}"
        for field in (
            *("image", "command", "args", "workingDir", "envFrom", "volumeMounts", "lifecycle"),
            *("startupProbe", "livenessProbe", "readinessProbe", "securityContext"),
            *("env[PYTHON*]", "env[LD_*]", "env[PATH]"),
            *("env[OPENSSL*]", "env[GCONV_PATH]"),  # which name code that OpenSSL and glibc load
        )
    ),
)


def locked_by_policy() -> tuple[LockedField, ...]:
    """Return the fields by which an Agent could replace the program that enforces the policy."""
    why = "agents.policy holds for all Agents, so none may change what its container runs"
    return tuple(locked_field(path, why) for path in _LOCKED)


def check_policy(agent: Agent) -> None:
    """Raise `ManifestError` for the mistakes of an Agent's expressions, each with its place."""
    mistakes = list(policy_mistakes(agent.spec.get("policy") or ()))
    if mistakes:
        raise ManifestError("PolicyInvalid", "; ".join(f"spec.policy{one}" for one in mistakes))


def policy_mistakes(rules: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return the mistakes of rules' expressions: `[0].when: column 5: …`."""
    for number, rule in enumerate(rules):
        about: About = "tool" if "tool" in rule["match"] else "agent"
        if problem := _mistake(rule.get("when"), about):
            yield f"[{number}].when: {problem}"


@lru_cache(maxsize=4096)
def _mistake(expression: str | None, about: About) -> str:
    if expression is None:
        return ""
    try:
        check_expression(expression, about)
    except InvalidExpression as error:
        return str(error)
    return ""
