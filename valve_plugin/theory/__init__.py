"""Pure mathematics of the method: no I/O, clock or global randomness."""
