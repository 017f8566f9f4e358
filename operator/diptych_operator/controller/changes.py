"""One line of the log for each change that the operator makes: what, of which Agent, and why.

As JSON (`--log-format json`) the line has the same in fields of its own. What is only looked at, or
refused, has no such line.
"""

import logging
from enum import Enum

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Kind

_log = logging.getLogger(__name__)


class Verb(Enum):
    """What was done to an object."""

    CREATED = "created"
    APPLIED = "applied"
    DELETED = "deleted"


def log_change(agent: Agent, verb: Verb, kind: Kind, name: str, why: str) -> None:
    """Log a change of an object that belongs to an Agent; `name` is the object's."""
    log_change_of("/".join(agent.namespaced_name), agent.generation, verb, kind, name, why)


def log_change_of(  # noqa: PLR0913, PLR0917 - the fields of one line
    agent: str, generation: int, verb: Verb, kind: Kind, name: str, why: str
) -> None:
    """Log a change for an Agent, `namespace/name`, that may be gone: then its generation is 0."""
    change = {
        "agent": agent,
        "generation": generation,
        "verb": verb.value,
        "kind": kind.name,
        "name": name,
        "why": why,
    }
    sentence = "%(agent)s, generation %(generation)d: %(verb)s %(kind)s %(name)s: %(why)s"
    _log.info(sentence, change, extra={"change": change})
