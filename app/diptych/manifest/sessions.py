"""The part of a manifest that says where runs and sessions are stored, and how runs queue."""

from typing import Annotated, Literal

from diptych.core.run_settings import QueueMode, RunSettings
from diptych.manifest.fields import DNS_LABEL, DnsLabel, Port, SecretSource, duration
from diptych.manifest.rules import Rule, StrictModel, pattern
from diptych.manifest.settings import RETENTION
from diptych.runs.definition import AgentDefinition

_NEEDS_REDIS = "needs redis: without it sessions end with their pod"


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

    rules = (
        Rule(
            "!has(self.retention) || has(self.redis)",
            f"retention {_NEEDS_REDIS}",
            lambda spec: "retention" not in spec.model_fields_set or spec.redis,
        ),
        Rule(
            "!has(self.adopt) || has(self.redis)",
            f"adopt {_NEEDS_REDIS}",
            lambda spec: spec.adopt is None or spec.redis,
        ),
        Rule(
            "!has(self.onDelete) || self.onDelete == 'keep' || has(self.redis)",
            f"onDelete: purge {_NEEDS_REDIS}",
            lambda spec: spec.on_delete == "keep" or spec.redis,
        ),
    )

    redis: RedisSpec | None = None
    """The Redis that stores runs and sessions, so that they outlive their pod and all replicas
    share them. If absent, they are in the memory of one pod."""
    retention: Annotated[float, duration("1m", "720h")] = RETENTION
    """The time that a session is kept after its last run, from 1m to 720h."""
    adopt: (
        Annotated[
            str,
            pattern(
                rf"({DNS_LABEL.pattern}/)?{DNS_LABEL.pattern}",
                "must be the status.sessions of an Agent: KEY, or NAME/KEY of one of another name",
                127,
            ),
        ]
        | None
    ) = None
    """The conversations that this agent continues: the `status.sessions` of an Agent that had the
    same namespace, used the same Redis, and is gone. With its name and a slash before it, of an
    Agent of another name (`old-name/6f0c…`), which this one was before it was renamed. Without it,
    an Agent in a cluster has the conversations that it began itself; on a laptop they belong to the
    agent's name."""
    on_delete: Literal["keep", "purge"] = "keep"
    """The fate of the sessions when the Agent is deleted: `keep` leaves them until retention
    ends, for an Agent that adopts them; `purge` deletes them once its runs have ended."""
    when_busy: Literal["enqueue", "reject", "interrupt"] = AgentDefinition().when_busy
    """The handling of a request while another run of its session is active: `enqueue` lets it wait
    its turn, `reject` refuses it (409), `interrupt` cancels the other run."""
    queue_mode: QueueMode = RunSettings().queue_mode
    """Whether `one` or `all` of the messages queued for a run join it at a time."""
