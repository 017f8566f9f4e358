"""The control loop: from the cache of observed objects to writes that make the cluster match.

work_queue       the Agents to reconcile, with backoff
reconciler       workers take Agents from the queue; observe, decide, apply, write the status
surplus          children that an Agent does not need any more
apply            one object of an Agent: server-side apply, and repair where that is refused
config_maps      the ConfigMaps with resolved manifests, which the operator may not read
access_files     what pods are told of who calls, in ConfigMaps likewise
purge_jobs       the Jobs that delete sessions
rollout_throttle how many Agents roll at a time when the platform has changed
status_writer    the Agent's status, and Events for what changed in it
readiness_poll   asks pods which of their dependencies are missing
status_tokens    with which it asks them
poll_schedule    when each Agent is polled next
cluster_issuer   the cluster's issuer of ServiceAccount tokens, and its keys
claims           which namespaces this operator serves, if several watch them
leader_election  one active operator: the holder of the Lease
obstacles        what keeps children from being made: the manifest, the cluster, the API
changes          one line of the log for each change
cache            the objects that watches, lists and writes have shown so far
answers          what the API answers to writes: into the cache, and who is affected is queued
referrers        which Agents refer to which objects
metrics          counters for Prometheus
"""
