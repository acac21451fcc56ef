"""Writes the compiled system call filters from their table, with libseccomp: `python -m tests.sandbox.filters`."""

from __future__ import annotations

import ctypes
import errno
import tempfile
from ctypes import c_int, c_uint32, c_uint64, c_void_p

from valve_plugin.sandbox import seccomp

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's numbers (AUDIT_ARCH) by the name that `uname -m` prints."""
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000  # plus the error number
_OTHER_ARCHITECTURE = 2  # attribute: what happens to calls of another architecture, as a 32-bit program makes them
_OPERATORS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_GE": 5, "SCMP_CMP_MASKED_EQ": 7, "SCMP_CMP_NE": 1}


class _Comparison(ctypes.Structure):
    _fields_ = [("arg", c_uint32), ("op", c_int), ("a", c_uint64), ("b", c_uint64)]


def compile_filter(architecture: int) -> bytes:
    """Return the filter's program (cBPF).

    Raises:
        OSError: there is no libseccomp here.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = c_void_p
    context = c_void_p(library.seccomp_init(c_uint32(_ALLOW)))
    _require(library.seccomp_arch_add(context, c_uint32(architecture)), "seccomp_arch_add", errno.EEXIST)
    for own in ARCHITECTURES.values():
        if own != architecture:
            _require(library.seccomp_arch_remove(context, c_uint32(own)), "seccomp_arch_remove", errno.EEXIST)
    _require(library.seccomp_attr_set(context, _OTHER_ARCHITECTURE, c_uint32(_FAIL | errno.ENOSYS)), "seccomp_attr_set")
    for rule in [*seccomp.rules(), *(seccomp.Rule(errno.ENOSYS, name) for name in seccomp.UNCOUNTED)]:
        number = library.seccomp_syscall_resolve_name(rule.name.encode())
        assert number != -1, f"this libseccomp does not know {rule.name}; use a newer one"
        comparisons = (_Comparison * len(rule.comparisons))(
            *[_Comparison(n, _OPERATORS[how], *values) for n, how, *values in rule.comparisons]
        )
        action = c_uint32(_FAIL | rule.error)
        done = library.seccomp_rule_add_array(context, action, number, len(rule.comparisons), comparisons)
        _require(done, f"the rule for {rule.name}")
    with tempfile.TemporaryFile() as file:
        _require(library.seccomp_export_bpf(context, file.fileno()), "seccomp_export_bpf")
        library.seccomp_release(context)
        file.seek(0)
        return file.read()


def _require(code: int, what: str, *also: int) -> None:
    assert code == 0 or -code in also, f"{what}: {errno.errorcode.get(-code, code)}"


if __name__ == "__main__":
    folder = seccomp.filter_path().parent
    folder.mkdir(exist_ok=True)
    for name, number in ARCHITECTURES.items():
        (folder / f"{name}.bpf").write_bytes(compile_filter(number))
