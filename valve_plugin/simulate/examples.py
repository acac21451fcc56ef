"""Where the example task set is: inside an installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from valve_plugin.errors import TaskError


def example(name: str) -> Path:
    """Return the directory with an example's tasks, like "funcy".

    Raises:
        TaskError: it is in neither place.
    """
    here = Path(__file__).resolve().parent
    places = (here / name, here.parents[1] / "examples" / name)
    for place in places:
        if (place / "tasks.jsonl").is_file():
            return place
    raise TaskError(f"the {name} tasks are in neither {places[0]} nor {places[1]}; install the package again")
