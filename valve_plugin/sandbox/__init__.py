"""Where commands of agents and tests run: workspaces, bubblewrap, containers, limits, processes, git."""
