"""Charges usage to budgets: a run's own, and those that runs share."""
