"""The `valve` command, also as `python -m valve_plugin`."""

import sys


def main() -> None:
    """Load the commands and run one; Ctrl-C while they load is an interrupt like any other."""
    words = sys.argv[1:]  # a person waits for an agent's hooks with each prompt: these run without the commands
    if words == ["context", "--hook"]:
        from valve_plugin.live.context import main as answer

        return answer()
    if words[:2] == ["attempts", "record"] and set(words[2::2]) <= {"--check", "--bank"} and len(words) % 2 == 0:
        from valve_plugin.live.follow import main as record

        return record(words[2:])
    try:
        from valve_plugin.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("valve: interrupted before it began\n")
        sys.exit(130)
    return run()


if __name__ == "__main__":
    main()
