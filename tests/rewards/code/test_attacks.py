"""Programs that attack the sandbox: none succeeds, the pool goes on, and no process is left.

Each program prints what it got hold of; it is run by a pool with narrow limits (see conftest).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlready.rewards.code import CodePool, Limits, Test, languages

SMALL = Limits(memory_mb=96, processes=16, output_mb=1)
ADD = "print(int(input()) + 1)"
ONE = [Test("1\n", "2\n")]


def fine(pool: CodePool) -> None:
    """The pool still runs programs, and tells right from wrong."""
    assert pool.run_sync(ADD, [Test("1\n", "2\n"), Test("5\n", "6\n")]).result == "success"
    assert pool.run_sync(ADD, [Test("1\n", "3\n")]).result == "fail:wrong-output"


# (program, seconds, result, a word of the reason)
EXHAUSTING = {
    "fork bomb": ("import os\nwhile 1:\n  try: os.fork()\n  except OSError: pass", 1.0, "fail:timeout", "1 s"),
    "threads": (
        "import threading, time\nwhile 1:\n  try: threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "  except RuntimeError: break\nprint(threading.active_count() < 40, flush=True)\nimport os; os._exit(0)",
        5.0,
        "success",
        "",
    ),
    "memory": ("a = []\nwhile 1: a.append(bytearray(10**6))", 20.0, "fail:error", "memory"),
    "memory of many": (
        "import os, time\nfor i in range(12):\n  if os.fork() == 0:\n    b = bytearray(30 << 20); time.sleep(99)\n"
        "time.sleep(99)",
        20.0,
        "fail:error",
        "memory",
    ),
    "shared memory": (
        "import mmap, os\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1",
        20.0,
        "fail:error",
        "memory",
    ),
    "addresses": ("bytearray(1 << 42)", 5.0, "fail:error", "MemoryError"),
    "stack": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1) + 1\nf(0)", 20.0, "fail:error", ""),
    "endless loop": ("while 1: pass", 0.5, "fail:timeout", "0.5 s"),
    "sleep": ("import time; time.sleep(99)", 0.5, "fail:timeout", "0.5 s"),
    "deaf loop": (
        "import signal, time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\nwhile 1: pass",
        0.5,
        "fail:timeout",
        "0.5 s",
    ),
    "output": ("while 1: print('x' * 10**6)", 20.0, "fail:other", "output"),
    "one output": ("print('x' * 10**9 if 0 else 'y' * 10**7)", 20.0, "fail:other", "output"),
    "errors": ("import sys\nwhile 1: sys.stderr.write('x' * 10**6)", 20.0, "fail:other", "output"),
    "large file": ("open('a', 'wb').write(bytes(9 << 20))", 5.0, "fail:error", "OSError"),
    "processor time of children": (
        "import os\nfor i in range(3): os.fork()\nwhile 1: pass",
        1.0,
        "fail:timeout",
        "1 s",
    ),
}


@pytest.mark.parametrize("name", EXHAUSTING)
def test_exhausting(pool: CodePool, nothing_left: Callable[[], None], name: str) -> None:
    program, seconds, result, word = EXHAUSTING[name]
    began = time.monotonic()
    found = pool.run_sync(program, [Test("1\n", "True\n")], seconds)
    assert found.result == result, found
    assert word in found.reason
    assert time.monotonic() - began < seconds + 8
    assert len(found.stdout) <= 1 << 20
    nothing_left()
    fine(pool)


@pytest.mark.parametrize("folder", ["/tmp", ".", "/dev/shm"])
def test_files_are_bounded_and_do_not_stay(pool: CodePool, nothing_left: Callable[[], None], folder: str) -> None:
    program = (
        f"import os\ntotal = 0\ntry:\n  for n in range(1000):\n    with open('{folder}/f%d' % n, 'wb') as f:\n"
        "      f.write(bytes(1 << 20)); total += 1\nexcept OSError as e: print(e.errno, total <= 8)"
    )
    assert pool.run_sync(program, [Test("", "28 True\n")] * 2).result == "success"
    program = f"import os\nprint(sorted(os.listdir('{folder}')))"
    assert "f0" not in pool.run_sync(program, [Test("", "")]).stdout
    many = f"try:\n  for n in range(10**6): open('{folder}/%d' % n, 'w').close()\nexcept OSError as e: print(e.errno)"
    assert pool.run_sync(many, [Test("", "28\n")], 20).result == "success"
    fine(pool)


# Each prints the names of what succeeded.
TRIES = """
import ctypes, os, resource, socket, sys
got = []
def attempt(name, call):
    try:
        call()
    except Exception:
        return
    got.append(name)
def write(path, text='x'):
    return lambda: os.write(os.open(path, os.O_WRONLY | os.O_CREAT), text.encode())
libc = ctypes.CDLL(None, use_errno=True)
def ok(result):
    if result < 0: raise OSError(ctypes.get_errno(), '')
"""
FORBIDDEN = {
    "writing outside": """
for folder in ['/', '/usr', '/usr/bin', '/usr/local', '/etc', '/dev', '/home', '/root', '/var', '/harness',
               '/harness/inside', '/proc', '/proc/sys', '/proc/sys/kernel', '/proc/1', '/opt', '/run', '/sys', '/mnt']:
    attempt(folder, write(folder + '/rlready-attack'))
    attempt('mkdir ' + folder, lambda: os.mkdir(folder + '/rlready-attack'))
for path in ['/usr/bin/env', '/etc/ld.so.cache', '/harness/inside/zygote.py', '/proc/sys/kernel/core_pattern',
             '/proc/sysrq-trigger', '/proc/1/mem', '/proc/sys/vm/overcommit_memory', '/dev/kmsg', '/dev/sda',
             '/proc/sys/user/max_user_namespaces', '/sys/fs/cgroup/cgroup.procs', '/dev/vda']:
    attempt(path, lambda: os.open(path, os.O_WRONLY))  # each does no harm where it succeeds
    if not path.startswith('/proc'): attempt('rename ' + path, lambda: os.rename(path, path))
    attempt('chmod ' + path, lambda: os.chmod(path, os.stat(path).st_mode & 0o7777))
""",
    "reading the host": """
for path in ['/etc/passwd', '/etc/shadow', '/etc/hostname', '/etc/resolv.conf', '/root', '/home', '/var', '/boot',
             '/opt', '/srv', '/media', '/run', '/proc/kcore', '/proc/kmsg', '/proc/1/root/etc/passwd',
             '/proc/self/root/root', '/proc/1/cwd/../../root', '/sys/class', '/dev/mem', '/dev/sda', '/dev/vda',
             '/dev/kvm', '/dev/fuse']:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1))
""",
    "network": """
for family in [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40]:
    for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW]:
        attempt('socket %d %d' % (family, kind), lambda: socket.socket(family, kind))
attempt('resolve', lambda: socket.getaddrinfo('example.org', 80))
attempt('connect', lambda: socket.create_connection(('127.0.0.1', PORT), 1))
attempt('abstract', lambda: socket.socket(socket.AF_UNIX).connect('\\0rlready-attack'))
""",
    "tracing": """
child = os.fork()
if child == 0:
    import time; time.sleep(99)
for pid in [1, 2, 3, os.getppid(), child]:
    attempt('attach %d' % pid, lambda: ok(libc.ptrace(16, pid, 0, 0)))
    attempt('seize %d' % pid, lambda: ok(libc.ptrace(0x4206, pid, 0, 0)))
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    attempt('read %d' % pid, lambda: ok(libc.process_vm_readv(pid, vector, 1, vector, 1, 0)))
for name in ['mem', 'environ', 'maps', 'fd', 'stack', 'syscall', 'auxv', 'map_files']:
    path = '/proc/1/' + name
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1))
""",
    "privileges": """
attempt('setuid', lambda: os.setuid(0))
attempt('setgid', lambda: os.setgid(0))
attempt('setgroups', lambda: os.setgroups([]))
attempt('chroot', lambda: os.chroot('/tmp'))
attempt('nice', lambda: os.nice(-5))
attempt('scheduler', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5)))
attempt('mknod', lambda: os.mknod('/tmp/device', 0o600 | 0o020000, os.makedev(1, 1)))
attempt('oom', write('/proc/self/oom_score_adj', '-1000'))
attempt('maps', write('/proc/self/uid_map', '0 0 1'))
attempt('unshare user', lambda: ok(libc.unshare(0x10000000)))
attempt('unshare mounts', lambda: ok(libc.unshare(0x00020000)))
attempt('clone user', lambda: ok(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)))
attempt('clone3', lambda: ok(libc.syscall(435, ctypes.create_string_buffer(b'\\0\\0\\0\\x10' + bytes(60)), 64)))
attempt('setns', lambda: ok(libc.setns(os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)))
attempt('mount', lambda: ok(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)))
attempt('umount', lambda: ok(libc.umount2(b'/tmp', 2)))
attempt('remount', lambda: ok(libc.mount(b'none', b'/', None, 32, None)))
attempt('bpf', lambda: ok(libc.syscall(321, 0, 0, 0)))
attempt('perf', lambda: ok(libc.syscall(298, 0, 0, -1, -1, 0)))
attempt('io_uring', lambda: ok(libc.syscall(425, 1, ctypes.create_string_buffer(200))))
attempt('keyring', lambda: ok(libc.syscall(250, 0, -3, 0)))
attempt('memory file', lambda: os.memfd_create('x'))
attempt('shared segment', lambda: ok(libc.shmget(0, 1 << 20, 0o1600)))
attempt('hostname', lambda: socket.sethostname('x'))
for kind in ['RLIMIT_AS', 'RLIMIT_NPROC', 'RLIMIT_FSIZE', 'RLIMIT_CPU', 'RLIMIT_NOFILE', 'RLIMIT_STACK', 'RLIMIT_CORE']:
    number = getattr(resource, kind)
    attempt(kind, lambda: resource.setrlimit(number, (resource.RLIM_INFINITY,) * 2))
for path in ['/usr/bin/su', '/usr/bin/mount', '/usr/bin/passwd', '/usr/bin/newuidmap']:
    attempt('owner of ' + path, lambda: os.chown(path, os.getuid(), -1))
""",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(pool: CodePool, nothing_left: Callable[[], None], name: str) -> None:
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind("\0rlready-attack")
        local.listen()
        program = TRIES + f"PORT = {server.getsockname()[1]}\n" + FORBIDDEN[name] + "\nprint(got)"
        found = pool.run_sync(program, [Test("", "[]\n")])
    assert found.result == "success", found
    nothing_left()
    fine(pool)


def test_the_environment_is_emptied(pool: CodePool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLREADY_SECRET", "s3cret")
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    os.chmod(secret, 0o644)
    program = (
        "import os, sys\nprint(sorted(os.environ))\nprint(open('/proc/self/environ').read().count('s3cret'))\n"
        f"print(os.path.exists({str(secret)!r}))\n"
        "print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()) == [1, os.getpid()])\n"
        "print([int(n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)])\n"
        "print([m for m in sys.modules if m.startswith(('inside', 'rlready'))], sys.path[:1], sys.argv)"
    )
    found = pool.run_sync(program, [Test("", "")])
    lines = found.stdout.splitlines()
    assert lines[0] == "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR']", found
    assert lines[1:4] == ["0", "False", "True"]
    assert lines[4] in ("[0, 1, 2]", "[0, 1, 2, 3]")
    assert "inside" not in lines[5] and "snippet.py" in lines[5]


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {closing}
        time.sleep(99)
    os._exit(0)
time.sleep(0.05)
print(int(input()) + 1)
"""


@pytest.mark.parametrize("closing", ["os.closerange(0, 99)", "pass"])
def test_a_daemon_does_not_outlive_its_test(pool: CodePool, nothing_left: Callable[[], None], closing: str) -> None:
    began = time.monotonic()
    found = pool.run_sync(DAEMON.format(closing=closing), [Test("1\n", "2\n"), Test("2\n", "3\n")])
    assert found.result == "success", found
    assert time.monotonic() - began < 5
    nothing_left()


KILLING = {
    "parent": "os.kill(os.getppid(), 9)",
    "first": "os.kill(1, 9)",
    "first by term": "os.kill(1, 15)",
    "all": "os.kill(-1, 9)",
    "group": "os.killpg(0, 9)",
    "every number": "[os.kill(n, 9) for n in range(1, 400) if n != os.getpid()]",
    "stop": "os.kill(os.getppid(), 19); os.kill(1, 19)",
    "itself": "os.kill(os.getpid(), 9)",
    "segment": "import ctypes; ctypes.string_at(0)",
}


@pytest.mark.parametrize("name", KILLING)
def test_killing(pool: CodePool, nothing_left: Callable[[], None], name: str) -> None:
    # nothing is killed where the process numbers are not the sandbox's own
    program = "import os\nif sum(n.isdigit() for n in os.listdir('/proc')) > 3: os._exit(7)\n"
    program += f"try:\n  {KILLING[name]}\nexcept OSError: pass\nprint(2)"
    found = pool.run_sync(program, ONE, 5)
    assert found.result in ("success", "fail:error")
    if name in ("group", "itself", "segment"):
        assert found.exit_code in (-9, -11)
    nothing_left()
    fine(pool)


LINKS = """
import os
for target in ['/etc/passwd', '/etc', '/proc/1/root', '/harness']:
    try:
        os.symlink(target, 'link' + target.replace('/', '_'))
    except OSError: pass
os.mkfifo('pipe')
os.remove('snippet.py'); os.symlink('/etc/passwd', 'snippet.py')
path = '.'
try:
    for n in range(3000):
        os.mkdir('d' * 100); os.chdir('d' * 100)
except OSError: pass
os.chdir('/tmp')
try:
    os.rename('/tmp/run', '/tmp/elsewhere'); os.symlink('/', '/tmp/run')
except OSError: pass
print(2)
"""


def test_links_and_deep_folders(pool: CodePool, nothing_left: Callable[[], None]) -> None:
    assert pool.run_sync(LINKS, ONE * 3, 20).result == "success"
    nothing_left()
    fine(pool)


def test_a_program_cannot_change_itself_for_its_next_test(pool: CodePool) -> None:
    program = "import os\nn = len(os.listdir('.'))\nopen('trace%d' % n, 'w').close()\nprint(n)"
    assert pool.run_sync(program, [Test("", "1\n")] * 4).result == "success"
    program = "open('snippet.py', 'a').write('\\nprint(3)')\nprint(2)"
    assert pool.run_sync(program, [Test("", "2\n")] * 4).result == "success"


LEAVING = {
    "nothing": "",
    "a file": "open('left', 'w').write('x')",
    "a file beside": "open('/tmp/left', 'w').write('x')",
    "a file in shared memory": "open('/dev/shm/left', 'w').write('x')",
    "a hidden folder": "os.mkdir('.left')",
    "an attribute": "os.setxattr('.', 'user.left', b'x')",
    "an attribute beside": "os.setxattr('/tmp', 'user.left', b'x')",
    "a mode": "os.chmod('.', 0o500)",
    "a mode beside": "os.chmod('/tmp', 0o500)",
    "its own text, with its times": (
        "s = os.stat('snippet.py'); t = open('snippet.py').read()\nopen('snippet.py', 'w').write(t.swapcase())\n"
        "os.utime('snippet.py', ns=(s.st_atime_ns, s.st_mtime_ns))"
    ),
    "another folder in its place": "os.rename('/tmp/run', '/tmp/old'); os.mkdir('/tmp/run'); os.rmdir('/tmp/old')",
    "a process": "if os.fork() == 0: os.setsid(); os.execvp('sleep', ['sleep', '99'])",
    "a limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); os.nice(5); os.umask(0o777)",
    "a signal's handler": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "a socket": "s = socket.socket(socket.AF_UNIX); s.bind('\\0left'); s.listen()",
}
LOOKING = """
import os, resource, signal, socket
for top, folders, files in os.walk('/tmp'):
    for path in [top] + [os.path.join(top, f) for f in files]:
        print(path, oct(os.stat(path).st_mode), os.listxattr(path))
print(os.listdir('/dev/shm'), resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), os.umask(0))
others = [n for n in os.listdir('/proc') if n.isdigit() and int(n) not in (1, os.getpid())]
print(signal.getsignal(signal.SIGTERM), others)
try: socket.socket(socket.AF_UNIX).connect('\\0left')
except OSError as e: print(e.errno)
"""


@pytest.mark.parametrize("name", LEAVING)
def test_a_program_finds_nothing_of_the_one_before(pool: CodePool, name: str) -> None:
    pool.close()
    new = pool.run_sync(LOOKING, [Test("", "")]).stdout
    assert new.startswith("/tmp 0o40700 []") and new.count("\n") == 6, new
    body = "\n".join(f"  {line}" for line in (LEAVING[name] or "pass").split("\n"))
    program = f"import os, resource, socket\ntry:\n{body}\nexcept OSError: pass"
    left = pool.run_sync(program, [Test("", "")])
    assert left.result == "success", left
    assert pool.run_sync(LOOKING, [Test("", "")]).stdout == new
    kept = [lane.number for lane in pool._boxes[0].kept]
    assert pool.run_sync(LOOKING, [Test("", "")]).stdout == new
    assert kept == [lane.number for lane in pool._boxes[0].kept]  # that was the same cell again


SEARCH = """
import hashlib, os, re
found = []
def look(place, block):
    for match in re.finditer(b'@([0-9a-f]{32})@', block):
        if hashlib.sha256(match[1]).hexdigest() in DIGESTS: found.append(place)
for top, folders, files in os.walk('/'):
    folders[:] = [f for f in folders if os.path.join(top, f) not in ('/usr', '/proc', '/lib', '/bin', '/sbin')]
    for file in files:
        path = os.path.join(top, file)
        if os.path.isfile(path): look(path, open(path, 'rb').read())
for name in os.listdir('/proc/self/fd'):
    try: look('fd ' + name, os.pread(int(name), 1 << 20, 0))
    except OSError: pass
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps.read().splitlines():
        start, end = (int(x, 16) for x in line.split()[0].split('-'))
        if 'r' not in line.split()[1] or '[v' in line: continue
        while start < end:
            memory.seek(start)
            block = memory.read(min(1 << 20, end - start))
            look('memory', block); start += len(block) or end
print(found)
"""


def test_expected_outputs_and_other_inputs_are_nowhere(isolation: str) -> None:
    """A program knows the digests of the secrets only, and looks for them in all files and all of its memory."""
    output, other = secrets.token_hex(16), secrets.token_hex(16)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (output, other)]
    output, other = f"@{output}@", f"@{other}@"
    program = f"DIGESTS = {digests}\n{SEARCH}"
    with CodePool("python", workers=1) as wide:
        found = wide.run_sync(program, [Test(other, output), Test("", output)], 30, all_tests=True)
    assert "fd 0" in found.tests[0].stdout, "the search finds what there is: its own input"
    assert found.tests[1].stdout == "[]\n", found.tests[1]


def test_shell_attacks_in_lua(isolation: str) -> None:
    if not languages()["lua"].runs_here:
        pytest.skip("lua5.4 is not installed")
    with CodePool("lua", workers=1, limits=SMALL) as lua:
        bomb = "os.execute(':(){ :|:& };:')\nos.execute('sh -c \"while :; do sh -c true & done\"')"
        assert lua.run_sync(bomb, ONE, 1).result in ("fail:timeout", "fail:error", "fail:wrong-output")
        assert lua.run_sync("os.execute('sleep 99 &')\nprint(2)", ONE, 5).result == "success"
        assert lua.run_sync("while true do end", ONE, 0.5).result == "fail:timeout"
        assert lua.run_sync("local t = {} while true do t[#t + 1] = 1 end", ONE, 30).result == "fail:error"
        assert lua.run_sync("while true do io.write(('x'):rep(1e6)) end", ONE, 30).result == "fail:other"
        assert lua.run_sync("print(io.read('n') + 1)", ONE).result == "success"


def test_compilers_are_confined_as_well(isolation: str, nothing_left: Callable[[], None]) -> None:
    if not languages()["fortran"].runs_here:
        pytest.skip("gfortran is not installed")
    with CodePool("fortran", workers=1) as fortran:
        include = "program a\ninclude '/etc/passwd'\nend program\n"
        found = fortran.run_sync(include, ONE)
        assert found.result == "fail:error" and not found.compiled and "root:" not in found.stderr
        assert fortran.run_sync("program a\nprint '(I0)', 2\nend program\n", ONE).result == "success"
    with contextlib.suppress(ImportError):
        nothing_left()
