"""Runs: started, scheduled, executed, driven, and subscribed to.

    service     `start` logs a run at the end of its session's queue
    scheduler   `schedule` executes it at its turn, if this process owns the session
    executor    `execute` rebuilds it from its log and sees to its end
    runner      `drive` is its event loop: advance (`core`), log, notify subscribers, act
                (`model_caller`, `call_maker`), until it ends or is handed over

Signals take the same way: `run_signals`, `scheduler`, `active_run`, the runner's inbox. Records
return through `run_log` to each `subscription`.
"""
