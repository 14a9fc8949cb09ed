"""The side of a function test on which the tests run, in a cell of their own, where the program cannot reach them.

The tests see the program's functions and classes as objects of the other process (`remote`). Each assertion, each call
at top level, each `test_` function and each method of a test case is one test, reported as soon as it is decided; a
test that is not reported as passed was not passed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import reprlib
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import pytest_few
from .peer import Peer
from .remote import Remote
from .wire import Decoder, Ended, Stream, WireError

_MODULES = (
    "abc array bisect calendar cmath collections collections.abc copy dataclasses datetime decimal enum fractions "
    "functools heapq itertools json math numbers operator random re statistics string textwrap time typing"
)
_PLAIN_MODULES = frozenset(_MODULES.split())
_SOLUTION = ("solution", "main", "candidate", "submission", "code")  # names under which tests import the program
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class _Broken(Exception):
    """The tests themselves are at fault."""


def serve(file: str, channel: int, report: int) -> int:
    """Run the tests in a file against the program at the other end of a channel; the exit status."""
    said = socket.socket(fileno=report)

    def tell(**message: Any) -> None:
        said.send(json.dumps(message).encode())

    with open(file, encoding="utf-8", errors="surrogatepass") as source:
        text = source.read()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        tell(broken=f"the tests are no Python: {error}"[:400])
        return 0
    try:
        stream = Stream(channel)
        Tests(text, tree, stream, tell).run()
        if stream.ended:  # whatever the tests made of it
            raise Ended
    except Ended:
        tell(ended=True)
        return 0
    except _Broken as error:
        tell(broken=str(error)[:400])
        return 0
    tell(end=True)
    return 0


class Tests:
    """The tests of one program."""

    def __init__(self, text: str, tree: ast.Module, stream: Stream, tell: Callable[..., None]) -> None:
        """Wait for the program, and bring its names in."""
        self.text, self.tree, self.tell = text, tree, tell
        self.peer = Peer(stream, strict=True)
        self.peer.printed = lambda printed: sys.stdout.write(printed)
        self.space: dict[str, Any] = {"__name__": "tests", "__builtins__": __builtins__}
        self.functions: list[str] = []
        self._meet(stream)
        self.found = 0

    def _meet(self, stream: Stream) -> None:
        try:
            word, names, printed = stream.receive()
            if word != "ready" or not isinstance(names, dict):
                raise ValueError(word)
        except (TypeError, ValueError, WireError):
            raise Ended("the program said nothing that can be read") from None
        sys.stdout.write(str(printed))
        decode = Decoder(self.peer._foreign, self.peer._own)
        module = types.ModuleType("solution")
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        plain = used & {name for name in names if not hasattr(builtins, name)}
        for name, told in names.items():
            if name.startswith("__"):
                continue
            if name in _PLAIN_MODULES:
                told = ["m", name]
            try:
                if isinstance(told, list) and told[0] == "m":
                    value = _standard(told, name) or decode(told[3])
                else:
                    value = decode(told)
            except (WireError, LookupError, TypeError, AttributeError):
                continue
            setattr(module, name, value)
            if plain and hasattr(builtins, name):  # a built-in function of the tests is not the program's to replace
                continue
            self.space[name] = value
            if isinstance(value, Remote) and value._rl_kind != "class":
                self.functions.append(name)
        for name in _SOLUTION:
            sys.modules.setdefault(name, module)
        sys.modules.setdefault("pytest", pytest_few.MODULE)

    def run(self) -> None:
        """Run all tests."""
        for node in self.tree.body:
            self._statement(node)
        self._check()
        for name, value in list(self.space.items()):
            if isinstance(value, types.FunctionType) and name.startswith("test") and name not in self._called():
                for label, call in _cases(name, value):
                    self._one(label, call)
            elif isinstance(value, type) and value.__module__ == "tests":
                self._methods(name, value)
        if not self.found:
            raise _Broken("the tests hold no test: no assertion, no call, no function named test")

    def _called(self) -> set[str]:
        """Names of functions that the tests call at top level."""
        calls = [n.value for n in self.tree.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
        return {call.func.id for call in calls if isinstance(call.func, ast.Name)}

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        label = f"line {node.lineno}: {_source(self.text, node)}"
        if isinstance(node, ast.Assert):
            self._one(label, lambda: self._assertion(node))
        elif isinstance(node, ast.Expr):
            self._one(label, lambda: self._execute(node))
        else:
            loops = isinstance(node, (ast.For, ast.While, ast.With, ast.Try, ast.If)) and _asserts(node)
            self._one(label, lambda: self._execute(node), quiet=not loops)

    def _execute(self, node: ast.stmt) -> None:
        code = compile(ast.Module([node], []), "tests", "exec", dont_inherit=True)
        exec(code, self.space)

    def _assertion(self, node: ast.Assert) -> None:
        """An assertion, with what was found where it is an equality that does not hold."""
        test = node.test
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
            self._execute(node)
            return
        sides = [self._value(side) for side in (test.left, test.comparators[0])]
        if not sides[0] == sides[1]:
            raise AssertionError(f"it gave {_show(sides[0])}, not {_show(sides[1])}")

    def _value(self, node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "tests", "eval", dont_inherit=True), self.space)

    def _one(self, label: str, call: Callable[[], Any], quiet: bool = False) -> None:
        """Run one test and report it; what only prepares is reported where it fails."""
        why = ""
        try:
            result = call()
            if isinstance(result, types.CoroutineType):
                __import__("asyncio").run(result)
        except Ended:
            raise
        except ImportError as error:
            if not hasattr(error, "_rl_remote") and error.name not in _SOLUTION:
                raise _Broken(f"the tests need {error.name or error}, which the sandbox lacks") from None
            why = f"{type(error).__name__}: {error}"[:400]
        except AssertionError as error:
            why = str(error)[:400] or "it does not hold"
        except WireError as error:
            why = f"what the program gave cannot be read: {error}"
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"[:400]
        if why or not quiet:
            self.found += 1
            self.tell(test=label, ok=not why, why=why)

    def _check(self) -> None:
        """A function `check` that is defined and not called is given the program's last function."""
        check = self.space.get("check")
        if not isinstance(check, types.FunctionType) or "check" in self._called() or not self.functions:
            return
        if check.__code__.co_argcount == 1:
            self._one("check", lambda: check(self.space[self.functions[-1]]))

    def _methods(self, name: str, kind: type) -> None:
        """The tests of a class: a test case, or a plain class of test methods."""
        names = [n for n in dir(kind) if n.startswith("test") and callable(getattr(kind, n))]
        unittest = sys.modules.get("unittest")
        for method in names if name.startswith("Test") or name.endswith("Test") or unittest else []:
            if unittest is not None and issubclass(kind, unittest.TestCase):
                self._one(f"{name}.{method}", functools.partial(_unit, kind(method)))
            elif name.startswith("Test"):
                for label, call in _cases(f"{name}.{method}", getattr(kind(), method)):
                    self._one(label, call)


def _unit(case: Any) -> None:
    """Run one method of a unittest.TestCase."""
    import unittest

    result = unittest.TestResult()
    case.run(result)
    for _, trace in [*result.errors, *result.failures]:
        raise AssertionError(trace.strip().splitlines()[-1])
    if result.unexpectedSuccesses or not result.testsRun:
        raise AssertionError("it was not run as it should")


def _cases(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A test function, once for each set of its parameters."""
    sets = getattr(function, "parameters", None)
    if not sets:
        yield name, function
        return
    for n, given in enumerate(sets):
        yield f"{name}[{n}]", functools.partial(function, **given)


def _standard(told: list[Any], name: str) -> Any:
    """A module of the standard library, or a function of one under its own name, from here and not from the program."""
    home = told[1].lstrip("_")  # some are written in C, as _operator
    if home not in _PLAIN_MODULES:
        return None
    __import__(home)
    module = sys.modules[home]
    return module if len(told) == 2 else getattr(module, name, None)


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Assert) for one in ast.walk(node))


def _source(text: str, node: ast.stmt) -> str:
    segment = (ast.get_source_segment(text, node) or "").split("\n")[0]
    return segment if len(segment) <= 100 else segment[:97] + "..."


def _show(value: Any) -> str:
    try:
        return _SHORT.repr(value)
    except Ended:
        raise
    except BaseException:
        return f"an object that cannot be shown ({type(value).__name__})"
