"""The wire: translates requests into runs and records into replies. It decides nothing."""
