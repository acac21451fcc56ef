"""The reference protocol."""

from valve_plugin.experiment.conditions import Condition

CONDITION = Condition("the reference protocol: mixed tasks, a bank, retrieval, a gate")
