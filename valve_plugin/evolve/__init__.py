"""The loop over a stream of tasks."""
