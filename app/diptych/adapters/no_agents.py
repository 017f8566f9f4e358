"""No other agents: what an agent has that may delegate to nobody."""

from typing import NoReturn

from diptych.errors import DelegationError
from diptych.loop.catalog import Peer, Unavailable
from diptych.ports import DelegationRequest, Progress


class NoAgents:
    """Fulfils `ports.Agents` without the weight of A2A."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def wait_for_first_attempt(self, timeout: float) -> None: ...  # noqa: ASYNC109 - nothing to wait for

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        return (), ()

    async def delegate(self, request: DelegationRequest, progress: Progress) -> NoReturn:
        del progress
        raise DelegationError("refused", f"no agent is called {request.agent}")
