"""Which vectors the cosine compares: the hashing representation, or a model that is already on disk."""

from __future__ import annotations

from typing import Protocol

from valve_plugin.theory.similarity import Vector, hashing_vector

HASHING = "hashing"


class Embedding(Protocol):
    """Turns texts into vectors; `name` is what contexts and panels record."""

    name: str

    def query(self, text: str) -> Vector:
        """Encode task id and issue."""

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item."""


class Hashing:
    """The deterministic fallback: no model, no dependency."""

    name = HASHING

    def query(self, text: str) -> Vector:
        """Encode task id and issue."""
        return hashing_vector(text)

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item."""
        return hashing_vector(text)


_HASHING = Hashing()


def choose(setting: str) -> Embedding:
    """Return the embedding a setting names."""
    return _HASHING
