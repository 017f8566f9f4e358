"""Pure: what an Agent's status and Events say.

conditions   the conditions and the whole status, made of the values of `condition`
advice       what is wrong and what to do, in two sentences
unresolved   references that lead nowhere, for the condition ResolvedRefs
pool         the status of an AgentPool
pooled       how far a pool serves an Agent
pods         what a live Deployment and its pods say
events       which changes of a status are worth an Event
"""
