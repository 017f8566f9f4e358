"""The commands of `diptych`: one module per command, named after it.

Each imports what it needs when it runs, so that `--help` is quick.

Not here: reaching an agent (`client`), following a run (`follow`), how things look (`output`).
"""
