"""The two-phase loop, as pure code: no asyncio, clock, randomness, network or logging."""
