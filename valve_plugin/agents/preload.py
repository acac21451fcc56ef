"""Imports of the fork server, done once for all rollouts: litellm and mini-SWE-agent take seconds to import.

Both read environment variables at import, so these are set first.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from unittest import mock

from valve_plugin.agents.retry import MINI_TRIES

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # see `client.use_own_copies`
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_CONFIGURED", "true")

import aiohttp.web  # noqa: F401
import litellm
import minisweagent.agents.default
import minisweagent.config
import minisweagent.models.litellm_model
import psutil  # noqa: F401

import valve_plugin.agents.mini_environment  # noqa: F401

litellm.suppress_debug_info = True


def warm_up() -> None:
    """Make one model call that fails at once, because litellm imports many modules during its first call.

    No thread may remain, because threads do not survive a fork.
    """
    from litellm.litellm_core_utils.thread_pool_executor import executor

    os.environ.update({MINI_TRIES: "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})  # not a fork's environment
    with socket.socket() as nobody, suppress(Exception), mock.patch.object(executor, "submit", _run_now):
        nobody.bind(("127.0.0.1", 0))  # a port that does not listen
        model = minisweagent.models.litellm_model.LitellmModel(
            model_name="openai/rehearsal",
            model_kwargs={
                "api_base": f"http://127.0.0.1:{nobody.getsockname()[1]}",
                "api_key": "none",
                "max_retries": 0,
            },
            cost_tracking="ignore_errors",
        )
        model.query([{"role": "user", "content": "rehearsal"}])


def _run_now(job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(job(*args, **kwargs))
    return done
