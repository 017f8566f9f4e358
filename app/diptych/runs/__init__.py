"""What makes runs happen: starting, scheduling, executing and driving them, and subscriptions.

    service     `start` puts a run on record, at the end of its session's queue
    scheduler   `schedule` has it executed when its turn comes, if this process owns the session
    executor    `execute` rebuilds it from its record, and sees to its end
    runner      `drive` is its event loop: advance (`loop`), record, tell subscribers, act
                (`model_caller` asks, `call_maker` calls), until it ends or is handed over

A signal goes the same way: `run_signals` → `scheduler` → `active_run` → the runner's inbox. What a
run records goes back by `run_log` to each `subscription`.
"""
