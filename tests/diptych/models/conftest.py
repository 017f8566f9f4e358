from collections.abc import AsyncIterator

import aiohttp
import pytest

from diptych.models.connection import open_http_session


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_http_session() as opened:
        yield opened
