"""Which package a test's import comes from, where the project itself does not say; and what no test run needs."""

from __future__ import annotations

MODULES: dict[str, tuple[str, ...]] = {
    "_pytest": ("pytest",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cv2": ("opencv-python-headless",),
    "dateutil": ("python-dateutil",),
    "google": ("protobuf",),
    "jwt": ("pyjwt",),
    "OpenSSL": ("pyopenssl",),
    "PIL": ("pillow",),
    "pkg_resources": ("setuptools",),
    "pytest_asyncio": ("pytest-asyncio",),
    "sklearn": ("scikit-learn",),
    "time_machine": ("time-machine",),
    "yaml": ("pyyaml",),
}
"""Modules whose package has another name."""

WELL_KNOWN = frozenset(
    {
        *("attrs", "babel", "beautifulsoup4", "click", "cryptography", "docutils", "flaky", "freezegun", "html5lib"),
        *("httpx", "hypothesis", "jinja2", "jsonschema", "lxml", "markupsafe", "mock", "numpy", "packaging", "pandas"),
        *("parameterized", "pillow", "psutil", "pydantic", "pygments", "pyparsing", "pytest", "pytest-asyncio"),
        *("pytest-benchmark", "pytest-mock", "python-dateutil", "pytz", "pyyaml", "requests"),
        *("responses", "setuptools", "simplejson", "six", "sortedcontainers", "testfixtures", "time-machine", "toml"),
        *("tomli", "tomli-w", "typing-extensions", "tzdata", "ujson", "urllib3"),
    }
)
"""Packages that may be installed because a test imports them, declared or not."""

_UNWANTED = frozenset(
    {
        *("black", "checkdocs", "codspeed", "cov", "cover", "enabler", "env", "flake8", "forked", "github-actions"),
        *("home", "html", "icdiff", "instafail", "isort", "mypy", "mypy-plugins", "parallel", "perf", "pretty"),
        *(
            "profiling",
            "pylint",
            "random-order",
            "randomly",
            "repeat",
            "rerunfailures",
            "reverse",
            "ruff",
            "subtests",
            "sugar",
        ),
        *("travis-fold", "xdist"),
    }
)


def is_unwanted_plugin(name: str) -> bool:
    """True for plugins of pytest that check style, measure, reorder or repeat: a verdict must not depend on them."""
    return name.removeprefix("pytest-") in _UNWANTED
