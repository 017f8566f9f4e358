"""Makes an agent's `Policy` of what its manifest, and its platform, say of calls."""

from diptych.config.manifest import AgentManifest
from diptych.config.manifest.agent import PLATFORM_POLICY
from diptych.config.manifest.policy import PolicyRuleSpec
from diptych.config.references import References
from diptych.policy.layers import LayeredPolicy
from diptych.policy.rule_groups import Rule
from diptych.policy.rules import Policy
from diptych_cel.expressions import About, check_expression


def call_policy(manifest: AgentManifest, references: References) -> Policy:
    """Give the policy that the rules of a valid manifest make, and those of its platform.

    Rules of the platform that do not have their form are a problem of `references`.
    """
    own = Policy(tuple(map(_rule, manifest.spec.policy)))
    try:
        platform = manifest.metadata.platform_policy
    except ValueError as error:
        problem = f"{PLATFORM_POLICY} is not what this version understands: {error}"
        references.add_problem(("metadata", "annotations"), " ".join(problem.split()))
        return own
    if not platform:
        return own
    return LayeredPolicy(Policy(tuple(map(_rule, platform)), "platform"), own)


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
        repeat=rule.repeat,
    )
