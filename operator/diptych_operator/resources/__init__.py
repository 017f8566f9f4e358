"""Pure: the Kubernetes objects that the operator reads and writes, as values.

agent      an Agent, typed, and whose an object is
kinds      kinds and their API paths, names, constants
labels     the labels that the operator sets, and label selectors
"""
