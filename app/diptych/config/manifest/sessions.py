"""The part of a manifest that says where runs and sessions are stored, and how runs queue.

Not here: what is stored there and how (`adapters.redis`).
"""

from typing import Literal, Self

from pydantic import model_validator

from diptych.config.manifest.durations import Retention
from diptych.config.manifest.field_types import DnsLabel, Port
from diptych.config.manifest.references import SecretSource
from diptych.config.manifest.rules import CelRule, rule_error
from diptych.config.manifest.strict_model import StrictModel
from diptych.config.settings import RETENTION

_RETENTION_NEEDS_REDIS = "retention needs redis: without it sessions end with their pod"


class RedisService(StrictModel):
    """A Service behind which a Redis listens, without a password and TLS."""

    name: DnsLabel
    """The name of the Service."""
    namespace: DnsLabel | None = None
    """The Service's namespace; the agent's own if absent."""
    port: Port = 6379
    """The Service's port."""


class RedisSpec(StrictModel):
    """A Redis, version 7 or newer; exactly one of urlFrom and serviceRef says where it is."""

    exactly_one_of = ("urlFrom", "serviceRef")

    url_from: SecretSource | None = None
    """The Secret that holds the URL, which may contain a password: redis://…, rediss://… with TLS,
    or redis+sentinel://host:26379,host:26379/master. The agent's NetworkPolicy cannot know the URL:
    it opens ports 6379 and 26379 to anywhere; for another port use network.extraEgress."""
    service_ref: RedisService | None = None
    """The Service behind which the Redis runs."""


class SessionsSpec(StrictModel):
    """Where the runs of one conversation are stored, and how they queue."""

    cel_rules = (CelRule("!has(self.retention) || has(self.redis)", _RETENTION_NEEDS_REDIS),)

    redis: RedisSpec | None = None
    """The Redis that stores runs and sessions, so that they outlive their pod and all replicas
    share them. If absent, they are in the memory of one pod."""
    retention: Retention = RETENTION
    """How long a session is stored after its last run, from 1m to 720h."""
    when_busy: Literal["enqueue", "reject", "interrupt"] = "enqueue"
    """What happens to a request while another run of its session is active: `enqueue` lets it wait
    its turn, `reject` refuses it (409), `interrupt` cancels the other run."""
    queue_mode: Literal["one", "all"] = "one"
    """How many of the messages that wait in a run's queue join the run at a time."""

    @model_validator(mode="after")
    def _check_retention(self) -> Self:
        if "retention" in self.model_fields_set and self.redis is None:
            raise rule_error(_RETENTION_NEEDS_REDIS)
        return self
