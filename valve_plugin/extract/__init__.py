"""From mixed attempts to a proposal: digests, prompts, strict parsing, screening, duplicates."""
