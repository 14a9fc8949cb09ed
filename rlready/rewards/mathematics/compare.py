"""Is an answer the gold? The kinds of answers, and what it means for two of a kind to be the same.

- Lists ("3, 5", "x = 3 or x = 5", what plus-minus stands for) are unordered, sets too, and a set ignores repetition.
  Brackets are ordered: pairs, vectors. A list without brackets may stand for a pair only as the gold, in its order.
- `(a, b)` is a pair or an open interval, as the other side demands; `[a, b]` and `(a, b)` are different.
- Intervals, unions and inequalities of one number are the same where they hold for the same numbers.
- Equations are the same up to a constant factor. Where the gold is solved (x = 5), so must the answer be.
- A name before the value ("x = 5", "f(x) = x + 1") may stand on either side; where both have one, it is the same one.
- A numeral with a base is only equal to one with that base; a clock time only to a clock time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rlready.rewards.mathematics.decide import Answer, Prover, equal
from rlready.rewards.mathematics.equations import same_congruence, same_equation, same_inequality
from rlready.rewards.mathematics.quantities import Rules, same_quantity
from rlready.rewards.mathematics.sets import Unordered, is_infinite, real_set, same_pieces
from rlready.rewards.mathematics.tree import Budget, Node, Unreadable, walk

_MAX_ITEMS = 60
_SETS = frozenset(("union", "inter", "minus", "within", "build", "empty"))
_NAMES = {
    "list": "a list", "set": "a set", "tuple": "a pair or interval", "rel": "an equation or inequality",
    "matrix": "a matrix", "word": "a word", "colon": "a time or ratio", "empty": "the empty set", "unit": "a quantity",
    "base": "a numeral with a base", "cong": "a congruence", "dots": "an ellipsis", "label": "a labelled choice",
}  # fmt: skip


class Comparer:
    """Compares trees under some rules and within one budget."""

    def __init__(self, rules: Rules, budget: Budget, prover: Prover | None = None) -> None:
        self.rules, self.budget, self.prover = rules, budget, prover

    def same(self, gold: Node, given: Node) -> Answer:
        """Whether an answer is the gold, and why.

        Raises:
            Unreadable: one of the two is put together in a way that means nothing.
            TooMuchError: the budget is spent.
        """
        self.budget.spend(3)
        if gold.op in _PLAIN and given.op in _PLAIN and not (_has_pm(gold) or _has_pm(given)):
            return self.scalar(gold, given)
        gold, given = _without_conditions(gold), _without_conditions(given)
        if given.op == "label" and gold.op != "label":
            given = Node("sym", (), given.value) if _is_letter(gold) else given.args[0]
        elif gold.op == "label":
            letter = given.value if given.op == "label" else given.value if _is_letter(given) else None
            return Answer(letter == gold.value, "the choice's letter") if letter else self.same(gold.args[0], given)
        if gold.op == "rel" or given.op == "rel":
            related = self._relations(gold, given)
            if related is not None:
                return related
        gold_items, given_items = _items(gold), _items(given)
        if gold_items is not None or given_items is not None:
            return self._several(gold, given, gold_items, given_items)
        return self._single(gold, given)

    # one value

    def _single(self, gold: Node, given: Node) -> Answer:
        if gold.op == "tuple" and given.op == "tuple":
            return self._tuples(gold, given)
        a, b = _matrix_of(gold), _matrix_of(given)
        if a is not None or b is not None:
            return self._matrices(gold, given, a, b)
        if gold.op in _SETS or given.op in _SETS:
            return self._real_sets(gold, given)
        if gold.op == "cong" and given.op == "cong":
            return same_congruence(gold, given, self.budget)
        if gold.op == "colon" or given.op == "colon":
            return self._colons(gold, given)
        if gold.op == "base" or given.op == "base":
            return Answer(gold.op == given.op and gold.value == given.value, "numerals with a base: value and base")
        if gold.op in ("word", "dots") or given.op in ("word", "dots"):
            alike = gold.op == given.op and gold.value == given.value
            return Answer(alike, "words" if alike else _mismatch(gold, given))
        if is_infinite(gold) or is_infinite(given):
            return Answer(is_infinite(gold) == is_infinite(given), "infinities, by their sign")
        if gold.op in _NO_SCALAR or given.op in _NO_SCALAR:
            return Answer(False, _mismatch(gold, given))
        return self.scalar(gold, given)

    def scalar(self, gold: Node, given: Node) -> Answer:
        """Two numbers or expressions."""
        return same_quantity(gold, given, self.rules, self.budget, self.prover)

    def _tuples(self, gold: Node, given: Node) -> Answer:
        if len(gold.args) != len(given.args):
            return Answer(False, f"{len(given.args)} parts in place of {len(gold.args)}")
        if len(gold.args) == 2 and gold.value != given.value:
            return Answer(False, "the brackets differ")
        nested = self._nested(gold, given)
        return nested or self.all(zip(gold.args, given.args, strict=True), "part by part")

    def _nested(self, gold: Node, given: Node) -> Answer | None:
        return None

    def _matrices(self, gold: Node, given: Node, a: list[list[Node]] | None, b: list[list[Node]] | None) -> Answer:
        a, b = a or _vector(gold, b), b or _vector(given, a)
        if a is None or b is None:
            return Answer(False, _mismatch(gold, given))
        if [len(r) for r in a] != [len(r) for r in b]:
            if not (_is_vector(a) and _is_vector(b)) or sum(map(len, a)) != sum(map(len, b)):
                return Answer(False, "the matrices have different shapes")
            if _matrix_of(gold) is not None and _matrix_of(given) is not None:
                return Answer(False, "a row is no column")
        flat = zip((x for r in a for x in r), (x for r in b for x in r), strict=True)
        return self.all(flat, "entry by entry")

    def _colons(self, gold: Node, given: Node) -> Answer:
        if gold.op == given.op:
            if gold.value == "" or given.value == "":
                return self._ratios(gold.args, given.args)
            return _clocks(gold, given)
        ratio, other = (gold, given) if gold.op == "colon" else (given, gold)
        if ratio.value == "" and len(ratio.args) == 2 and other.op not in _NO_SCALAR:
            return equal(Node("div", ratio.args), other, self.budget, self.prover)
        return Answer(False, _mismatch(gold, given))

    def _ratios(self, gold: Sequence[Node], given: Sequence[Node]) -> Answer:
        if len(gold) != len(given):
            return Answer(False, f"a ratio of {len(given)} in place of {len(gold)} parts")
        pairs = [(Node("mul", (gold[0], given[k])), Node("mul", (given[0], gold[k]))) for k in range(1, len(gold))]
        return self.all(pairs, "ratios up to a factor")

    def _real_sets(self, gold: Node, given: Node) -> Answer:
        if gold.op == given.op == "within":
            return Answer(gold.value == given.value, "sets of numbers, by name")
        if gold.op == given.op == "empty":
            return Answer(True, "both are empty")
        if not (_is_set_like(gold) and _is_set_like(given)):
            return Answer(False, _mismatch(gold, given))
        try:
            wanted, name = real_set(gold, self.budget)
        except Unordered as error:
            if gold.same(given):
                return Answer(True, "the same set")
            if gold.op in _SETS and given.op not in _SETS:
                return Answer(False, _mismatch(gold, given))
            return self._parts(gold, given) or Answer(None, f"the gold is a set that is not compared: {error}")
        try:
            found, other = real_set(given, self.budget)
        except Unordered as error:
            return Answer(False, f"the gold is a set of real numbers; in the answer {error}")
        if name and other and name != other:
            return Answer(False, f"it speaks of {other}, the gold of {name}")
        return Answer(same_pieces(wanted, found, self.budget), "sets of real numbers, by their intervals")

    def _parts(self, gold: Node, given: Node) -> Answer | None:
        """Unions of what is no interval of numbers (ends in symbols): the same parts in any order."""
        if gold.op != given.op or gold.op not in ("union", "inter"):
            return None
        a, b = _operands(gold, gold.op), _operands(given, given.op)
        return self._match(a, b, f"the parts of a {gold.op}, in any order") if len(a) == len(b) else None

    # relations

    def _relations(self, gold: Node, given: Node) -> Answer | None:
        """Equations and inequalities; None where, without their names, both are values of another kind."""
        wanted, found = _named(gold), _named(given)
        if wanted is None and gold.op == "rel" and _is_value_chain(gold):
            wanted = ("", gold.args)
        if found is None and given.op == "rel" and _is_value_chain(given):
            found = ("", given.args)
        if found is not None and len(found[1]) > 1:
            for left, right in zip(found[1], found[1][1:], strict=False):
                agree = self.same(left, right)
                if not agree.equal:
                    return Answer(agree.equal, "the parts of the answer's chain of equations are not equal")
        if wanted is not None and found is not None:
            return self._both_named(gold, given, wanted, found)
        if wanted is not None and given.op != "rel":
            return self.same(wanted[1][-1], given)
        if found is None and gold.op != "rel" and _is_asked(given) and not _symbols(gold):
            found = ("", given.args[1:])
        if found is not None and gold.op != "rel":
            return self.same(gold, found[1][-1])
        if gold.op == "rel" and given.op == "rel":
            return self._two_relations(gold, given, wanted)
        return self._as_sets(gold, given) or self._rounded(gold, given)

    def _both_named(
        self, gold: Node, given: Node, wanted: tuple[str, tuple[Node, ...]], found: tuple[str, tuple[Node, ...]]
    ) -> Answer:
        a, b = wanted[0], found[0]
        if not a or not b or a == b or ("(" in a + b and not (_symbols(gold) ^ _symbols(given)) - {a, b}):
            return self.same(wanted[1][-1], found[1][-1])
        if "(" not in a + b and (_symbols(wanted[1][-1]) or _symbols(found[1][-1])):
            return same_equation(gold, given, self.budget)
        return Answer(False, f"it says what {b} is, not what {a} is")

    def _two_relations(self, gold: Node, given: Node, wanted: tuple[str, tuple[Node, ...]] | None) -> Answer:
        as_sets = self._as_sets(gold, given)
        if as_sets is not None:
            return as_sets
        if "~" in gold.value + given.value:
            return self._rounded(gold, given) or Answer(False, "the approximations differ")
        if all(s == "=" for s in gold.value + given.value):
            if wanted is not None and not any(_symbols(v) for v in wanted[1]):
                return Answer(False, f"the gold says what {wanted[0]} is; the answer is an equation that is not solved")
            return same_equation(gold, given, self.budget)
        if gold.value == given.value == ("in",) or gold.value == given.value == ("notin",):
            return self.all(zip(gold.args, given.args, strict=True), "what is in which set")
        try:
            real_set(gold, self.budget)
        except Unordered:
            return same_inequality(gold, given, self.budget)
        return Answer(False, "the gold is a solved inequality; the answer is none")

    def _as_sets(self, gold: Node, given: Node) -> Answer | None:
        if not (_is_set_like(gold) and _is_set_like(given)):
            return None
        if all(n.op == "rel" and set(n.value) == {"="} for n in (gold, given)):
            return None
        try:
            wanted, name = real_set(gold, self.budget)
        except Unordered:
            return None
        try:
            found, other = real_set(given, self.budget)
        except Unordered:
            return None
        if name and other and name != other:
            return Answer(False, f"it speaks of {other}, the gold of {name}")
        return Answer(same_pieces(wanted, found, self.budget), "sets of real numbers, by their intervals")

    def _rounded(self, gold: Node, given: Node) -> Answer | None:
        """`sqrt(2) ~ 1.41`: the exact side, or the rounded one where it is the exact one rounded."""
        for node, other, flip in ((given, gold, False), (gold, given, True)):
            if node.op == "rel" and "~" in node.value:
                cut = node.value.index("~")
                exact = node.args[cut]
                verdict = self.same(other, exact) if not flip else self.same(exact, other)
                return verdict if verdict.equal else Answer(verdict.equal, "the exact side differs")
        return None

    # several values

    def _several(self, gold: Node, given: Node, wanted: list[Node] | None, found: list[Node] | None) -> Answer:
        if gold.op in ("list", "set", "rel", "tuple", *_SETS) and given.op in ("list", "set", "rel", *_SETS, "tuple"):
            as_sets = self._as_sets(gold, given) if "rel" in {a.op for a in (*gold.args, *given.args)} else None
            if as_sets is not None:
                return as_sets
        if wanted is not None and given.op == "tuple" and gold.op == "list":
            assigned = _assigned(wanted)
            items = [v for _, v in assigned] if assigned else wanted
            if len(items) == len(given.args) and given.value == ("(", ")"):
                return self.all(zip(items, given.args, strict=True), "the gold's list in its order")
        if found is not None and gold.op == "tuple" and gold.value == ("(", ")"):
            assigned = _assigned(found)
            if (
                assigned
                and len(assigned) == len(gold.args)
                and [n for n, _ in assigned] == sorted(n for n, _ in assigned)
            ):
                return self.all(zip(gold.args, (v for _, v in assigned), strict=True), "the parts by name")
            return Answer(False, "the gold has brackets, the answer is a list")
        if gold.op in _SETS or given.op in _SETS:
            return self._real_sets(gold, given)
        wanted, found = wanted or [gold], found or [given]
        if len(wanted) > _MAX_ITEMS or len(found) > _MAX_ITEMS:
            return Answer(None, f"it has more than {_MAX_ITEMS} parts")
        if gold.op == "set" or given.op == "set":
            wanted, found = self._distinct(wanted), self._distinct(found)
        a, b = _assigned(wanted), _assigned(found)
        if a and b and len({n for n, _ in a}) > 1:
            return self._assignments(dict(a), dict(b)) if len(a) == len(b) else Answer(False, "other names")
        wanted, found = _unnamed(wanted), _unnamed(found)
        if len(wanted) != len(found):
            return Answer(False, f"{len(found)} values in place of {len(wanted)}")
        if any(n.op == "dots" for n in (*wanted, *found)):
            return self.all(zip(wanted, found, strict=True), "the terms in their order")
        return self._match(wanted, found, "the values in any order")

    def _assignments(self, wanted: dict[str, Node], found: dict[str, Node]) -> Answer:
        if wanted.keys() != found.keys():
            return Answer(False, "it gives values to other names")
        return self.all(((v, found[k]) for k, v in wanted.items()), "name by name")

    def _distinct(self, items: list[Node]) -> list[Node]:
        out: list[Node] = []
        for item in items:
            if not any(self.same(item, other).equal for other in out):
                out.append(item)
        return out

    def _match(self, wanted: Sequence[Node], found: Sequence[Node], why: str) -> Answer:
        left = list(found)
        unsure = ""
        for item in wanted:
            for candidate in left:
                verdict = self.same(item, candidate)
                if verdict.equal:
                    left.remove(candidate)
                    break
                if verdict.equal is None:
                    unsure = verdict.why
            else:
                return Answer(None, unsure) if unsure else Answer(False, f"{why}: one of the gold's is missing")
        return Answer(True, why)

    def all(self, pairs: Iterable[tuple[Node, Node]], why: str) -> Answer:
        """True where every pair is the same, False where one is not, else undecided."""
        unsure: Answer | None = None
        for a, b in pairs:
            verdict = self.same(a, b)
            if verdict.equal is False:
                return Answer(False, f"{why}: {verdict.why}")
            if verdict.equal is None:
                unsure = unsure or verdict
        return unsure or Answer(True, why)


_PLAIN = frozenset(("num", "sym", "add", "mul", "div", "pow", "fn", "percent", "unit"))
_NO_SCALAR = (
    frozenset(("rel", "tuple", "set", "list", "word", "cong", "matrix", "dots", "colon", "base", "label")) | _SETS
)


def _has_pm(node: Node) -> bool:
    return node.op not in ("num", "sym") and any(
        n.op in ("pm", "matrix") or (n.op == "const" and n.value == "inf") for n in walk(node)
    )


def _mismatch(gold: Node, given: Node) -> str:
    a, b = _NAMES.get(gold.op, "a number or expression"), _NAMES.get(given.op, "a number or expression")
    return f"the gold is {a}, the answer {b}" if a != b else "they differ"


def _is_letter(node: Node) -> bool:
    return node.op == "sym" and len(str(node.value)) == 1 and str(node.value).isupper()


def _symbols(node: Node) -> set[str]:
    return {str(n.value) for n in walk(node) if n.op == "sym"}


def _named(node: Node) -> tuple[str, tuple[Node, ...]] | None:
    """`x = value = value`: the name and the values, where the name is not in them."""
    if node.op != "rel" or any(s != "=" for s in node.value) or node.args[0].op != "sym":
        return None
    name = str(node.args[0].value)
    return None if any(name in _symbols(v) for v in node.args[1:]) else (name, node.args[1:])


def _is_value_chain(node: Node) -> bool:
    return all(s == "=" for s in node.value) and not _symbols(node)


def _is_asked(node: Node) -> bool:
    """`a + b = 3`, `P(A) = 1/2`: letters alone on one side, a number on the other, as an answer to what they are."""
    if node.op != "rel" or node.value != ("=",) or _symbols(node.args[1]):
        return False
    parts = walk(node.args[0])
    if not any(p.op == "sym" for p in parts):
        return False
    called = node.args[0].op == "mul" and [p.op for p in node.args[0].args] == ["sym", "num"]  # f(2)
    return (
        called
        or all(p.op in ("sym", "add", "neg", "mul", "div") for p in parts)
        or (node.args[0].op == "fn" and node.args[0].value in ("sin", "cos", "tan", "abs") and len(parts) <= 4)
    )


def _is_set_like(node: Node) -> bool:
    return node.op in ("rel", "tuple", "set", "list") or node.op in _SETS


def _items(node: Node) -> list[Node] | None:
    """The values of a list or set, or those that plus-minus stands for; None for anything else."""
    if node.op in ("list", "set"):
        return [x for a in node.args for x in (_items(a) if _has_pm(a) and a.op != "set" else None) or [a]]
    if node.op == "rel" and set(node.value) == {"="} and _has_sign(node.args[-1]) and node.args[0].op == "sym":
        return [
            Node("rel", (*node.args[:-1], v), node.value)
            for v in (_signed(node.args[-1], 1), _signed(node.args[-1], -1))
        ]
    if node.op not in ("tuple", "rel", "matrix") and _has_sign(node):
        return [_signed(node, 1), _signed(node, -1)]
    return None


def _has_sign(node: Node) -> bool:
    return any(n.op == "pm" for n in walk(node))


def _signed(node: Node, sign: int) -> Node:
    args = tuple(_signed(a, sign) for a in node.args)
    if node.op != "pm":
        return Node(node.op, args, node.value) if args else node
    last = args[-1] if sign * node.value > 0 else Node("neg", (args[-1],))
    return last if len(args) == 1 else Node("add", (args[0], last))


def _assigned(items: Sequence[Node]) -> list[tuple[str, Node]]:
    """Names and values, where every item is one name with its value."""
    out = []
    for item in items:
        named = _named(item)
        if named is None or len(named[1]) != 1:
            return []
        out.append((named[0], named[1][0]))
    return out if len(out) > 1 else []


def _unnamed(items: list[Node]) -> list[Node]:
    """The values of "x = 3, x = 5", "x_1 = 3, x_2 = 5", "x = 3 or 5": names that are one but for a subscript go."""
    names = [_named(item) for item in items]
    stems = {n[0].partition("_")[0] for n in names if n}
    if (
        len(stems) != 1
        or names[0] is None
        or any(n is None and i.op == "rel" for n, i in zip(names, items, strict=True))
    ):
        return items
    return [n[1][-1] if n else item for n, item in zip(names, items, strict=True)]


def _without_conditions(node: Node) -> Node:
    """`x = 2 pi k, k in Z` without the condition on k."""
    if node.op != "list":
        return node
    kept = [a for a in node.args if not (a.op == "rel" and a.value == ("in",) and a.args[1].op == "within")]
    if len(kept) == len(node.args) or not kept:
        return node
    return kept[0] if len(kept) == 1 else Node("list", tuple(kept), node.value)


def _operands(node: Node, op: str) -> list[Node]:
    return [x for a in node.args for x in _operands(a, op)] if node.op == op else [node]


def _matrix_of(node: Node) -> list[list[Node]] | None:
    """The entries of a matrix, also of a number times a matrix, and of brackets in brackets."""
    if node.op == "matrix":
        return [list(r.args) for r in node.args]
    if node.op == "tuple" and all(a.op == "tuple" and a.value == ("[", "]") for a in node.args):
        return [list(a.args) for a in node.args]
    if node.op == "neg":
        inner = _matrix_of(node.args[0])
        return inner and [[Node("neg", (x,)) for x in r] for r in inner]
    if node.op == "mul":
        left, right = _matrix_of(node.args[0]), _matrix_of(node.args[1])
        if (left is None) == (right is None):
            return None
        factor = node.args[0] if right is not None else node.args[1]
        return [[Node("mul", (factor, x)) for x in r] for r in (left or right or [])]
    return None


def _vector(node: Node, other: list[list[Node]] | None) -> list[list[Node]] | None:
    if node.op == "tuple" and other is not None and _is_vector(other):
        return [[a] for a in node.args]
    return None


def _is_vector(rows: list[list[Node]]) -> bool:
    return len(rows) == 1 or all(len(r) == 1 for r in rows)


def _clocks(gold: Node, given: Node) -> Answer:
    a, b = ([int(Fraction(x.value)) for x in n.args] for n in (gold, given))
    a, b = a + [0] * (3 - len(a)), b + [0] * (3 - len(b))
    halves = (gold.value, given.value)
    if halves == ("clock", "clock"):
        return Answer(a == b, "clock times")
    if "clock" in halves and given.value == "clock" and b[0] <= 12:
        return Answer(False, "the gold says a.m. or p.m., the answer does not")
    times = []
    for parts, half in ((a, gold.value), (b, given.value)):
        hour = parts[0] % 12 + (12 if half == "p" else 0) if half in ("a", "p") else parts[0]
        times.append((hour, *parts[1:]))
    if gold.value == "clock" and a[0] <= 12:  # the gold leaves open which half of the day
        return Answer((times[0][0] % 12, *times[0][1:]) == (times[1][0] % 12, *times[1][1:]), "clock times")
    return Answer(times[0] == times[1], "clock times")


def unreadable(node: Node) -> str:
    """What a node is, in words."""
    return _NAMES.get(node.op, "a number or expression")


__all__ = ["Comparer", "Unreadable"]
