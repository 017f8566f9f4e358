"""The operator: makes of each `Agent` in a cluster what serves it, and says how it is.

    main         composition root: flags in, lease, health, kopf started
      handlers   kopf in, names of agents out; decides nothing
      reconcile  gather the world, ask children and status, apply, delete surplus
      visits     asks the pods what no watch tells: what do they miss
      configs    makes, looks after and deletes ConfigMaps, unread
      applying   brings one object to what it is to be, whatever others have made of it
      cluster    the one adapter that talks to Kubernetes
        world      what the watches have told so far
          plan       pure: children, or why there are none
            children   pure: the objects of an agent
            references pure: whom an agent refers to, and which of it leads nowhere
          status     pure: conditions from observations
            spec     an Agent as a typed value

The pod (`diptych`) and the operator never import each other: the CRD and the resolved manifest
are their contract.
"""
