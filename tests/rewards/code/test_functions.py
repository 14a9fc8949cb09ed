"""Function tests: right programs pass, and no trick does. Each trick has a twin that is right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from rlready.errors import UserError
from rlready.rewards.code import CodePool, run_function_tests, run_function_tests_sync
from rlready.rewards.code.inside.wire import Decoder, Encoder, WireError

ADD = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"
CLOSE = "assert abs(third(1) - 1 / 3) < 1e-6"
RAISES = "import pytest\ndef test_it():\n  with pytest.raises(ValueError, match='neg'): f(-1)\n"
CASE = "import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(f(1), 1)\n"
CHECK = (
    "def check(candidate):\n  assert candidate([1.0, 2.0], 1.5) == True\n  assert candidate([1.0, 2.0], 0.5) == False\n"
)
NODE = "class Node:\n  def __init__(s, v, l=None, r=None): s.val, s.left, s.right = v, l, r\n"

RIGHT = {
    "plain": ("def add(a, b): return a + b", ADD),
    "through operator": ("from operator import add", ADD),
    "own exception": (
        "class Bad(ValueError): pass\ndef f(x):\n  if x < 0: raise Bad('neg')\n  return x",
        "try:\n  f(-1)\n  assert False\nexcept Bad as e:\n  assert str(e) == 'neg'\nassert f(1) == 1",
    ),
    "exception's attributes": (
        "class Bad(Exception):\n  def __init__(s, code): super().__init__('bad'); s.code = code\ndef f(): raise Bad(7)",
        "try: f()\nexcept Bad as e: assert e.code == 7",
    ),
    "pytest": (
        "def f(x):\n  if x < 0: raise ValueError('neg')\n  return x",
        RAISES + "def test_b(): assert f(2) == 2\n",
    ),
    "approx": (
        "def f(x): return x / 3",
        "from pytest import approx\ndef test_a(): assert f(1) == approx(0.33333333)\n",
    ),
    "parametrize": (
        "def f(x): return x * x",
        "import pytest\n@pytest.mark.parametrize('x, y', [(1, 1), (2, 4)])\ndef test_f(x, y): assert f(x) == y\n",
    ),
    "unittest": ("def f(x): return x", CASE + "if __name__ == '__main__': unittest.main()\n"),
    "check that is not called": ("def close(a, t): return abs(a[0] - a[1]) < t", CHECK),
    "check that is called": ("def close(a, t): return abs(a[0] - a[1]) < t", CHECK + "check(close)\n"),
    "import of the solution": ("def add(a, b): return a + b", "from solution import add\n" + ADD),
    "in place": ("def f(x): x.sort()", "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"),
    "in place, nested": (
        "def f(d): d['a'].append(1); d['b'] = {2}; d['s'].add(3)",
        "d = {'a': [], 's': {1}}\nf(d)\nassert d == {'a': [1], 'b': {2}, 's': {1, 3}}",
    ),
    "the same list": ("def f(x): return x", "a = [1]\nassert f(a) is a"),
    "a cycle": ("def f(x): x.append(x); return x", "a = f([1])\nassert a[1] is a"),
    "a class": (
        "class Stack:\n  def __init__(s): s.a = []\n  def push(s, x): s.a.append(x)\n  def pop(s): return s.a.pop()\n"
        "  def __len__(s): return len(s.a)\n  def __repr__(s): return 'S'",
        "s = Stack()\ns.push(1)\ns.push([2])\nassert s.pop() == [2]\nassert len(s) == 1\nassert s.a == [1]\n"
        "assert isinstance(s, Stack)\nassert repr(s) == 'S'\n"
        "assert not isinstance(3, Stack)",
    ),
    "operators": (
        "class V:\n  def __init__(s, x, y): s.x, s.y = x, y\n  def __mul__(s, k): return V(s.x * k, s.y * k)\n"
        "  __rmul__ = __mul__\n  def __eq__(s, o): return (s.x, s.y) == (o.x, o.y)\n"
        "  def __add__(s, o): return V(s.x + o.x, s.y + o.y)\n  def __lt__(s, o): return s.x < o.x\n"
        "  def __getitem__(s, i): return (s.x, s.y)[i]\n  def __iter__(s): return iter((s.x, s.y))",
        "assert V(1, 2) * 2 == V(2, 4)\nassert 2 * V(1, 2) == V(2, 4)\nassert V(1, 2) + V(1, 1) == V(2, 3)\n"
        "assert (V(1, 2) * 3).x == 3\nassert V(1, 2) < V(2, 2)\nassert V(1, 2)[1] == 2\n"
        "assert list(V(1, 2)) == [1, 2]\n"
        "assert 2 in V(1, 2)\nassert max([V(1, 2), V(3, 4)]).x == 3\nassert V(1, 2) != V(1, 3)",
    ),
    "generator": (
        "def f(n):\n  for i in range(n): yield i * i",
        "assert list(f(4)) == [0, 1, 4, 9]\nassert next(f(1)) == 0",
    ),
    "infinite generator": (
        "def f():\n  n = 0\n  while 1:\n    yield n\n    n += 1",
        "from itertools import islice\nassert list(islice(f(), 3)) == [0, 1, 2]",
    ),
    "callback": ("def f(g, xs): return [g(x) for x in xs]", "assert f(lambda x: x + 1, [1, 2]) == [2, 3]"),
    "decorator": (
        "def memo(fn):\n  c = {}\n  def w(*a):\n    if a not in c: c[a] = fn(*a)\n    return c[a]\n  return w",
        "n = []\n@memo\ndef sq(x):\n  n.append(1)\n  return x * x\nassert sq(3) == 9\n"
        "assert sq(3) == 9\nassert len(n) == 1",
    ),
    "objects of the tests": (
        "def f(n): return 0 if n is None else 1 + max(f(n.left), f(n.right))",
        NODE + "assert f(Node(1, Node(2), Node(3, Node(4)))) == 3",
    ),
    "objects of the tests changed": (
        "def f(n):\n  if n: n.left, n.right = f(n.right), f(n.left)\n  return n",
        NODE + "n = f(Node(1, Node(2)))\nassert n.right.val == 2\nassert n.left is None",
    ),
    "coroutine": (
        "async def f(x):\n  import asyncio\n  await asyncio.sleep(0)\n  return x + 1",
        "import asyncio\nassert asyncio.run(f(1)) == 2\nasync def test_a(): assert await f(2) == 3",
    ),
    "what is printed": (
        "def f(): print('hi')",
        "import contextlib, io\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f()\n"
        "assert b.getvalue() == 'hi\\n'",
    ),
    "context": (
        "from contextlib import contextmanager\n@contextmanager\ndef f(): yield 5",
        "with f() as x:\n  assert x == 5",
    ),
    "standard types": (
        "from collections import Counter, namedtuple, deque, OrderedDict\nfrom decimal import Decimal\n"
        "from fractions import Fraction\nimport datetime, enum\nP = namedtuple('P', 'x y')\n"
        "class C(enum.Enum):\n  RED = 1\ndef f(k): return {'c': Counter('aab'), 'p': P(1, 2), 'q': deque([1], 3),\n"
        "  'o': OrderedDict(a=1), 'd': Decimal('0.1'), 'f': Fraction(1, 3), 't': datetime.date(2020, 1, 2),\n"
        "  'e': C.RED,\n"
        "  'b': b'\\xff', 'i': 10**5000, 'z': frozenset([1]), 'j': 1j, 'r': range(3), 'k': int, 'n': None}[k]",
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime\n"
        "assert f('c') == {'a': 2, 'b': 1}\nassert f('c').most_common(1) == [('a', 2)]\nassert f('p') == (1, 2)\n"
        "assert f('p').y == 2\nassert list(f('q')) == [1]\nassert f('q').maxlen == 3\nassert f('o') == {'a': 1}\n"
        "assert f('d') == Decimal('0.1')\nassert f('f') == Fraction(1, 3)\nassert f('t') == datetime.date(2020, 1, 2)\n"
        "assert f('e') == C.RED\nassert f('e').value == 1\nassert f('b') == b'\\xff'\nassert f('i') == 10**5000\n"
        "assert f('z') == {1}\nassert f('j') == 1j\nassert f('r') == range(3)\n"
        "assert f('k') is int\nassert f('n') is None",
    ),
    "the program's imports": ("import math\ndef third(x): return x / 3", "assert math.isclose(third(1), 1 / 3)"),
    "a built-in's name": ("def max(a, b): return a if a > b else b", "assert max(1, 2) == 2"),
    "constants": ("LIMIT = 5\nNAMES = ['a']\ndef f(): return LIMIT", "assert f() == LIMIT\nassert NAMES == ['a']"),
    "global state": ("n = 0\ndef f():\n  global n\n  n += 1\n  return n", "assert f() == 1\nassert f() == 2"),
    "large": ("def f(n): return list(range(n))", "assert f(200000) == list(range(200000))"),
    "a main block": ("def add(a, b): return a + b\nif __name__ == '__main__': add(*map(int, input().split()))", ADD),
    "a thread that goes on": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\ndef add(a, b): return a + b",
        ADD,
    ),
    "loops": ("def f(x): return x * 2", "for x in range(5):\n  assert f(x) == 2 * x"),
    "system exit that is wanted": (
        "import sys\ndef f(): sys.exit(3)",
        "try:\n  f()\n  assert False\nexcept SystemExit as e:\n  assert e.code == 3",
    ),
}

ALWAYS = (
    "class E:\n  def __eq__(s, o): return True\n  def __ne__(s, o): return False\n  def __lt__(s, o): return True\n"
    "  __gt__ = __le__ = __ge__ = __lt__\n  def __sub__(s, o): return 0.0\n  __rsub__ = __add__ = __sub__\n"
    "  def __contains__(s, o): return True\n  def __hash__(s): return 5\n  def __abs__(s): return 0.0\n"
)
WRONG = {
    "wrong": ("def add(a, b): return a - b", ADD),
    "nothing": ("", ADD),
    "no program": ("this is (not python", ADD),
    "exit": ("import sys\nsys.exit(0)", ADD),
    "exit after": ("def add(a, b): return a + b\nimport sys\nsys.exit(0)", ADD),
    "hard exit": ("import os\nos._exit(0)", ADD),
    "exit in the call": ("import sys\ndef add(a, b): sys.exit(0)", ADD),
    "hard exit in the call": ("import os\ndef add(a, b): os._exit(0)", ADD),
    "hard exit that tests swallow": (
        "import os\ndef add(a, b): os._exit(0)",
        "try:\n  assert add(2, 3) == 5\nexcept:\n  pass",
    ),
    "exit at exit": ("import atexit, os\natexit.register(os._exit, 0)\n1 / 0", ADD),
    "killed": ("import os\ndef add(a, b): os.kill(os.getpid(), 9)", ADD),
    "endless": ("def add(a, b):\n  while 1: pass", ADD),
    "endless import": ("while 1: pass", ADD),
    "memory": ("def add(a, b):\n  x = []\n  while 1: x.append(bytearray(10**6))", ADD),
    "recursion": ("def add(a, b): return add(a, b)", ADD),
    "equals everything": (ALWAYS + "def add(a, b): return E()", ADD),
    "an int that equals everything": ("class E(int):\n  def __eq__(s, o): return True\ndef add(a, b): return E()", ADD),
    "a str that equals everything": (
        "class E(str):\n  def __eq__(s, o): return True\ndef f(): return E('x')",
        "assert f() == 'y'",
    ),
    "a list of such": (ALWAYS + "def f(): return [E()]", "assert f() == [5]"),
    "a list subclass of such": (
        "class L(list):\n  def __eq__(s, o): return True\ndef f(): return L()",
        "assert f() == [5]",
    ),
    "a function that is a class": ("class add:\n  def __init__(s, *a): pass\n  def __eq__(s, o): return True", ADD),
    "a metaclass": (
        "class M(type):\n  def __eq__(s, o): return True\nclass X(metaclass=M): pass\ndef add(a, b): return X",
        ADD,
    ),
    "never far": (ALWAYS + "def third(x): return E()", CLOSE),
    "never far, by itself": (
        "class E:\n  def __sub__(s, o): return s\n  __rsub__ = __sub__\n  def __abs__(s): return 0.0\n"
        "def third(x): return E()",
        CLOSE,
    ),
    "never far, by order": (
        "class E:\n  def __sub__(s, o): return s\n  __rsub__ = __sub__\n  def __abs__(s): return s\n"
        "  def __lt__(s, o): return True\ndef third(x): return E()",
        CLOSE,
    ),
    "a float that is never far": (
        "class E(float):\n  def __sub__(s, o): return 0.0\n  __rsub__ = __sub__\ndef third(x): return E(9)",
        CLOSE,
    ),
    "not a number": ("def third(x): return float('nan')", CLOSE),
    "contains everything": (ALWAYS + "def f(): return E()", "assert 3 in f()"),
    "almost equal to everything": (
        ALWAYS + "def f(x): return E()",
        "import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertAlmostEqual(f(1), 1.5)\n",
    ),
    "unittest": ("def f(x): return x + 1", CASE),
    "skipped": ("import unittest\ndef f(x): raise unittest.SkipTest('skip')", CASE),
    "approx": (ALWAYS + "def f(x): return E()", "from pytest import approx\ndef test_a(): assert f(1) == approx(3)\n"),
    "no exception": ("def f(x): return x", RAISES),
    "another exception": ("def f(x): raise KeyError('neg')", RAISES),
    "check": ("def close(a, t): return True", CHECK),
    "assertions turned off": ("import builtins\nbuiltins.AssertionError = None\ndef add(a, b): return 0", ADD),
    "patched comparison": (
        "import operator, builtins\noperator.eq = lambda a, b: True\nbuiltins.abs = lambda x: 0\n"
        "builtins.all = lambda x: True\nabs = lambda x: 0\ndef third(x): return 9.0",
        CLOSE,
    ),
    "replaced built-ins": ("len = lambda x: 3\nsorted = lambda x: [1]\ndef f(): return []", "assert len(f()) == 3"),
    "replaced modules": (
        "class M:\n  def isclose(s, *a, **k): return True\nmath = M()\ndef f(): return 5",
        "assert math.isclose(f(), 1 / 3)",
    ),
    "replaced modules in place": (
        "import math, sys\nmath.isclose = lambda *a: True\n"
        "sys.modules['math'].isclose = math.isclose\ndef f(): return 5",
        "import math\nassert math.isclose(f(), 1 / 3)",
    ),
    "replaced unittest": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef f(x): return 0",
        CASE,
    ),
    "tracing": (
        "import sys, gc\nsys.settrace(lambda *a: None)\nfor o in gc.get_objects():\n  try:\n"
        "    if callable(o) and getattr(o, '__name__', '') == 'send': pass\n  except Exception: pass\n"
        "def add(a, b): return None",
        ADD,
    ),
    "reading the tests": (
        "import os\ndef add(a, b):\n  for p in ['tests.py', '/tmp/run/tests.py', '/proc/1/root/tmp/run/tests.py']:\n"
        "    try: return eval(open(p).read().split('== ')[1].split()[0])\n    except OSError: pass",
        ADD,
    ),
    "looking up the stack": (
        "import sys\ndef add(a, b):\n  f = sys._getframe()\n  while f:\n    for v in f.f_locals.values():\n"
        "      if 'assert' in str(v): return 5\n    f = f.f_back",
        ADD,
    ),
    "a stopped iteration": (
        "def f(x): raise StopIteration",
        "for y, z in zip(map(f, [1, 2]), [1, 4]): assert y == z\nassert f(1) == 1",
    ),
    "globals of a callback": (
        "def f(g):\n  g.__globals__['expected'] = 3\n  return 3",
        "expected = 4\nassert f(lambda: 1) == expected",
    ),
    "code of a callback": (
        "def f(g):\n  g.__code__ = (lambda: True).__code__\n  return g()",
        "def g(): return False\nassert f(g) == True",
    ),
    "class of an object of the tests": (
        "def f(n):\n  n.__class__.__eq__ = lambda a, b: True\n  return n",
        NODE + "assert f(Node(1)).val == 2",
    ),
    "a forged message": (
        "import json, os, struct\ndef add(a, b):\n  for fd in range(3, 60):\n"
        "    for m in (['!', 5, [], ''], {'end': 1},\n"
        "        {'test': 'x', 'ok': True, 'why': ''}):\n      d = json.dumps(m).encode()\n"
        "      try: os.write(fd, struct.pack('<I', len(d)) + d); os.write(fd, d)\n      except OSError: pass",
        ADD,
    ),
    "rubbish on the channel": (
        "import os\ndef add(a, b):\n  for fd in range(3, 60):\n"
        "    try: os.write(fd, b'\\xff' * 99)\n    except OSError: pass",
        ADD,
    ),
    "too deep": ("def add(a, b):\n  x = []\n  for _ in range(9999): x = [x]\n  return x", ADD),
    "numpy that is missing": ("def add(a, b):\n  import numpy\n  return 5", ADD),
    "missing name in an import": ("def sub(a, b): return a - b", "from solution import add\n" + ADD),
    "one of two": ("def add(a, b): return 5", ADD),
}

BROKEN = {
    "no Python": ("def f(): return 1", "assert (", "no Python"),
    "no test": ("def f(): return 1", "x = 2\n", "hold no test"),
    "a missing module": ("def f(): return 1", "import numpy as np\nassert f() == 1", "numpy"),
}


@pytest.fixture(scope="module")
def python(isolation: str) -> Iterator[CodePool]:
    with CodePool("python", workers=1) as pool:
        yield pool.start()


@pytest.mark.parametrize("name", RIGHT)
def test_right(python: CodePool, name: str) -> None:
    found = run_function_tests_sync(python, *RIGHT[name], 20)
    assert found.result == "success", (found.reason, found.stderr)
    assert found.tests and all(test.passed for test in found.tests)


@pytest.mark.parametrize("name", WRONG)
def test_wrong(python: CodePool, nothing_left: Callable[[], None], name: str) -> None:
    seconds = 0.7 if name.startswith("endless") else 20.0
    began = time.monotonic()
    found = run_function_tests_sync(python, *WRONG[name], seconds)
    assert found.result != "success" and not found.sandbox_failed, found
    assert found.reason and not all(test.passed for test in found.tests)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tests_are_the_graders_failure(python: CodePool, name: str) -> None:
    program, tests, word = BROKEN[name]
    found = run_function_tests_sync(python, program, tests)
    assert found.sandbox_failed and word in found.reason


def test_each_test_has_its_result(python: CodePool) -> None:
    found = run_function_tests_sync(python, "def add(a, b): return 5", ADD + "\nassert add(1, 4) == 5")
    assert [test.passed for test in found.tests] == [True, False, True]
    assert found.reason == "line 2: assert add(-1, 1) == 0: it gave 5, not 0"
    assert (found.passed, found.asked) == (2, 3)


def test_the_loop_goes_on(python: CodePool) -> None:
    async def main() -> int:
        waiting = asyncio.create_task(
            run_function_tests(python, "import time\ntime.sleep(0.3)\nx = 1", "assert x == 1")
        )
        ticks = 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert (await waiting).result == "success"
        return ticks

    assert asyncio.run(main()) >= 5


def test_slips(python: CodePool) -> None:
    with pytest.raises(UserError, match="no tests"):
        run_function_tests_sync(python, "x = 1", " \n")


HOSTILE = [
    ["?"], ["l"], [], [[]], [{}], {"a": 1}, ["r", 0], ["r", -1], ["R", 5], ["H", 0], ["H", True], ["H", "x"], ["h", 1],
    ["e", [], "print"], ["e", [[1]], "Exception"], ["k", "print"], ["k", "__import__"], ["k", 5], ["i", "x"], ["i", 5],
    ["d", 1], ["d", ["l"], 1], ["s", ["l"]], ["z", ["d"]], ["g"], ["c", "x"], ["D", []], ["F", "1", "0"], ["T", "x"],
    ["T", "date", "x"], ["n", "a b", ["x"], 1], ["n", "A", ["x", "x"], 1, 2], ["n", "A", 5], ["B", 5], ["b", "\u1234"],
    ["q", -1], ["q", "x"], ["C", 1, 2, 3], ["zz", 1], [None], [1, 2],
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(HOSTILE)))
def test_what_no_encoder_writes_is_refused(row: int) -> None:
    def foreign(told: list[object]) -> object:
        raise WireError("unknown")

    def own(number: int) -> object:
        raise IndexError(number)

    try:
        value = Decoder(foreign, own)(HOSTILE[row])
    except WireError:
        return
    assert HOSTILE[row] == ["l"] and value == []


def test_values_come_back_as_they_went() -> None:
    def export(value: object) -> list[object]:
        raise WireError("not plain")

    shared = [1]
    value = {
        "a": [None, True, 1, -(10**30), 1.5, "x\ud800", b"\x00\xff", (1, (2,)), {1, 2}, frozenset({3}), 1 + 2j],
        (1, 2): [shared, shared], 5: float("inf"), None: bytearray(b"z"),
    }  # fmt: skip
    encode = Encoder(export)
    again = Decoder(export, lambda n: None)(encode(value))
    assert again == value
    assert again[(1, 2)][0] is again[(1, 2)][1]
    assert type(again["a"][1]) is bool and type(again["a"][2]) is int
