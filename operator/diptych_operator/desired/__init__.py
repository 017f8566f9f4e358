"""Pure: the desired state. Which objects an Agent needs, and whether a live object differs.

children           all objects of an Agent
deployment         its Deployment and pod template
network_policy     its NetworkPolicy's rules
resolved_manifest  its manifest as the pod reads it, references resolved
references         the Agents and Services that a manifest names
observed           the observed objects that a decision depends on
strategic_merge    lays pod template overrides over the operator's own
drift              whether a live object still says what was applied
"""
