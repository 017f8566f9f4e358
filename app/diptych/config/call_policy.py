"""Makes an agent's `Policy` of what its manifest says of calls.

Not here: the manifest's form (`manifest.policy`), deciding on a call (`diptych.policy`).
"""

from collections.abc import Sequence

from diptych.config.manifest.policy import PolicyRuleSpec
from diptych.policy.expressions import About, check_expression
from diptych.policy.rules import Policy, Rule


def call_policy(rules: Sequence[PolicyRuleSpec]) -> Policy:
    """Give the policy that the rules of a valid manifest make."""
    return Policy(tuple(map(_rule, rules)))


def _rule(rule: PolicyRuleSpec) -> Rule:
    about: About = "tool" if rule.match.agent is None else "agent"
    return Rule(
        about,
        rule.match.tool or rule.match.agent or "",
        rule.do,
        check_expression(rule.when, about) if rule.when is not None else None,
        rule.reason,
        rule.expires,
        is_dry_run=rule.mode == "dryRun",
    )
