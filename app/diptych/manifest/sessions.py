"""The part of a manifest that says where runs and sessions are stored, and how runs queue.

Their values go to `config.settings.StoreConfig`; `when_busy` to `runtime.definition`, `queue_mode`
to `loop.run_settings` (`config.resolver` has a line for each).
"""

from typing import Literal, Self

from pydantic import model_validator

from diptych.core.run_settings import QueueMode, RunSettings
from diptych.manifest.fields import DnsLabel, Port, Retention, SecretSource, SessionsKey
from diptych.manifest.rules import CelRule, StrictModel, rule_error
from diptych.manifest.settings import RETENTION
from diptych.runs.definition import AgentDefinition

_RETENTION_NEEDS_REDIS = "retention needs redis: without it sessions end with their pod"
_ADOPT_NEEDS_REDIS = "adopt needs redis: without it sessions end with their pod"
_PURGE_NEEDS_REDIS = "onDelete: purge needs redis: without it sessions end with their pod"


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

    cel_rules = (
        CelRule("!has(self.retention) || has(self.redis)", _RETENTION_NEEDS_REDIS),
        CelRule("!has(self.adopt) || has(self.redis)", _ADOPT_NEEDS_REDIS),
        CelRule(
            "!has(self.onDelete) || self.onDelete == 'keep' || has(self.redis)", _PURGE_NEEDS_REDIS
        ),
    )

    redis: RedisSpec | None = None
    """The Redis that stores runs and sessions, so that they outlive their pod and all replicas
    share them. If absent, they are in the memory of one pod."""
    retention: Retention = RETENTION
    """How long a session is stored after its last run, from 1m to 720h."""
    adopt: SessionsKey | None = None
    """The conversations that this agent continues: the `status.sessions` of an Agent that had the
    same namespace, used the same Redis, and is gone. With its name and a slash before it, of an
    Agent of another name (`old-name/6f0c…`), which this one was before it was renamed. Without it,
    an Agent in a cluster has the conversations that it began itself; on a laptop they belong to the
    agent's name."""
    on_delete: Literal["keep", "purge"] = "keep"
    """What becomes of the sessions when the Agent is deleted: `keep` leaves them until retention
    ends, for an Agent that adopts them; `purge` deletes them once its runs have ended."""
    when_busy: Literal["enqueue", "reject", "interrupt"] = AgentDefinition().when_busy
    """What happens to a request while another run of its session is active: `enqueue` lets it wait
    its turn, `reject` refuses it (409), `interrupt` cancels the other run."""
    queue_mode: QueueMode = RunSettings().queue_mode
    """How many of the messages that wait in a run's queue join the run at a time."""

    @model_validator(mode="after")
    def _check_redis(self) -> Self:
        if self.redis is not None:
            return self
        if "retention" in self.model_fields_set:
            raise rule_error(_RETENTION_NEEDS_REDIS)
        if self.adopt is not None:
            raise rule_error(_ADOPT_NEEDS_REDIS)
        if self.on_delete == "purge":
            raise rule_error(_PURGE_NEEDS_REDIS)
        return self
