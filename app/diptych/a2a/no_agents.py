"""The port `Agents` of an agent without other agents."""

from typing import NoReturn

from diptych.core.catalog import Peer, Unavailable
from diptych.core.errors import DecisionRefused, DelegationError
from diptych.ports import ChildRef, ChildReply, DelegationProgress, DelegationRequest


class NoAgents:
    """Implements `ports.Agents` without importing the A2A SDK, which is heavy."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def wait_for_first_attempt(self, timeout: float) -> None: ...  # noqa: ASYNC109 - nothing to wait for

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        return (), ()

    async def delegate(self, request: DelegationRequest, progress: DelegationProgress) -> NoReturn:
        del progress
        raise DelegationError("refused", f"no agent is called {request.agent}")

    async def reply(self, reply: ChildReply) -> NoReturn:
        raise DecisionRefused(f"no agent is called {reply.agent} any more")

    async def run_tree(self, agent: str, child: ChildRef) -> NoReturn:
        del child
        raise DelegationError("refused", f"no agent is called {agent}")
