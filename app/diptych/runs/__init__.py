"""Runs: started, scheduled, executed, driven, and subscribed to.

    service     `start` puts a run on record, at the end of its session's queue
    scheduler   `schedule` has it executed when its turn comes, if this process owns the session
    executor    `execute` rebuilds it from its record, and sees to its end
    runner      `drive` is its event loop: advance (`core`), record, notify subscribers, act
                (`model_caller` asks, `call_maker` calls), until it ends or is handed over

Signals go the same way: `run_signals`, `scheduler`, `active_run`, the runner's inbox. Records go
back by `run_log` to each `subscription`.
"""
