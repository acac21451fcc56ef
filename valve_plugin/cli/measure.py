"""Running A/A gates for `valve plan --measure`, and saying what they showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from valve_plugin.cli import output
from valve_plugin.cli.given import overrides
from valve_plugin.cli.session import running, tasks_of
from valve_plugin.errors import BankNotFoundError, ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.report.again import Again, Share


def measure(
    store: BankStore | None,
    gates: int,
    *,
    tasks: str,
    workers: int | None,
    set_: Sequence[str],
    simulate: bool,
    unsafe_local: bool,
) -> None:
    """Run A/A gates until so many are recorded about the current bank; with `confirm` one takes two measurements."""
    from valve_plugin.cli.progress import Progress
    from valve_plugin.gate.judge import measure as run_gates

    if store is None:
        raise BankNotFoundError(
            "there is no bank here to measure; `valve evolve TASKS` makes one, or name it: --bank DIR"
        )
    given = overrides(set_, workers=workers, unsafe_local=unsafe_local or None)
    settings = store.settings(given)
    if store.panel() is None and not (tasks or settings.tasks):
        raise ConfigError(
            f"{store.dir}: no panel is fixed yet, so there is no gate to measure; `valve evolve TASKS` fixes one, or "
            "give the task set it is to be chosen from: --tasks TASKS"
        )
    found = tasks_of(store, tasks, settings)
    with (
        Progress() as progress,
        running(found, str(store.dir), given, simulate=simulate, learns="", observer=progress) as run,
    ):
        epoch = run.store.epoch()
        each = 2 if epoch and epoch.conditions and epoch.conditions.confirm else 1

        def observe(name: str, data: object) -> None:
            run.manager.hook.valve_event(name=name, data=data)

        run_gates(run.settings, run.store.dir, gates * each, observe)
    store.refresh()


def show(again: Again) -> None:
    """Print what the A/A measurements showed."""
    output.say("Measured: this bank against itself, on fresh rollouts", style="bold")
    output.say(f"against what is carried now       {_share(again.carried)}")
    output.say(f"as after a fresh baseline         {_share(again.fresh)}")
    flattery = 100 * (again.recorded - again.measured)
    spread = f" (standard error {100 * again.error:.1f})" if again.panels > 1 else ""
    output.say(
        f"recorded score {100 * again.recorded:.1f} %, measured afresh {100 * again.measured:.1f} %{spread}: the "
        f"carried one {'flatters' if flattery > 0 else 'understates'} by {abs(flattery):.1f} points; no gate reads this"
    )
    output.say()


def _share(share: Share) -> str:
    if not share.gates:
        return "no gate yet: takes more measurements"
    interval = f"{100 * share.low:.0f} to {100 * share.high:.0f} %"
    return (
        f"{share.accepted} of {output.plural(share.gates, 'gate')} accepted nothing for something ({interval}, at 95 %)"
    )
