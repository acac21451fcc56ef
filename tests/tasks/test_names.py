"""Names of tasks for people."""

from __future__ import annotations

import pytest

from valve_plugin.tasks.names import changed_place, name_patches, put_names

X = "--- a/x.py\n+++ b/x.py\n"


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        (f"{X}@@ -1,3 +1,3 @@ def outer(a):\n     b = 1\n-    c = 2\n+    c = 3\n", "outer in x.py"),
        (f"{X}@@ -1,4 +1,4 @@\n def one():\n     pass\n def two():\n-    a\n+    b\n", "two in x.py"),
        ("--- a/x.txt\n+++ b/x.txt\n@@ -1 +1 @@\n-a\n+b\n", "x.txt"),
        ("--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "gone.py"),
        ("", ""),
    ],
)
def test_a_task_is_named_by_function_and_file(patch: str, place: str) -> None:
    assert changed_place(patch) == place


def test_equal_names_and_typed_ones_end_as_the_id() -> None:
    one, two, three = (f"o__r.0123abcd.func_pm_{kind}__{end}" for kind, end in (("a", "aa"), ("a", "bb"), ("b", "cc")))
    twice, once = f"{X}@@ -1 +1 @@ def f():\n-a\n+b\n", f"{X}@@ -1 +1 @@ def g():\n-a\n+b\n"
    patches = {one: twice, two: twice, three: once, "o__r.0123abcd.unknown": ""}
    assert name_patches(patches) == {one: "f in x.py (aa)", two: "f in x.py (bb)", three: "g in x.py"}
    names = name_patches(patches, ids=True)
    assert names[three] == "g in x.py (cc)"
    said = f"proposal 12 from {one} (2 resolved): skill x; worse: {three} 2/2 -> 0/2, {one}0 1/2 -> 0/2"
    put = f"proposal 12 from {names[one]} (2 resolved): skill x; worse: {names[three]} 2/2 -> 0/2, {one}0 1/2 -> 0/2"
    assert put_names(said, names) == put
