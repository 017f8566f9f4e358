"""Pure: the desired state. Which objects an Agent needs, and whether a live object differs.

children           all objects of an Agent
child              what the objects of all owners have in common
pool               the objects of an AgentPool
pool_documents     the documents by which its pods know their Agents
deployment         its Deployment and pod template
network_policy     its NetworkPolicy's rules
expose             its HTTPRoute or Ingress
access             what its pods are told of who calls, and what they call with
schedules          the CronJobs that start its scheduled runs
purge              the Job that deletes its sessions
job_pod            the pods of both
metadata           labels and annotations of all of them
resolved_manifest  its manifest as the pod reads it, references resolved
call_policy        checks the expressions of its policy, and of the platform's
references         the Agents and Services that a manifest names, and what is observed of them
strategic_merge    lays pod template overrides over the operator's own
locked_fields      what of a pod template no Agent may override
drift              whether a live object still says what was applied
rollout            how far a live Deployment's rollout is, and who caused it
"""
