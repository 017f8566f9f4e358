"""Pure: the Kubernetes objects that the operator reads and writes, as values.

owners     the kinds of ours that have children, and whose an object is by name and labels
agent      an Agent, typed
agent_pool an AgentPool, typed
owner      what all owners have in common, and whose an object is by its owner reference
kinds      kinds and their API paths, names, constants
labels     the labels that the operator sets, and label selectors
"""
