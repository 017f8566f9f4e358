"""Commands for a cluster; they run the user's own `kubectl`."""
