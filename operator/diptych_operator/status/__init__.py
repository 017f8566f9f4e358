"""Pure: what an Agent's status and Events say.

conditions   the status and its conditions
unresolved   references that lead nowhere, for the condition ResolvedRefs
deployments  what a live Deployment's status says
pods         what keeps a pod from becoming ready
events       which changes of a status are worth an Event
"""
