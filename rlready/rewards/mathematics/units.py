"""What stands behind a number: units, nouns, percent and scales in words."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rlready.rewards.mathematics.tokens import Token
from rlready.rewards.mathematics.tree import Node, Unreadable, num
from rlready.rewards.mathematics.words import SCALES, STOP, Unit, unit_named

_ENDS = frozenset((",", ";", "=", "<", ">", "<=", ">=", "!=", "~", ")", "]", "\\}", "or", "and", "cup"))
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_MAX_WORDS = 5


def parse_unit(node: Node, tokens: list[Token], pos: int) -> tuple[Node, int]:
    """Read a unit from `pos` on.

    Returns:
        The number with its unit, percent sign or scale, and the position behind it.

    Raises:
        Unreadable: the words are none of these.
    """
    first = tokens[pos]
    if (
        first.kind == "word"
        and first.text in ("and", "or", "in")
        and not (first.text == "in" and _is_inch(tokens, pos))
    ):
        return node, pos
    while first.kind == "word" and first.text.lower().rstrip("s") in SCALES:
        node = Node("mul", (node, num(SCALES[first.text.lower().rstrip("s")])))
        pos += 1
        if pos >= len(tokens):
            return node, pos
        first = tokens[pos]
    if first.kind == "word" and first.text.lower() in ("percent", "percentage"):
        return Node("percent", (node,)), pos + 1
    if first.kind == "deg":
        name = {"C": "°c", "F": "°f"}.get(first.text, "degree")
        unit = unit_named(name)
        return Node("unit", (node,), unit), pos + 1
    if _ends(tokens, pos):
        return node, pos
    return _words(node, tokens, pos)


def _ends(tokens: list[Token], pos: int) -> bool:
    return pos >= len(tokens) or (tokens[pos].kind in ("op", "word") and tokens[pos].text in _ENDS)


def _is_inch(tokens: list[Token], pos: int) -> bool:
    after = tokens[pos + 1] if pos + 1 < len(tokens) else None
    return after is None or (after.kind == "op" and after.text in ("^", ",", ")", "or", "and"))


def _words(node: Node, tokens: list[Token], pos: int) -> tuple[Node, int]:
    known: list[Unit] = []
    nouns: list[str] = []
    sign, power, count = 1, 1, 0
    while pos < len(tokens) and (not _ends(tokens, pos) or (tokens[pos].text == "in" and _is_inch(tokens, pos))):
        token = tokens[pos]
        word = token.text
        pos += 1
        count += 1
        if count > _MAX_WORDS * 2:
            raise Unreadable("many words stand behind a number")
        if token.kind == "op" and word in ("/", "*"):
            sign = -1 if word == "/" else sign
            continue
        if word == "per":
            sign = -1
            continue
        if word.lower() in _POWERS:
            power = _POWERS[word.lower()]
            continue
        if token.kind not in ("word", "sym"):
            raise Unreadable(f"{word!r} stands behind a number")
        unit = unit_named(word)
        power, pos = _exponent(tokens, pos, power)
        if unit is not None:
            known.append(_raise(unit, sign * power))
        elif word.lower() in STOP or len(word) < 2:
            raise Unreadable(f"{word!r} stands behind a number")
        else:
            nouns.append(word.lower())
        power = 1
    if len(nouns) > _MAX_WORDS:
        raise Unreadable("many words stand behind a number")
    if nouns or not known:
        if not nouns:
            raise Unreadable("a unit is not complete")
        return Node("unit", (node,), Unit(noun=" ".join(nouns))), pos
    total = known[0]
    for unit in known[1:]:
        total = _times(total, unit)
    return Node("unit", (node,), total), pos


def _exponent(tokens: list[Token], pos: int, power: int) -> tuple[int, int]:
    texts = [t.text for t in tokens[pos : pos + 5]]
    shapes: tuple[tuple[Any, ...], ...] = (("^", "{", "-", 0, "}"), ("^", "{", 0, "}"), ("^", "-", 0), ("^", 0))
    for shape in shapes:
        if len(texts) < len(shape):
            continue
        digit = ""
        for want, got in zip(shape, texts, strict=False):
            if want == 0 and got in ("1", "2", "3", "4"):
                digit = got
            elif want != got:
                break
        else:
            return (-1 if "-" in shape else 1) * int(digit), pos + len(shape)
    return power, pos


def _raise(unit: Unit, power: int) -> Unit:
    return Unit(tuple((d, p * power) for d, p in unit.dims), unit.factor**power)


def _times(a: Unit, b: Unit) -> Unit:
    dims = dict(a.dims)
    for d, p in b.dims:
        dims[d] = dims.get(d, 0) + p
    return Unit(tuple(sorted((d, p) for d, p in dims.items() if p)), Fraction(a.factor * b.factor))
