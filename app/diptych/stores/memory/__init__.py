"""Runs that end with their process: the event log, sessions, leases and feed in memory."""
