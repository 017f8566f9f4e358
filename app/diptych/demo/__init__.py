"""What `diptych demo` shows, and the tools of the examples. Nothing else needs it."""
