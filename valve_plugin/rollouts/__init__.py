"""Rollouts: one attempt at one task, from context to graded patch, and where attempts run."""
