"""The process around the control loop.

term            one term: wait for the Lease, list, watch and reconcile until something ends it
settings        flags and environment variables
settings_files  the files that they name
health          /healthz, /readyz, /metrics
"""
