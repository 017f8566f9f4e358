"""The wire: translates requests into asks and records into replies, and decides nothing."""
