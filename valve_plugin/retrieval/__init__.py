"""Retrieve: rank a bank's items for one task, and compose the block that is injected."""
