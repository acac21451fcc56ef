"""The agents that solve tasks: how one runs in a process of its own, and how its model calls are retried."""
