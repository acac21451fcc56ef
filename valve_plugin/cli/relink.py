"""`valve relink`: runs that lost their bank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Commands, Json, argument, bank_dir, open_bank
from valve_plugin.errors import ConfigError

commands = Commands()


@commands.add(
    "relink",
    "valve relink                                 # the bank was moved: finds the runs of its former place",
    "valve relink ~/old/place/.valve              # one of several former places",
)
def relink(
    former: Annotated[str, argument("FORMER", "Where the bank was. Default: the only place known.")] = "",
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Give a bank that moved the runs it had.

    A bank that was moved finds them by itself. This is for what is not certain: a bank with several former places, a
    copy, or one that was used at its new place before.
    """
    from valve_plugin.bank.local import former_places, take_over

    open_bank(bank)  # refuses a damaged one
    directory = bank_dir(bank)
    known = former_places(directory)
    places = [p for p in known if p == Path(former).expanduser().absolute()] if former else known
    if len(places) != 1:
        if not known:
            raise ConfigError(f"{directory}: no run on this machine is of this bank at another place")
        listed = "".join(f"\n  {place}" for place in known)
        raise ConfigError(f"{directory}: name the place it had, one of these:{listed}")
    came = take_over(directory, places[0])
    if json:
        output.emit_json({"bank": str(directory), "former": str(places[0]), "files": came})
    else:
        output.say(f"{output.plural(came, 'file')} of runs came from {places[0]}", style="green")
