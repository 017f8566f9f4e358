"""Which tests can run beside others, which begin early or last, and which are untraced.

`conftest` at the root sees to it.
"""

TIMELESS = (
    "tests/bench/",
    "tests/diptych/access/",
    "tests/diptych/a2a/test_a2a_task_progress.py",
    "tests/diptych/a2a/test_event_gate.py",
    "tests/diptych/mcp/test_mcp_output.py",
    "tests/diptych/models/test_model_requests.py",
    "tests/diptych/models/test_recorded_streams.py",
    "tests/diptych/models/test_upstream_habits.py",
    "tests/diptych/manifest/",
    "tests/diptych/http/test_bad_input.py",
    "tests/diptych/http/test_fuzz.py",
    "tests/diptych/http/test_openapi.py",
    "tests/diptych/core/",
    "tests/diptych/a2a/test_a2a_e",
    "tests/diptych/net/test_memory_budget.py",
    "tests/diptych/net/test_redaction.py",
    "tests/diptych/net/test_sse.py",
    "tests/diptych/policy/",
    "tests/diptych/runs/test_child_approvals.py",
    "tests/diptych/runs/test_hostile_model.py",
    "tests/diptych/runs/test_long_conversations.py",
    "tests/diptych/runs/test_queues.py",
    "tests/diptych/runs/test_request.py",
    "tests/diptych/runs/test_run_node.py",
    "tests/diptych/runs/test_simulation",
    "tests/diptych/runs/test_subscription.py::test_readers_who_fall_behind_at_every_step",
    "tests/diptych_cel/",
    "tests/diptych_operator/controller/test_apply.py",
    "tests/diptych_operator/controller/test_cache.py",
    "tests/diptych_operator/controller/test_claims.py",
    "tests/diptych_operator/controller/test_expose.py",
    "tests/diptych_operator/controller/test_poll_schedule.py",
    "tests/diptych_operator/controller/test_purge_jobs.py",
    "tests/diptych_operator/controller/test_reconciler.py",
    "tests/diptych_operator/controller/test_reconciler_faults.py",
    "tests/diptych_operator/controller/test_rollout_throttle.py",
    "tests/diptych_operator/desired/",
    "tests/diptych_operator/process/test_access_settings.py",
    "tests/diptych_operator/process/test_agent_settings.py",
    "tests/diptych_operator/process/test_policy_settings.py",
    "tests/diptych_operator/process/test_settings.py",
    "tests/diptych_operator/resources/",
    "tests/diptych_operator/status/",
    "tests/diptych_operator/test_crd.py",
    "tests/diptych_operator/watch/test_handlers.py",
    "tests/recorded/",
    "tests/test_chart.py",
    "tests/test_citations.py",
    "tests/test_contract.py",
    "tests/test_gitops.py",
    "tests/test_layout.py",
    "tests/test_policy_form.py",
    "tests/tools/",
)
"""They know no time: a busy machine makes them slower, and nothing else.

So are those in virtual time, wherever they stand (`support.stories.virtually`).
"""

LONG = (
    "tests/test_stack_schemathesis.py",
    "tests/chaos/",
    "tests/diptych/cli/test_failover.py",
    "tests/diptych_operator/test_crd_versions.py",
    "tests/test_stack_cancelling.py",
    "tests/test_stack_clients.py",
    "tests/test_stack_hostile_peers.py",
)
"""They have tests of ten seconds and more: begun last, one alone would hold up the end."""

LAST = ("tests/admission/",)
"""They share a Kubernetes API in each process, which works as long as it lives: to the end."""

UNTRACED = (
    "tests/diptych/models/test_recorded_streams.py",
    "tests/diptych/http/test_fuzz.py",
    "tests/diptych/core/reading/test_parser_properties.py",
    "tests/diptych/runs/test_hostile_model.py",
    "tests/diptych/runs/test_long_conversations.py",
    "tests/diptych/runs/test_simulation",
    "tests/diptych/runs/test_subscription.py::test_readers_who_fall_behind_at_every_step",
    "tests/diptych_operator/controller/test_reconciler_faults.py::test_k2",
    "tests/test_chart.py",
    "tests/test_stack_schemathesis.py",
)
"""They walk thousands of times where others have walked before. The gate of coverage holds without
them: tracing makes Python more than twice as slow (3.11 to 3.13 know no cheaper way)."""
