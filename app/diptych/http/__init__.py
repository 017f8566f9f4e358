"""The wire: translates requests into runs, and records into replies.

It decides who may do what, and what a request may hold; nothing about how a run goes.
"""
