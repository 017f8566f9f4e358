"""The part of a manifest that says which calls are made, denied, or asked about first."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from diptych.manifest.durations import Duration
from diptych.manifest.field_types import OneLine
from diptych.manifest.strict_model import StrictModel
from diptych.manifest.validators import rule_error
from diptych.policy.rules import EXPIRES
from diptych_cel.expressions import MAX_EXPRESSION, InvalidExpression, check_expression


class MatchSpec(StrictModel):
    """Which calls a rule is about: those of tools, or of agents."""

    exactly_one_of = ("tool", "agent")

    tool: OneLine | None = None
    """The tools that are meant: a name or a glob, such as `pay`, `bank__*` or `*`. It is held
    against the tool's own name and against its long one, `<server>__<name>`."""
    agent: OneLine | None = None
    """The agents that are meant: a name by which the model knows them, or a glob."""


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
    """Why, for the model and for whoever is asked."""
    expires: Duration = EXPIRES
    """How long an approval waits; without a decision the call is rejected then."""
    repeat: Literal["allow", "deny", "ask"] | None = None
    """What becomes of a call that the rule allows, if its tool is neither read-only nor idempotent
    and the step before made the same call with the same arguments. If absent, the third such call
    in consecutive steps is not made, and the model is told so."""
    mode: Literal["enforce", "dryRun"] = "enforce"
    """With `dryRun` the rule decides nothing: what it would do is only a line of the audit, and the
    next rules decide."""

    @field_validator("when")
    @classmethod
    def _check_when(cls, when: str | None, info: ValidationInfo) -> str | None:
        match = info.data.get("match")
        if when is not None and match is not None:
            try:
                check_expression(when, "tool" if match.agent is None else "agent")
            except InvalidExpression as error:
                raise rule_error(str(error)) from None
        return when
