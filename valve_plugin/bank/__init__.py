"""Persistence: the JSON bank, its hash-chained ledger, local data, and the retrieval index over it."""
