"""JSON Schemas: the contract for everything on disk or from a model."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def load(name: str) -> dict[str, Any]:
    """Return the schema `NAME.schema.json`.

    Raises:
        FileNotFoundError: there is no schema of that name.
    """
    text = files(__name__).joinpath(f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
