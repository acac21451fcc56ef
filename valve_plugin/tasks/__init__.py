"""Where tasks come from, and the repositories they live in."""
