"""The operator: makes of each `Agent` the objects that serve it, and reports its state.

    main        the process: one term after another
    process     a term, settings, health
    watch       kopf's watches and periodic lists → cache, work queue
    controller  work queue → reconciler: observe, decide, apply, write the status
    kubernetes  the adapter to the Kubernetes API
    status      pure: conditions and Events
    desired     pure: the objects that an Agent needs, and drift
    resources   pure: Agents, kinds, labels, ownership

Each folder imports only folders below it; `kubernetes` and `status` do not import each other.

The pod (`diptych`) and the operator never import each other: the CRD and the resolved manifest are
their contract.
"""
