"""Budgets: a run's limits, its meter, and what is reserved from shared budgets."""
