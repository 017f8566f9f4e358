"""Tokens of ServiceAccounts for one Agent, by TokenRequest: `kubectl create token`."""

from diptych.cli.cluster.agents import AgentObject
from diptych.cli.cluster.errors import ClusterError, Forbidden
from diptych.cli.cluster.kubectl import Kubectl

DURATION = "1h"


def audience(agent: AgentObject) -> str:
    """Give the audience of tokens for an Agent."""
    return f"diptych.dev/{agent.namespace}/{agent.name}"


def request_token(kubectl: Kubectl, agent: AgentObject, duration: str = DURATION) -> str:
    """Have the cluster make a token to ask an Agent with.

    It is one of `--as-service-account`, a name or `namespace/name`, else of the Agent's own
    ServiceAccount, which may always ask it. Raises `ClusterError`; `Forbidden` says what helps.
    """
    namespace, _, name = (kubectl.flags.service_account or agent.name).rpartition("/")
    namespace = namespace or agent.namespace
    arguments = ("create", "token", name, f"--audience={audience(agent)}", f"--duration={duration}")
    try:
        token = kubectl.in_namespace(namespace).text(*arguments).strip()
    except Forbidden as error:
        raise Forbidden(
            f"{error}; a token of ServiceAccount {name} is needed to ask Agent "
            f"{agent.namespace}/{agent.name}: the role `edit` in namespace {namespace} gives that "
            "right; or name another ServiceAccount with --as-service-account, or set DIPTYCH_TOKEN"
        ) from error
    if not token:
        raise ClusterError("kubectl printed no token; is it older than 1.24?")
    return token
