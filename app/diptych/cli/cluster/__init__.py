"""What the command line does in a cluster, through the person's own `kubectl`.

There is no Kubernetes client library: kubectl handles kubeconfig, contexts and credential plugins
as its user expects (docs/decisions/0030-kubectl-is-the-engine.md).
"""
