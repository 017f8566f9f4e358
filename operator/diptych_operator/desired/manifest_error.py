"""A manifest that this platform does not take, for another reason than its pod template. Pure."""


class ManifestError(ValueError):
    """A manifest that cannot be served; `str()` is a sentence without its full stop.

    `reason` is the reason of the condition Accepted.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ExposeError(ManifestError):
    """A manifest that asks to be exposed as the platform does not let it.

    What it was exposed by before goes: its route, and what its NetworkPolicy admits for that.
    """
