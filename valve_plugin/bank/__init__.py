"""The bank: its hash-chained ledger, replay, verification, and what this machine keeps beside it."""
