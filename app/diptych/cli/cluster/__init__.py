"""What the command line does in a cluster, through the person's own `kubectl`."""
