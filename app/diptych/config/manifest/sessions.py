"""The part of a manifest that says where the runs of a conversation are kept, and their order.

Not here: what is kept in that place and how (the store's adapter).
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from diptych.config.manifest.field_types import Label, Retention, only_yet
from diptych.config.manifest.rules import Cel, broken_rule
from diptych.config.manifest.strict_model import SecretSource, Wire

_RETENTION_ALONE = "retention needs redis: without it sessions end with their pod"


class RedisService(Wire):
    """A Service behind which a Redis listens, without a password and TLS."""

    name: Label
    """Name of the Service."""
    namespace: Label | None = None
    """The Service's namespace, if it is another one than the agent's."""
    port: Annotated[int, Field(ge=1, le=65535)] = 6379
    """A port of the Service."""


class RedisSpec(Wire):
    """A Redis, version 7 or newer; exactly one of urlFrom and serviceRef says where it is."""

    exactly_one_of = ("urlFrom", "serviceRef")

    url_from: SecretSource | None = None
    """Where its URL stands, which may hold a password: redis://…, rediss://… with TLS, or
    redis+sentinel://host:26379,host:26379/master. The agent's NetworkPolicy cannot know the URL: it
    opens ports 6379 and 26379 to anywhere; for another port use network.extraEgress."""
    service_ref: RedisService | None = None
    """The Service behind which it runs."""


class SessionsSpec(Wire):
    """How the runs of one conversation are kept and ordered."""

    cel = (Cel("!has(self.retention) || has(self.redis)", _RETENTION_ALONE),)

    redis: RedisSpec | None = None
    """Where runs and sessions are kept, so that they outlive their pod and all replicas know them.
    Absent: in the memory of one pod."""
    retention: Retention = 24 * 3600.0
    """How long a session is kept after its last run, from 1m to 720h."""
    when_busy: Annotated[Literal["enqueue", "reject", "interrupt"], only_yet("enqueue")] = "enqueue"
    """What becomes of a request while another run of its session is going on."""
    queue_mode: Annotated[Literal["one", "all"], only_yet("one")] = "one"
    """How many of the messages that wait in a run's queue join it at a time."""

    @model_validator(mode="after")
    def _kept_somewhere(self) -> Self:
        if "retention" in self.model_fields_set and self.redis is None:
            raise broken_rule(_RETENTION_ALONE)
        return self
