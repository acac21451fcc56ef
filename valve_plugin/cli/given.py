"""Settings as a command line gives them: `-c KEY=VALUE` and a command's own options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from valve_plugin.errors import ConfigError


def overrides(specs: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return the settings that `-c KEY=VALUE` and a command's own options give; options that were not given are None.

    Raises:
        ConfigError: not KEY=VALUE, an unknown key, or a value out of range.
    """
    from valve_plugin.config import resolve

    given: dict[str, Any] = {}
    for spec in specs:
        key, equals, text = spec.partition("=")
        if not equals:
            raise ConfigError(f"-c {spec!r}: expected KEY=VALUE, like -c rho=0.02")
        _put(given, key.removeprefix("valve."), text)
    given |= {name: value for name, value in options.items() if value is not None}
    resolve(given, where="the command line")  # before anything is made
    return given


def _put(given: dict[str, Any], key: str, text: str) -> None:
    """Add one setting; `model_kwargs.a.b` is a name within that mapping, as mini takes it."""
    name, *below = key.split(".") if key.startswith("model_kwargs.") else [key]
    if "" in below:
        raise ConfigError(f"-c {key}={text}: an empty name; expected one like model_kwargs.temperature=0.2")
    value, layer = _value(name, text), given
    for part in below:
        inside = layer.get(name)
        layer[name] = dict(inside) if isinstance(inside, dict) else {}
        layer, name = layer[name], part
    layer[name] = value


def _value(key: str, text: str) -> Any:
    """Return a setting's value: text where the setting is text, else JSON. What fits neither is refused by its type."""
    import msgspec

    from valve_plugin.codec import repeated
    from valve_plugin.config import Settings

    kinds = {f.name: f.type for f in msgspec.structs.fields(Settings)}
    if kinds.get(key) is str or key in ("rho", "delta"):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    if (twice := repeated(text)) is not None:
        raise ConfigError(f"-c {key}={text}: the key {twice!r} is given twice in one object; keep one of the two")
    return value
