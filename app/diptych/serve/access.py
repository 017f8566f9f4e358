"""Builds an agent's access policy from its manifest, the platform's file and issuers' keys."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from diptych.access.bearer import Authenticator
from diptych.access.grants import Grant
from diptych.access.oidc import REFRESH_SECONDS, IssuerKeys
from diptych.access.tokens import Issuer
from diptych.http.access_guard import AccessPolicy
from diptych.manifest.access import PlatformAccess, read_platform_access
from diptych.manifest.settings import AccessConfig, IssuerConfig
from diptych.models.connection import allow_url
from diptych.net.proxies import proxy_for
from diptych.net.redaction import remembered

_logger = logging.getLogger(__name__)


class AgentAccess:
    """An agent's issuers and grants; they change with the platform's file.

    `pool` returns the issuers of the pool that it runs in, whose tokens are accepted, too.
    """

    def __init__(
        self,
        config: AccessConfig,
        http: aiohttp.ClientSession,
        pool: Callable[[], Sequence[Issuer]] = tuple,
    ) -> None:
        self._config = config
        self._pool = pool
        self._http = http
        self._keys: dict[tuple[str, bool], IssuerKeys] = {}  # by URL, and whether the platform's
        self._refreshing: asyncio.Task[None] | None = None
        self._text: str | None = None  # of the platform's file, that `_platform` was read from
        self._platform = PlatformAccess()
        self._pooled: Sequence[Issuer] | None = None  # the pool's issuers, as last seen
        self._issuers: Sequence[Issuer] = ()
        self._grants: Sequence[Grant] = ()
        self._update()

    @property
    def proves_somebody(self) -> bool:
        """Whether any caller can authenticate: there are keys or issuers, beside the pool's."""
        return bool(self._config.keys or self._config.issuers or self._platform.issuers)

    def policy(self, agent: str, on_refused: Callable[[str], None]) -> AccessPolicy:
        """Return the access policy of the agent called `agent`."""
        keys = {name: remembered(read) for name, read in self._config.keys.items()}
        authenticator = Authenticator(self.issuers, keys)
        return AccessPolicy(
            authenticator,
            self.grants,
            self._refresh_keys,
            agent,
            on_refused,
            approves_own=self._config.approve_own,
        )

    async def start(self) -> None:
        """Fetch issuers' keys, and refresh them regularly from now on.

        Without the refresh a withdrawn key stays valid until a token names an unknown one.
        """
        await asyncio.gather(*(k.refresh(is_unknown_key=True) for k in self._keys.values()))
        if self._keys or self._config.platform:
            self._refreshing = asyncio.create_task(self._refresh_old_keys())

    async def aclose(self) -> None:
        """Cancel pending fetches."""
        if self._refreshing:
            self._refreshing.cancel()
        await asyncio.gather(*(keys.aclose() for keys in self._keys.values()))

    def issuers(self) -> Sequence[Issuer]:
        """Return the issuers whose tokens are accepted now."""
        self._update()
        return self._issuers

    def grants(self) -> Sequence[Grant]:
        """Return the current grants."""
        self._update()
        return self._grants

    def _update(self) -> None:
        """Build issuers and grants again if the platform's file or the pool's issuers changed."""
        text = self._config.platform() if self._config.platform else None
        pooled = self._pool()
        is_new = text is not None and text != self._text
        if not is_new and pooled is self._pooled:
            return
        self._pooled = pooled
        if text is not None and is_new:
            self._text = text
            try:
                self._platform = read_platform_access(text)
            except ValueError as error:
                _logger.error(
                    "cannot parse the platform's access file (%s); the former one stays in force",
                    error,
                )
        platform = self._platform
        issuers = (
            *(self._issuer(one, is_platform=True) for one in platform.issuers),
            *(self._issuer(one, is_platform=False) for one in self._config.issuers),
            *pooled,
        )
        agents, of_pools = platform.agents, platform.pooled
        self._issuers = tuple(replace(each, agents=agents, pooled=of_pools) for each in issuers)
        self._grants = (*self._config.grants, *platform.grants)

    def _issuer(self, config: IssuerConfig, *, is_platform: bool) -> Issuer:
        jwks = config.jwks
        keys = (lambda: jwks) if jwks is not None else self._fetched_keys(config, is_platform)
        return Issuer(
            config.url,
            config.audience,
            keys,
            config.user_claim,
            config.groups_claim,
            is_cluster=config.is_cluster,
        )

    def _fetched_keys(
        self, config: IssuerConfig, is_platform: bool
    ) -> Callable[[], Sequence[Mapping[str, Any]]]:
        name = (config.url, is_platform)
        if name not in self._keys:
            for url in (config.url, proxy_for(config.url)):
                allow_url(self._http, url)
            self._keys[name] = IssuerKeys(config.url, self._http, time.monotonic)
        self._keys[name].read_ca = config.ca
        return self._keys[name].keys

    async def _refresh_old_keys(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for keys in tuple(self._keys.values()):
                await keys.refresh(is_unknown_key=False)

    async def _refresh_keys(self, url: str) -> None:
        self._update()
        for (of, _), keys in tuple(self._keys.items()):
            if of == url:
                await keys.refresh(is_unknown_key=True)
