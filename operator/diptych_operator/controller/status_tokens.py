"""Tokens with which the operator asks pods how they are: of its own ServiceAccount, for one Agent.

Each is for the Agent alone that it is sent to, so that no pod can use it at another one.
"""

import logging
import time
from collections.abc import Callable

from diptych_operator.desired.access import audience
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import NamespacedName

LIFETIME = 3600
"""Seconds for which a token is asked; the API may give another time."""
RENEWED_AFTER = 1800.0
"""Seconds after which a token is replaced: well before it expires, whatever the API gives."""
RETRY_SECONDS = 60.0

_log = logging.getLogger(__name__)


class StatusTokens:
    """The tokens by Agent. `account` is the operator's own; without one there are no tokens."""

    def __init__(
        self,
        client: KubernetesClient,
        account: NamespacedName | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._account = account
        self._clock = clock
        self._tokens: dict[NamespacedName, tuple[str | None, float]] = {}
        """The token, None if the API gave none, and the time until which that holds."""

    async def token(self, name: NamespacedName) -> str | None:
        """Give a token for an Agent; None if the API gives none now."""
        if self._account is None:
            return None
        token, until = self._tokens.get(name, (None, 0.0))
        now = self._clock()
        if now >= until:
            token = await self._request(self._account, name) or token
            self._tokens[name] = token, now + (RENEWED_AFTER if token else RETRY_SECONDS)
        return token

    def keep(self, names: set[NamespacedName]) -> None:
        """Forget the tokens of all other Agents."""
        for name in self._tokens.keys() - names:
            del self._tokens[name]

    async def _request(self, account: NamespacedName, name: NamespacedName) -> str | None:
        try:
            return await self._client.create_token(account, audience(name), LIFETIME)
        except ApiError as error:
            _log.warning("%s/%s: no token to ask its pods with: %s", *name, error)
            return None
