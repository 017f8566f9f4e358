"""The control loop: from the cache of observed objects to writes that make the cluster match.

`work_queue` says which Agents to reconcile, `reconciler` does it, the rest are its parts.
"""
