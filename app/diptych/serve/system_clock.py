"""The wall clock and the random ids of this process."""

import secrets
import time


class SystemClock:
    """Fulfils `ports.Clock`."""

    def now(self) -> float:
        return time.time()

    def token(self) -> str:
        return secrets.token_hex(16)
