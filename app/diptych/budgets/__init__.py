"""Budgets: the meter of a run, and reservations from shared budgets."""
