"""Schedules and triggers, which start runs (docs/schedules.md)."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from diptych.access.signatures import Scheme
from diptych.manifest.fields import DnsLabel, LongText, SecretSource
from diptych.manifest.rules import Rule, StrictModel, pattern, rule_error
from diptych.runs.request import SESSION_ID
from diptych_cel.expressions import (
    MAX_EXPRESSION,
    InvalidExpression,
    Result,
    check_expression,
)
from diptych_cron import CRON_PATTERN, Cron, InvalidCron, read_time_zone, wrong_field

Expression: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION)]
_RESULTS: dict[str, Result] = {"when": "bool", "message": "string", "session": "name"}
_MAX_MESSAGE = 16 * 1024


class ScheduleSpec(StrictModel):
    """A message that starts a run at certain times."""

    name: DnsLabel
    """The schedule's name. On a laptop its runs belong to the subject `schedule:<name>`."""
    time_zone: Annotated[
        str,
        pattern(
            r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*",
            "must be a time zone such as Europe/Berlin",
            64,
        ),
    ] = "Etc/UTC"
    """The time zone that the cron line is about."""
    cron: Annotated[
        str,
        pattern(
            CRON_PATTERN,
            "must be a cron line of five fields, each after one blank: minute, hour, day of month, "
            'month, day of week (0 to 6, or SUN to SAT), such as "0 7 * * 1-5"',
            100,
        ),
    ]
    """When: minute, hour, day of month, month, day of week, such as `0 7 * * 1-5`. When clocks are
    set forward, skipped times do not run; when they are set back, repeated ones run twice."""
    message: Annotated[
        LongText,
        Field(min_length=1, max_length=_MAX_MESSAGE),
        Rule(r"self.matches(r'\S')", "must not be blank", str.strip),
    ]
    """The user's message of each run."""
    session: Annotated[
        str | None,
        pattern(SESSION_ID.pattern, "must be 1 to 128 characters from A-Z a-z 0-9 . _ -", 128),
    ] = None
    """The conversation that all its runs share. If absent, each has one of its own."""
    missed: Literal["skip", "once"] = "skip"
    """How to treat times at which no run could be started: `skip` forgets them, `once` starts one
    run for the last of them."""

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, name: str) -> str:
        try:
            read_time_zone(name)
        except InvalidCron as error:
            raise rule_error(str(error)) from None
        return name

    @field_validator("cron", mode="before")
    @classmethod
    def _name_wrong_field(cls, line: object) -> object:
        if isinstance(line, str) and (reason := wrong_field(line)):
            raise rule_error(reason)
        return line

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, line: str) -> str:
        try:
            Cron.parse(line, "Etc/UTC")
        except InvalidCron as error:
            raise rule_error(str(error)) from None
        return line


class TriggerSpec(StrictModel):
    """An address, `POST /v1/triggers/<name>`, at which a delivery starts a run."""

    rules = (
        Rule(
            "(self.signature == 'none') != has(self.secret)",
            "needs a secret, unless its signature is none: then it has none, and callers need the "
            "right ask",
            lambda spec: (spec.signature == "none") != bool(spec.secret),
        ),
    )

    name: DnsLabel
    """The trigger's name. Runs of signed deliveries belong to the subject `trigger:<name>`."""
    signature: Scheme
    """How a delivery proves where it comes from: `standard-webhooks`, `github`
    (X-Hub-Signature-256) or `gitlab` (X-Gitlab-Token). With `none` the caller needs the right
    `ask`, as for any run."""
    secret: SecretSource | None = None
    """The secret that the sender signs with; for `standard-webhooks` it may begin with `whsec_`."""
    when: Expression | None = None
    """A condition in CEL over `body` (the JSON) and `headers` (names in lower case). If it is
    false, no run starts."""
    message: Expression
    """The user's message, a string in CEL over the same, such as `"New: " + body.issue.title`."""
    session: Expression | None = None
    """The conversation that the run continues: a string or whole number in CEL over the same, such
    as `body.issue.id`. If absent, each run has one of its own."""

    @field_validator("when", "message", "session")
    @classmethod
    def _check_expression(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is not None:
            try:
                check_expression(text, "delivery", _RESULTS[info.field_name or ""])
            except InvalidExpression as error:
                raise rule_error(str(error)) from None
        return text
