"""The wall clock and the random ids of this process."""

import secrets
import time


class SystemClock:
    """Fulfils `ports.Clock`."""

    now = staticmethod(time.time)

    def token(self) -> str:
        return secrets.token_hex(16)
