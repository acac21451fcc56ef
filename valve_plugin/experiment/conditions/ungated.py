"""Every proposal is taken as it is; what validation would have said is not known to reflection either."""

from valve_plugin.evolve.steps import Ungated
from valve_plugin.experiment.conditions import Condition

CONDITION = Condition("without validation: every proposal enters the bank", steps=Ungated, gated=False)
