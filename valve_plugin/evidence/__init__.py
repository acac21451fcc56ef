"""From records to statements: certificates, plans, evaluations, and receipts that recompute verdicts."""
