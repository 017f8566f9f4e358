"""What the command line does in a cluster, through the person's own `kubectl` and `helm`.

There is no Kubernetes client library: both programs handle kubeconfig, contexts and credential
plugins as their user expects (docs/decisions/0030-kubectl-is-the-engine.md).
"""
