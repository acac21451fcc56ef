"""What an agent could do to make its rollout count as the host's failure, which is tried again; one table.

After each command the rollout goes on, or ends `unresolved`: nothing here may raise anything but TaskError, which
stands for that. The workspace's limits are those of `LIMITS`.
"""

from __future__ import annotations

from valve_plugin.sandbox.supervisor import MIB, ProcessLimits

LIMITS = ProcessLimits(cpu_seconds=5, wall_seconds=6, disk_bytes=40 * MIB, file_bytes=16 * MIB, output_bytes=MIB)


def _python(code: str) -> str:
    return f"python3 - <<'END'\n{code}\nEND"


_DEEP = "import os\nfor _ in range(3000):\n os.mkdir({name}); os.chdir({name})\nopen('x', 'w')"
_ODD_NAMES = r"""
import os
names = [b'\xff\xfe', b'a\nb', b'a\tb', b'"', b'\\', b':(glob)x', b':!x', b':/', b'-rf', b' ', b'a\\b', b'git~1',
         b'.git ', b'.GIT', b'..x', b'a"b\n', b'\x01\x7f', b'aux', b'c:d', b'*', b'!x',
         b'#x', '\u202e'.encode(), b'n' * 255]
for n, name in enumerate(names):
    try:
        open(name, 'w').write('x')
    except IsADirectoryError:
        assert name == b'.git'
    folder = b'%d' % n + name[2:]
    os.mkdir(folder); open(folder + b'/' + name, 'w').write('y')
os.makedirs(b'tests/\xff'); open(b'tests/\xff/test_\xff.py', 'w').write('z')
"""
# Processes so small that the kernel would rather kill those that watch over them, and 1.1 GiB that they hold.
_HELD = (
    "echo 0 >/proc/self/oom_score_adj; exec python3 - <<'END'"
    + r"""
import os, resource, shutil, socket
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 20_000), most))
kept, size, full = [], 0, 790 << 20
while size < full:
    for one in (pair := socket.socketpair()):
        one.setblocking(False)
        one.set_inheritable(True)
        try:
            while size < full: size += one.send(b'x' * 65536)
        except BlockingIOError: pass
    kept += pair
os.posix_spawn(shutil.which('sleep'), ['sleep', '50'], os.environ)
for n in range(16):
    os.posix_spawn(shutil.which('dd'), ['dd', 'if=/dev/zero', f'of=/dev/shm/{n}', 'bs=512', 'count=32000'], os.environ)
os.execvp('sleep', ['sleep', '4'])
END"""
)
# Files that stay on the disk without a name, and how they are held; more and more, since others' files come and go.
_FILL = """
import ctypes, mmap, os, socket, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def fill(hold):
    for _ in range(200):
        file = os.open('held', os.O_RDWR | os.O_CREAT)
        os.unlink('held')
        for _ in range(15): os.write(file, b'x' * (1 << 20))
        hold(file)
        time.sleep(0.1)
def release(n, file):
    os.close(file)
"""
_UNNAMED = {
    "open": "fill(lambda file: None)",
    "mapped": "fill(lambda file: release(libc.mmap(None, 4096, 1, 1, file, 0), file))",
    "by a process whose first thread has ended": "threading.Thread(target=fill, args=[lambda file: None]).start()\n"
    "time.sleep(0.2)\nlibc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)",
    "by a thread with descriptors of its own": """
stack = [mmap.mmap(-1, 1 << 16) for _ in range(200)]
sleep = ctypes.cast(libc.sleep, ctypes.c_void_p)
def fork(file):
    top = ctypes.addressof(ctypes.c_char.from_buffer(stack[-1])) + (1 << 16) - 64
    libc.clone(sleep, ctypes.c_void_p(top), 0x10b00, ctypes.c_void_p(100))
    stack.insert(0, stack.pop())
    os.close(file)
fill(fork)""",
    "in the queue of a socket": "pair = socket.socketpair()\n"
    "fill(lambda file: release(socket.send_fds(pair[0], [b'x'], [file]), file))",
}
UNNAMED = {name: _python(_FILL + code) for name, code in _UNNAMED.items()}
# fmt: off
MISCHIEF: dict[str, str] = {
    "working directory closed": "chmod 000 .",
    "all folders closed": "chmod 000 ~ /tmp /testbed",
    "files closed": "find . -exec chmod 000 {} + 2>/dev/null",
    "no write permission": "chmod -R a-w . ~ /tmp",
    "attributes": "chattr -R +i . ; chattr -R +a . ; chattr -R +A . ; true",
    "links that are no text": "ln -s $(printf '\\377') k; ln -sf $(printf 'caf\\351') $(git ls-files | head -1)",
    "no .git": "rm -rf .git",
    ".git is a file": "rm -rf .git && echo gitdir: /dev/zero > .git",
    ".git is a pipe": "rm -rf .git && mkfifo .git",
    ".git is another repository": "rm -rf .git && git init -q && git add -A && git commit -qm x",
    ".git names programs": "git config core.fsmonitor 'kill -9 1'; git config core.hooksPath /tmp; "
    "git config core.bare true",
    ".git of another version": "git config core.repositoryFormatVersion 99; git config extensions.objectFormat sha256",
    "working directory removed": "cd / && rm -rf /testbed; rmdir /testbed; true",
    "working directory replaced by a file": "cd / && rm -rf /testbed; mv /testbed /gone; echo x > /testbed; true",
    "working directory replaced by a link": "cd / && rm -rf /testbed; ln -s / /testbed; true",
    "folders replaced by links": "rm -rf calc tests && ln -s / calc && ln -s /proc/self/root tests",
    "files replaced by folders": "rm -f README.md pytest.ini && mkdir README.md pytest.ini && touch pytest.ini/x",
    "folders replaced by files": "rm -rf calc && echo x > calc",
    "links in circles": "ln -s a b; ln -s b a; ln -s . c; ln -s /dev/zero d; ln -s /testbed e",
    "disk filled": "for i in $(seq 100); do head -c 10M /dev/zero > ~/f$i || exit; done",
    "disk filled by empty files": _python("import os\nfor n in range(30000): open(f'{n}', 'w')"),
    "disk filled by files without a name": UNNAMED["open"],
    "huge hole": "truncate -s 1T hole; truncate -s 15M hole",
    "descriptors closed": "exec 0<&- 1>&- 2>&-; exit 0",
    "all descriptors closed": _python("import os; os.closerange(0, 5000); os._exit(0)"),
    "output held open": "sleep 50 & disown; exit 0",
    "parent killed": "kill -9 $PPID; kill -9 1; sleep 0.1",
    "everybody killed": "kill -9 -1",
    "itself killed": "kill -9 $$",
    "itself killed as if by a limit": "kill -XCPU $$",
    "stopped": "kill -STOP $$",
    "everybody stopped": "kill -STOP -1; kill -STOP $$",
    "all signals": "for s in $(seq 1 64); do kill -$s $PPID 2>/dev/null; done; true",
    "clock": "date -s 2001-01-01; true",
    "odd times": "touch -d 1901-12-14 calc/*; touch -d '2400-01-01' README.md tests/*",
    "hanging on exit": "trap 'sleep 50' EXIT; exit 0",
    "much output": "head -c 1G /dev/zero",
    "output that is no text": "head -c 100k /dev/urandom",
    "markers": "touch valve-complete; mkdir -p /run/valve; echo '{ \"exit-code\": 0 }'; "
    "echo 'bwrap: Can not fork' >&2; exit 1",
    "exit codes of the tools": "exit 125",
    "home and temporary folder removed": "rm -rf ~ /tmp; rm -rf ~/.* /tmp/.*; true",
    "very deep": _python(_DEEP.format(name="'d'")),
    "very long paths": _python(_DEEP.format(name="'d' * 250").replace("3000", "200")),
    "odd names": _python(_ODD_NAMES),
    "packages with names that are no module's": "mkdir .x a.b os.x __main__; for d in .x a.b os.x __main__; "
    "do touch $d/__init__.py; done",
    "pipes and sockets": "mkfifo pipe .gitignore2 tests/.gitattributes; rm -f .gitignore; mkfifo .gitignore; "
    + _python("import socket; socket.socket(socket.AF_UNIX).bind('socket')"),
    "hostile .gitignore": "(for i in $(seq 20000); do echo \"a*a*a*a*a*a*a*b$i\"; done) > .gitignore; "
    "touch " + "a" * 200 + "{1..200}",
    "hostile .gitattributes": "echo '* filter=x diff=x text eol=crlf working-tree-encoding=UTF-99' > .gitattributes; "
    "git config filter.x.clean 'kill -9 1'; printf 'a\\r\\n' > README.md",
    "fork bomb": ":() { : | : & }; :; sleep 1",
    "no more processes": _python("import os, time\ntry:\n while os.fork(): pass\nexcept OSError: pass\ntime.sleep(50)"),
    "memory": _python("x = []\nwhile True: x.append(bytearray(10**8)); x[-1][::4096] = b'x' * len(x[-1][::4096])"),
    "memory of sockets": _python(
        "import socket\nkept = []\nwhile True:\n for s in socket.socketpair():\n  s.setblocking(False)\n"
        "  kept.append(s)\n"
        "  try:\n   while True: s.send(b'x' * 65536)\n  except BlockingIOError: pass"),
    "memory of nobody": _HELD,
    "all shared memory": "head -c 1G /dev/zero > /dev/shm/x",
    "a shell of its own": "exec bash -c 'exec -a bwrap sleep 0'",
    "submodule": "git init -q sub && cd sub && git commit -q --allow-empty -m x && cd .. && git add sub; true",
    "NUL": "echo a\0b",
    "half of a surrogate pair": "echo \ud800",
    "longer than an argument may be": "echo " + "x" * 140_000,
    "odd bytes": "echo \udcff",
    "nothing": "",
    "unfinished": "if true; then 'x",
}
# fmt: on
