"""The process around the control loop.

term      one term: wait for the Lease, list, watch and reconcile until something ends it
tasks     ends asyncio tasks reliably
settings  flags and environment variables; settings_file, access_settings, agent_settings and
          policy_settings read the files that they name
health    /healthz, /readyz, /metrics
logs      how log lines look
"""
