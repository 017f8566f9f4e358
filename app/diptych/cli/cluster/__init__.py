"""What the command line does in a cluster, by the person's own `kubectl` and `helm`.

There is no Kubernetes client here: these programs know kubeconfig, contexts and credential plugins
as their user does (docs/decisions/0030-kubectl-is-the-engine.md).

Not here: the commands (`install`, `status`, `get`, `logs` beside this package).
"""
