"""The commands of `diptych`: one module per command, named after it."""
