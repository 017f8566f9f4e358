"""The store in memory, lost with its process: event log, sessions, leases, feed and ledger."""
