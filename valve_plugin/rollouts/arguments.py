"""Arguments of a model call, so that what was asked for reaches the provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSISTED = ("reasoning_effort",)


def insisted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments under which litellm sends the effort that was asked for, to every model.

    For models it believes to take none it refuses it or, under the `drop_params` of mini's defaults, drops it in
    silence: a run that was asked for high effort would be one without. The provider says whether a model takes it.
    """
    named = [name for name in INSISTED if name in given]
    return {"allowed_openai_params": named, **given} if named else dict(given)
