"""The two-phase loop, pure: no asyncio, clock, chance, network or logging."""
