"""Side effects: workspaces, sandboxes, running the agent, grading."""
