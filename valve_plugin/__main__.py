"""The `valve` command, also as `python -m valve_plugin`."""

import sys


def main() -> None:
    """Load the commands and run one; Ctrl-C while they load is an interrupt like any other."""
    if sys.argv[1:] == ["context", "--hook"]:  # a person waits for it with each prompt: without the commands
        from valve_plugin.live.hook import main as answer

        return answer()
    try:
        from valve_plugin.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("valve: interrupted before it began\n")
        sys.exit(130)
    return run()


if __name__ == "__main__":
    main()
