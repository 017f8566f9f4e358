"""The Python API: an agent as an object."""
