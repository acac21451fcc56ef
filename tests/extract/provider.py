"""A model provider on this machine that answers what a test tells it to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.agents.support import completion, serve


class Provider:
    """Answers every chat completion with the next of `contents` (the last one stays) under `status`."""

    def __init__(self, *contents: str | None) -> None:
        self.contents, self.status, self.base = contents, 200, ""
        self.failing_from: int | None = None
        """Number of the first request, from 0, that fails with status 400."""
        self.asked: list[dict[str, Any]] = []
        """Every request's body."""

    def __call__(self, request: dict[str, Any]) -> tuple[int, Any]:
        self.asked.append(request)
        if self.failing_from is not None and len(self.asked) > self.failing_from:
            self.status = 400
        if self.status != 200:
            return self.status, {"error": {"message": "no"}}
        content = self.contents[min(len(self.asked), len(self.contents)) - 1]
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        return 200, completion({"role": "assistant", "content": content}, "stop") | {"usage": usage}


@contextmanager
def provider(*contents: str | None) -> Iterator[Provider]:
    """Run a provider while the block lasts."""
    model = Provider(*contents)
    with serve(model) as model.base:
        yield model
