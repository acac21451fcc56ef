"""The small repository and the toy plugin of the evolution tests, and a model server whose provider has bad days."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.evolve.library import Done, valve
from tests.faults.proxy import Proxy, before
from tests.tools import need
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.lab.simulation.server import ServerAddress, start
from valve_plugin.tasks.task_set import load

Asked = Callable[..., Done]


@pytest.fixture(scope="module")
def server(calc: Path) -> Iterator[ServerAddress]:
    """The scripted model (SIMULATION)."""
    with start(load(calc), seed=0) as running:
        yield running


@pytest.fixture(scope="module")
def asking(calc: Path, server: ServerAddress) -> Asked:
    """Evolve with real agents that ask the scripted model, through a proxy where one is given."""

    def run(bank: Path, proxy: Proxy | None = None, *more: str, **options: object) -> Done:
        environ = {**os.environ, **server.environment()}
        kwargs = '{"seed": 0, "timeout": 20}' if proxy is None else '{"seed": 0, "timeout": %s}' % (proxy.slow / 2)
        return valve(
            "evolve", calc, "--bank", bank, "-c", f"model={SCRIPTED_MODEL}", "-c", f"model_kwargs={kwargs}",
            "-c", "model_pause=0.05", "-c", "embedding=hashing", "-c", "rho=0.1", "--panel-size", "2", "--rollouts",
            "1", "--limit", "1", "--workers", "2", *more,
            **{**environ, **(proxy.environment(environ) if proxy else {})}, **options,
        )  # fmt: skip

    return run


class Undisturbed(NamedTuple):
    """A run no fault came in the way of."""

    bank: Path
    calls: int
    """Model calls it made."""


@pytest.fixture(scope="module")
def undisturbed(asking: Asked, server: ServerAddress, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What all disturbed runs are compared with."""
    need("bwrap")
    bank = tmp_path_factory.mktemp("undisturbed") / "bank"
    with before(server.base_url, 1, 0.0) as proxy:
        asking(bank, proxy)
        return Undisturbed(bank, proxy.passed)


@pytest.fixture
def faulty(server: ServerAddress) -> Iterator[Callable[..., Proxy]]:
    """Make proxies before the scripted model."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda share=0.0, seed=1, **more: stack.enter_context(before(server.base_url, seed, share, **more))
