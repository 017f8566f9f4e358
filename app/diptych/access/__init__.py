"""Who asks, and what that subject may do (access.md). Offline: no call here waits for the network.

Not here: where a token stands in a request, and how a refusal looks (`http`); where issuers' keys
are fetched (`adapters`).
"""
