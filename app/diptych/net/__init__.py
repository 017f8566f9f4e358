"""Networking shared by clients and servers: outgoing policy, proxies, SSE, backoff, redaction."""
