"""The cluster's own issuer of ServiceAccount tokens and its keys, as the API publishes them.

Pods verify tokens with these keys and need no access to the API. Keys are rotated: they are read
every 20 s, and all owners are queued when they change.
"""

import asyncio
import logging
from typing import Any

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.access import TokenIssuer
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError, ForbiddenError

PERIOD = 20.0
"""Seconds between two looks."""
RETRY_SECONDS = 3.0
"""Seconds between two looks as long as nothing is known."""

_DISCOVERY = "/.well-known/openid-configuration"  # "Service account issuer discovery", Kubernetes
_KEYS = "/openid/v1/jwks"
_log = logging.getLogger(__name__)


class ClusterIssuer:
    """`current` is the issuer as last read; `problem` says why the last read failed, else ""."""

    def __init__(self, client: KubernetesClient, cache: ObjectCache, queue: WorkQueue) -> None:
        self._client = client
        self._cache = cache
        self._queue = queue
        self.current: TokenIssuer | None = None
        self.problem = "the API was not asked yet"

    async def run(self) -> None:
        """Refresh periodically, forever."""
        while True:
            await self.refresh()
            await asyncio.sleep(PERIOD if self.current else RETRY_SECONDS)

    async def refresh(self) -> None:
        """Read the issuer once; on failure keep the former value."""
        try:
            found = _issuer(
                await self._client.document(_DISCOVERY), await self._client.document(_KEYS)
            )
        except ForbiddenError as error:
            self._note(f"{error}; the ClusterRole system:service-account-issuer-discovery gives it")
        except ApiError as error:
            self._note(str(error))
        except ValueError as error:
            self._note(f"the API's answer is of no use: {error}")
        else:
            has_changed = self.current is not None and found != self.current
            self.current, self.problem = found, ""
            if has_changed:
                _log.info("the keys of the cluster's issuer have changed")
                for owner in self._cache.owner_keys():
                    self._queue.add(owner)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("cannot read the cluster's issuer of tokens: %s", problem)
        self.problem = problem


def _issuer(configuration: dict[str, Any], key_set: dict[str, Any]) -> TokenIssuer:
    url, keys = configuration.get("issuer"), key_set.get("keys")
    if not isinstance(url, str) or not url:
        raise ValueError("it names no issuer")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, dict) for key in keys):
        raise ValueError("it holds no keys")
    return TokenIssuer(url, tuple(keys))
