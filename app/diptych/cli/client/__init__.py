"""An agent that the command line talks to: in this process, at a URL, or in a cluster."""
