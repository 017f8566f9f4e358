"""Makes an agent's `Policy` of what its manifest, and its platform, say of calls."""

from collections.abc import Iterator

from diptych.manifest import AgentManifest
from diptych.manifest.agent import PLATFORM_POLICY, AgentSpec
from diptych.manifest.policy import PolicyRuleSpec
from diptych.manifest.reference_values import References
from diptych.manifest.settings import ALL_TOOLS
from diptych.policy.rules import LayeredPolicy, Policy, Rule
from diptych.policy.unmatched import NamedCalls
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


def named_calls(spec: AgentSpec) -> Iterator[NamedCalls]:
    """Find all fields that name tools or agents. The platform's rules are for all Agents alike."""
    for n, rule in enumerate(spec.policy):
        about: About = "tool" if rule.match.agent is None else "agent"
        pattern = rule.match.tool or rule.match.agent or ""
        if (pattern,) != ALL_TOOLS:
            yield NamedCalls(f"spec.policy[{n}].match.{about}", about, pattern)
    for n, server in enumerate(spec.tools):
        allowed = [(f"allow[{m}]", pattern) for m, pattern in enumerate(server.allow)]
        changed = [(f"overrides[{m}].tool", each.tool) for m, each in enumerate(server.overrides)]
        for field, pattern in (*allowed, *changed):
            if (pattern,) != ALL_TOOLS:
                yield NamedCalls(f"spec.tools[{n}].{field}", "tool", pattern, server.name)


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
