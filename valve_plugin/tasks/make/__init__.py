"""Making task sets: candidate bugs, bugs from a repository's history, issue texts."""
