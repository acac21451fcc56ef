"""`python -m valve_plugin` is the `valve` command."""

from valve_plugin.cli import main

if __name__ == "__main__":
    main()
