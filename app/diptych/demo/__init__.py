"""The agents and tools of `diptych demo`; the examples use the same tools.

Not here: serving them (`cli.commands.demo`).
"""
