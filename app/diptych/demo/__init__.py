"""The agents and tools of `diptych demo`; the examples use the same tools."""
