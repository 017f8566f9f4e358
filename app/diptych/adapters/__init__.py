"""One thing outside each, behind one port each; adapters do not know each other."""
