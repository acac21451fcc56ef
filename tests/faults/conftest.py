"""The small repository and the toy plugin of the evolution tests, and a model server whose provider has bad days."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.evolve.conftest import calc, evolve, toy, whole  # noqa: F401 (fixtures)
from tests.evolve.library import Done, valve
from tests.faults.proxy import Proxy, before
from valve_plugin.rollouts.worker import SCRIPTED_MODEL
from valve_plugin.simulate.server import Running, start
from valve_plugin.tasks.load import load

Asked = Callable[..., Done]


@pytest.fixture
def server(calc: Path) -> Iterator[Running]:  # noqa: F811
    """The scripted model (SIMULATION)."""
    with start(load(calc), seed=0) as running:
        yield running


@pytest.fixture
def asking(calc: Path, server: Running, tmp_path: Path) -> Asked:  # noqa: F811
    """Evolve with real agents that ask the scripted model, through a proxy where one is given."""

    def run(name: str, proxy: Proxy | None = None, *more: str, **options: object) -> Done:
        environ = {**os.environ, **server.environment()}
        kwargs = '{"seed": 0, "timeout": 20}' if proxy is None else '{"seed": 0, "timeout": %s}' % (proxy.slow / 2)
        return valve(
            "evolve", calc, "--bank", tmp_path / name, "-c", f"model={SCRIPTED_MODEL}", "-c", f"model_kwargs={kwargs}",
            "-c", "model_pause=0.05", "-c", "embedding=hashing", "-c", "rho=0.1", "--panel-size", "2", "--rollouts",
            "1", "--limit", "1", "--workers", "2", *more,
            **{**environ, **(proxy.environment(environ) if proxy else {})}, **options,
        )  # fmt: skip

    return run


@pytest.fixture
def faulty(server: Running) -> Iterator[Callable[..., Proxy]]:
    """Make proxies before the scripted model."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda share=0.0, seed=1, **more: stack.enter_context(before(server.base_url, seed, share, **more))
