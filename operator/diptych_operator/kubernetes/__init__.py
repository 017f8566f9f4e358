"""The adapter to the Kubernetes API.

client      requests and their errors
connection  address, credentials, HTTP session
errors      what a request can raise
"""
