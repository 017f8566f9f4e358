"""What an agent's policy says of a call: allow, deny or ask (agent.md `policy`, loop.md §5).

Not here: its expressions (`diptych_cel`), the manifest's form of it (`config.manifest.policy`),
what becomes of a call that is denied or asked about (`loop`, `runtime.call_maker`).
"""
