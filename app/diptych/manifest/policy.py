"""The parts of a manifest that decide about calls, steps and answers: policy and hooks."""

import re
from typing import Annotated, Literal

from pydantic import (
    Field,
    ValidationInfo,
    field_validator,
)

from diptych.manifest.fields import (
    Duration,
    Headers,
    OneLine,
    SecretSource,
    Url,
    duration,
)
from diptych.manifest.rules import (
    Rule,
    StrictModel,
    cel_matches,
    rule_error,
)
from diptych.policy.rules import EXPIRES
from diptych.runs.definition import HOOK_TIMEOUT
from diptych_cel.expressions import MAX_EXPRESSION, About, InvalidExpression, check_expression


class MatchSpec(StrictModel):
    """Which calls a rule is about: those of tools, or of agents."""

    exactly_one_of = ("tool", "agent")

    tool: OneLine | None = None
    """The tools that are meant: a name or a glob, such as `pay`, `bank__*` or `*`. It is held
    against the tool's own name and against its long one, `<server>__<name>`."""
    agent: OneLine | None = None
    """The agents that are meant: a name by which the model knows them, or a glob."""

    @property
    def about(self) -> About:
        return "tool" if self.agent is None else "agent"

    @property
    def pattern(self) -> str:
        return self.tool or self.agent or ""


class PolicyRuleSpec(StrictModel):
    """A rule. The first rule that matches a call decides on it; a rule that fails denies."""

    match: MatchSpec
    """The calls that the rule is about."""
    when: Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION)] | None = None
    """A condition in CEL, over `args` (of an agent: `args.task`), `tool` (`name`, `server`,
    `longName`, and MCP's `annotations`) or `agent` (`name`), and `caller` (`subject`, `kind`,
    `name`, and `onBehalfOf`, for whom it says to work). A condition that fails, as by a field that
    is not there, denies the call."""
    do: Literal["allow", "deny", "ask"]
    """`allow` makes the call. `deny` gives the model the reason as its result. `ask` makes it when
    somebody with the right `approve` has approved it."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """The reason, shown to the model and to the person who decides."""
    expires: Duration = EXPIRES
    """How long an approval waits; without a decision the call is rejected then."""
    repeat: Literal["allow", "deny", "ask"] | None = None
    """How to treat an allowed call if the step before made the same call with the same arguments,
    and its tool is neither read-only nor idempotent. If absent, the third such call in consecutive
    steps is denied, and the model gets an error."""
    mode: Literal["enforce", "dryRun"] = "enforce"
    """With `dryRun` the rule decides nothing: what it would do is only a line of the audit, and the
    next rules decide."""

    @field_validator("when")
    @classmethod
    def _check_when(cls, when: str | None, info: ValidationInfo) -> str | None:
        match = info.data.get("match")
        if when is not None and match is not None:
            try:
                check_expression(when, match.about)
            except InvalidExpression as error:
                raise rule_error(str(error)) from None
        return when


_PRIVATE = re.compile(
    r"https://.*|http://(localhost|127(\.[0-9]{1,3}){3}|\[::1\]|[a-z]([-a-z0-9]*[a-z0-9])?"
    r"|[a-z0-9]([-.a-z0-9]*[a-z0-9])?\.svc(\.cluster\.local)?)(:[0-9]{1,5})?([/?].*)?"
)


class HookSpec(StrictModel):
    """An address that is asked about runs by HTTP; see docs/hooks.md."""

    at: Literal["beforeCall", "afterCall", "afterStep", "validateAnswer"]
    """Where in a run it is asked: `beforeCall` may rewrite or deny a call, `afterCall` may replace
    its result, `afterStep` may end phase 1, `validateAnswer` may refuse the answer."""
    url: Annotated[
        Url,
        Rule(
            cel_matches(_PRIVATE.pattern),
            "must be https: what a run does is read on the way, and answers could be forged; http "
            "only for loopback and Services of the cluster (name, or name.namespace.svc)",
            _PRIVATE.fullmatch,
        ),
    ]
    """Where the questions are sent. Outside the cluster it must be https."""
    timeout: Annotated[float, duration("0s", "30s")] = HOOK_TIMEOUT
    """How long it may take to answer, at most 30s."""
    headers: Headers = ()
    """Headers that every request carries."""
    signing_key: SecretSource | None = None
    """The key that signs each request, as Standard Webhooks does (`webhook-signature`): `whsec_`
    and base64, or any other text."""
