"""The HTTP layer: translates requests into runs, and records into replies.

It checks access and validates requests; it decides nothing about the course of a run.
"""
