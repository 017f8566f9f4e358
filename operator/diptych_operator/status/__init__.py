"""Pure: what an Agent's status and Events say.

agent_status the whole status
advice       what is wrong and what to do, in two sentences
conditions   the conditions; condition and problem are the values that they are made of
unresolved   references that lead nowhere, for the condition ResolvedRefs
deployments  what a live Deployment's status says
pods         what keeps a pod from becoming ready
events       which changes of a status are worth an Event
"""
