"""Benchmarks: Diptych as it is served, held against a hand-written floor on the same machine.

    python -m bench            everything, about five minutes
    python -m bench speed      one part: speed, streams, start, sse or agents

What is measured, how, and what came out stands in `docs/performance.md`. Linux only: CPU time and
memory of other processes are read from `/proc`.
"""
