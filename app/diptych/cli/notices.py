"""Notices that the command line adds to a run's: they tell of its connection to the agent."""

RECONNECTING = "reconnecting"
"""The stream of a run broke, and is opened again after its last event."""
RETRYING_START = "asking_again"
"""The connection broke before the agent confirmed the run; the request is sent again."""
