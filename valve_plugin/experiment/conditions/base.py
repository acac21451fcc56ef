"""The unevolved model: no memory."""

from valve_plugin.experiment.conditions import Condition

CONDITION = Condition("no memory: the model as it is", steps=None, ranked=False, gated=False)
