"""Settings as a command line gives them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.cli.options import overrides
from valve_plugin.errors import ConfigError

NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.lists(st.integers(), max_size=2)
NESTED = st.recursive(VALUES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=6)


def spelled(prefix: str, value: object) -> list[str]:
    """Every leaf of a mapping as its own `-c`."""
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in spelled(f"{prefix}.{name}", inner)]
    return [f"{prefix}={json.dumps(value)}"]


@given(st.dictionaries(NAMES, NESTED, min_size=1, max_size=3))
def test_arguments_of_the_model_one_by_one_are_those_given_as_json(kwargs: dict[str, object]) -> None:
    whole = overrides([f"model_kwargs={json.dumps(kwargs)}"], "learn")
    assert overrides(spelled("model_kwargs", kwargs), "learn") == whole
    assert overrides(spelled("valve.model_kwargs", kwargs), "learn") == whole


def test_later_ones_win_and_text_needs_no_quotes() -> None:
    specs = ['model_kwargs={"top_p": 1}', "model_kwargs.api_base=http://127.0.0.1:8000/v1", "model_kwargs.top_p=0.5"]
    assert overrides(specs, "learn") == {"model_kwargs": {"top_p": 0.5, "api_base": "http://127.0.0.1:8000/v1"}}
    assert overrides(["model_kwargs.a=1", "model_kwargs.a.b=2"], "learn") == {"model_kwargs": {"a": {"b": 2}}}


@pytest.mark.parametrize("spec", ["rho.x=1", "workers.n=2", "api_base=x", "model_kwargs.=1"])
def test_no_other_setting_has_names_within(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting|empty name"):
        overrides([spec], "learn")


def test_a_name_given_twice_within_one_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="the key 'top_p' is given twice"):
        overrides(['model_kwargs={"top_p": 1, "extra": {"top_p": 1}, "top_p": 0.5}'], "learn")
