"""What keys of well-known providers look like. Pure.

Kept to shapes that hardly occur otherwise: git hashes, UUIDs, names and prose are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# (what it is, literals one of which every match contains, the pattern; its group, or all of it, is the secret).
# A pattern runs only where its literal was seen, which keeps the common case at memory-search speed.
Format = tuple[str, tuple[str, ...], str]
FORMATS: tuple[Format, ...] = (
    ("API key", ("sk-",), r"(?<![\w-])sk-(?:ant|proj|or|svcacct|admin|lf)-[\w-]{16,}"),
    ("API key", ("sk-",), r"(?<![\w-])sk-(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}"),
    ("API key", ("gsk_", "r8_"), r"(?<!\w)(?:gsk|r8)_[A-Za-z0-9]{30,}"),
    ("API key", ("xai-", "pplx-", "nvapi-"), r"(?<!\w)(?:xai|pplx|nvapi)-[\w-]{30,}"),
    ("GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"(?<!\w)gh[pousr]_[A-Za-z0-9]{30,}"),
    ("GitHub token", ("github_pat_",), r"github_pat_\w{30,}"),
    ("GitLab token", ("glpat-",), r"glpat-[\w-]{20,}"),
    ("AWS key id", ("AKIA", "ASIA", "ABIA", "ACCA"), r"(?<![A-Za-z0-9])A(?:KI|SI|BI|CC)A[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("Google key", ("AIza",), r"AIza[\w-]{35}"),
    ("Google token", ("ya29.",), r"ya29\.[\w-]{20,}"),
    ("Google secret", ("GOCSPX-",), r"GOCSPX-[\w-]{20,}"),
    ("Slack token", ("xox",), r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("Slack webhook", ("hooks.slack.com",), r"hooks\.slack\.com/services/[\w/]{20,}"),
    ("Hugging Face token", ("hf_",), r"(?<!\w)hf_[A-Za-z0-9]{30,}"),
    ("npm token", ("npm_",), r"(?<!\w)npm_[A-Za-z0-9]{36}"),
    ("PyPI token", ("pypi-AgE",), r"pypi-AgE[\w-]{50,}"),
    ("Stripe key", ("_live_", "_test_"), r"(?<![A-Za-z0-9])[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("SendGrid key", ("SG.",), r"(?<!\w)SG\.[\w-]{16,}\.[\w-]{16,}"),
    ("Databricks token", ("dapi",), r"(?<!\w)dapi[0-9a-f]{32}"),
    ("DigitalOcean token", ("_v1_",), r"(?<!\w)do[opr]_v1_[0-9a-f]{40,}"),
    ("bot token", (":AA",), r"(?<!\d)\d{8,10}:AA[\w-]{32,}"),
    ("JSON web token", ("eyJ",), r"(?<!\w)eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    (
        "private key",
        ("PRIVATE KEY-----",),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"'-]{0,20000}(?:-----END[A-Z ]*-----)?",
    ),
    (
        "password in URL",
        ("://",),
        r"(?<=://)[^\s/:@\"'`<>{}\\]{0,100}:(?!pass(?:word|wd)?@)([^\s/:@\"'`<>{}$\\]{3,200})(?=@)",
    ),
    (
        "authorization",
        ("uthorization",),
        r"uthorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?:[Bb]earer|[Bb]asic|token)\s+([\w.~+/=-]{8,})",
    ),
    # A value given to a name like api_key: long, letters and digits, not a git hash. One row per stem, because a
    # pattern that starts with a literal is searched ten times faster than one that starts with alternatives.
    *(
        (
            "assigned secret",
            (stem,),
            stem + r"[\"'\\]{0,4}\s?[:=]\s?[\"'\\]{0,4}((?![0-9a-f]+(?![\w+/=~-]))"
            r"(?=[\w+/=~-]*\d)(?=[\w+/=~-]*[A-Za-z])[\w+/=~-]{20,})",
        )
        for stem in ("key", "Key", "KEY", "oken", "OKEN", "ecret", "ECRET", "assword", "ASSWORD")
    ),
)


def find(text: str) -> list[str]:
    """Name the known secret formats that occur in a text, in the order of the table."""
    return [label for label, _, pattern in possible(FORMATS, text) if re.search(pattern, text)]


def possible(formats: Sequence[Format], text: str) -> list[Format]:
    """Return the formats one of whose literals occurs in a text."""
    return [row for row in formats if any(hint in text for hint in row[1])]
