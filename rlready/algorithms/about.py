"""What an algorithm says of itself, for tables: the rules it combines, its settings with their sources, its size.

Nothing here is written by hand for one method: combinations are read from the fields, explanations from the
docstrings' attributes, line counts from the source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

from rlready.algorithms import ALGORITHMS
from rlready.algorithms.base import Algorithm
from rlready.algorithms.credit import CREDITS
from rlready.algorithms.policy_gradient import PolicyGradient

FORMULAS = {
    "mean": "r - m",
    "loo": "r - mean of the others",
    "std": "(r - m) / s",
    "batch_std": "r - m, batch-normed",
    "maxrl": "(r - m) / m",
    "ngrpo": "(r - m) / s with a virtual best",
    "best": "best only: r1 - r2",
    "batch": "r - mean of the batch",
    "running": "r - running mean",
    "none": "r",
}
"""The rules of `credit.CREDITS` in short: m, s mean and deviation of a group's rewards r."""
WORDS = ("paper", "when", "assigns")


def facts(name: str) -> dict[str, Any]:
    """One line of the table of algorithms: credit x ratio x clip x average x KL, paper, when to use it, lines of code.

    Raises:
        KeyError: there is no such algorithm.
    """
    kind = ALGORITHMS[name]
    return {"name": name, **combination(kind()), "paper": kind.paper, "when": kind.when, "lines": lines(name)}


def combination(algorithm: Algorithm) -> dict[str, str]:
    """The rules that an algorithm combines, in words; "-" where it has none."""
    a = algorithm
    average = {"constant": f"sum / {a.constant:g}"}.get(a.average, a.average)
    if not isinstance(a, PolicyGradient):
        # Such a loss has no ratio to an older policy; what it says of its own is in `assigns`.
        tie = getattr(a, "beta", None)
        pairs = tie is not None
        return {
            "credit": a.assigns, "ratio": "-", "clip": "-", "average": "pair" if pairs else average,
            "kl": f"reference, beta {tie:g}" if pairs else "-",
        }  # fmt: skip
    terms = []
    if a.kl:
        exact = "" if a.kl_in == "reward" or a.kl_gradient == "exact" else ", naive"
        terms.append(f"{a.kl:g} {'k1' if a.kl_in == 'reward' else a.kl_estimator} in {a.kl_in}{exact}")
    if a.behaviour:
        terms.append(f"{a.behaviour:g} log^2 ratio")
    credit = a.assigns or FORMULAS.get(a.advantage, a.advantage)
    return {"credit": credit, "ratio": a.ratio, "clip": bound(a), "average": average, "kl": ", ".join(terms) or "-"}


def bound(a: PolicyGradient) -> str:
    """The trust region in short."""
    if a.trust == "clip":
        sides = ["open" if side is None else f"{side:g}" for side in (a.clip_low, a.clip_high)]
        width = sides[0] if sides[0] == sides[1] else "/".join(sides)
        return width + (f", dual {a.dual_clip:g}" if a.dual_clip else "")
    return {
        "none": "-",
        "cispo": f"weight <= {a.cap:g}",
        "sapo": f"soft, tau {a.tau_high:g}/{a.tau_low:g}",
        "tv": f"TV {a.delta:g} from the sampler",
    }.get(a.trust, a.trust)


def settings(name: str) -> dict[str, dict[str, Any]]:
    """Every setting: its default, whether it is this class's own, and what its docstring says, source included.

    Raises:
        KeyError: there is no such algorithm.
    """
    kind = ALGORITHMS[name]
    built = kind()
    base: dict[str, Any] = {}
    for parent in reversed(kind.__mro__[1:]):
        if dataclasses.is_dataclass(parent):
            base |= {f.name: f.default for f in dataclasses.fields(parent)}
    told = explained(kind)
    return {
        f.name: {
            "default": getattr(built, f.name),
            "own": f.name not in base or base[f.name] != f.default,
            "about": told.get(f.name, ""),
        }
        for f in dataclasses.fields(kind)
        if f.init
    }


def explained(kind: type) -> dict[str, str]:
    """What the "Attributes" of a class's docstring and its parents' say of each name; the nearest class counts."""
    out: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        names: list[str] = []
        _, found, section = inspect.cleandoc(parent.__dict__.get("__doc__") or "").partition("\nAttributes:\n")
        for line in section.split("\n") if found else []:
            if line and not line.startswith(" "):
                break  # the section is over
            head, colon, rest = line.strip().partition(": ")
            if colon and line.startswith("    ") and not line.startswith("     ") and " " not in head.replace(", ", ""):
                names = head.split(", ")
                out |= dict.fromkeys(names, rest)
            elif line.strip():
                out |= {name: f"{out[name]} {line.strip()}" for name in names}
    return out


def lines(name: str) -> int:
    """Lines of code that are an algorithm's own: no docstrings, comments, empty lines, or words about it.

    Its class; its rule of credit; and where it is the first of its file (but for presets.py), what else the file holds,
    other algorithms left out.

    Raises:
        KeyError: there is no such algorithm.
    """
    kind = ALGORITHMS[name]
    path = Path(inspect.getfile(kind))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    known = {k.__name__ for k in ALGORITHMS.values()}
    mine = classes[kind.__name__]
    whole = path.name != "presets.py" and mine is next(node for node in classes.values() if node.name in known)
    if whole:
        others = [node for key, node in classes.items() if key in known and node is not mine]
        count = len(_code(tree) - set().union(*(_span(node) for node in others)))
    else:
        count = len(_code(mine))
    if issubclass(kind, PolicyGradient) and kind.reads_advantage and kind.credit is PolicyGradient.credit:
        rule = CREDITS[kind().advantage]
        count += len(_code(ast.parse(inspect.getsource(rule))))
    return count


def _span(node: ast.ClassDef) -> set[int]:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return set(range(first, (node.end_lineno or node.lineno) + 1))


def _code(tree: ast.AST) -> set[int]:
    """Numbers of the lines that hold code."""
    found: set[int] = set()
    words: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            label = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in WORDS
            if text or label:
                words |= set(span)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                head = [d.lineno for d in node.decorator_list]
                found |= set(range(min([node.lineno, *head]), node.body[0].lineno))
            else:
                found |= set(_solid(node, span))
    return found - words


def _solid(node: ast.stmt, span: range) -> list[int]:
    """A compound statement's own lines; those of the statements within count for themselves."""
    inner = getattr(node, "body", None)
    return [node.lineno] if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt) else list(span)
