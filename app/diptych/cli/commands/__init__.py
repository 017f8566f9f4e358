"""The commands of `diptych`: one module per command, named after it.

Each imports what it needs when it runs, so that `--help` is quick.
"""
