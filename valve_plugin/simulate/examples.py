"""Where the example task set is: inside an installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from valve_plugin.errors import TaskError


def deepdiff() -> Path:
    """Return the directory with the deepdiff tasks.

    Raises:
        TaskError: it is in neither place.
    """
    here = Path(__file__).resolve().parent
    places = (here / "deepdiff", here.parents[1] / "examples" / "deepdiff")
    for place in places:
        if (place / "tasks.jsonl").is_file():
            return place
    raise TaskError(f"the deepdiff tasks are in neither {places[0]} nor {places[1]}; install the package again")
