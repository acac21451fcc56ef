"""Imported once by the fork server, so that no rollout pays for it: litellm and mini-SWE-agent take seconds.

Only ever imported there. Both read some variables while they are imported, so those are set first.
"""

from __future__ import annotations

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else litellm waits for a download
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_CONFIGURED", "true")

import litellm
import minisweagent.agents.default
import minisweagent.config
import minisweagent.models.litellm_model  # noqa: F401

litellm.suppress_debug_info = True
