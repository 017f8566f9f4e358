"""The control loop: from the cache of observed objects to writes that make the cluster match.

`work_queue` says which owners to reconcile, `owner_reconciler` does it, the rest are its parts.
"""
