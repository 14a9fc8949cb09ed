"""The second half of the grammar: numbers, symbols, functions, brackets, roots, matrices."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from rlready.rewards.mathematics.tokens import Token
from rlready.rewards.mathematics.tree import Node, Unreadable, num
from rlready.rewards.mathematics.words import CONSTANTS, FUNCTIONS

if TYPE_CHECKING:
    from rlready.rewards.mathematics.parse import Parser

_CLOSE = {"(": ")", "[": "]", "\\{": "\\}", "{": "}", "⟨": "⟩", "⌊": "⌋", "⌈": "⌉"}
_NAMES = {"ln": "log", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_MANY = frozenset(("gcd", "lcm", "max", "min"))
_TRIG = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
_MATRICES = re.compile(r"\\begin\{([pbBv]?matrix|smallmatrix|array)\*?\}")


def atom(p: Parser) -> Node:
    """One number, symbol, bracket or call.

    Raises:
        Unreadable: nothing of the kind stands there.
    """
    token = p.now
    p.pos += 1
    if token.kind == "num":
        return num(token.value or 0)
    if token.kind == "sym":
        return _symbol(p, token)
    if token.kind == "word":
        return _word(p, token)
    if token.kind == "frac":
        return _fraction(p, token)
    if token.kind == "env":
        return _matrix(p, token)
    if token.kind == "cur":
        if p.money is not None or p.depth > 2:
            raise Unreadable("a currency sign is out of place")
        p.money = {"\\$": "usd", "€": "eur", "£": "gbp"}.get(token.text, "yen")
        return p.power()
    if token.kind == "op":
        return _bracket(p, token)
    p.pos -= 1
    raise Unreadable(f"something is missing before {token.text!r}")


def _symbol(p: Parser, token: Token) -> Node:
    name = token.text
    if p.at("_"):
        if token.upright and not token.space and name.isupper():
            raise Unreadable("a subscript is out of place")
        p.pos += 1
        name += "_" + _subscript(p)
    if p.now.kind == "op" and p.now.text.startswith("'"):
        name += p.now.text
        p.pos += 1
    if name in ("e", "i"):
        return Node("const", (), name)
    return Node("sym", (), name)


def _subscript(p: Parser) -> str:
    if not p.take("{"):
        token = p.now
        if token.kind not in ("num", "sym", "word"):
            raise Unreadable("a subscript is missing")
        p.pos += 1
        return token.text
    out = ""
    while not p.at("}"):
        if p.now.kind == "end" or p.at("{"):
            raise Unreadable("a subscript is not closed")
        out += p.now.text
        p.pos += 1
    p.pos += 1
    return out


def _word(p: Parser, token: Token) -> Node:
    name = token.text
    if name in CONSTANTS:
        return Node("const", (), CONSTANTS[name])
    if name.startswith("set "):
        return _number_set(p, name[4:])
    if name not in FUNCTIONS:
        if not token.upright and len(name) <= 3 and name.isascii() and name.isalpha() and name.islower():
            letters = [Node("const" if c in "ei" else "sym", (), c) for c in name]
            if name not in ("and", "or", "in", "the", "is"):
                product = letters[0]
                for letter in letters[1:]:
                    product = Node("mul", (product, letter))
                return product
        raise Unreadable(f"the word {name!r} is no mathematics")
    if name in ("sqrt", "cbrt"):
        radicand = _radicand(p, plain=True)
        return Node("fn", (radicand,), "sqrt") if name == "sqrt" else Node("fn", (radicand, num(3)), "root")
    return _call(p, name)


def _number_set(p: Parser, name: str) -> Node:
    if p.take("^"):
        sign = p.now.text if p.at("+", "-", "*") else ""
        if p.at("{"):
            p.pos += 1
            sign = p.now.text
            p.pos += 1
            p.need("}")
        elif sign:
            p.pos += 1
        name += sign or "?"
    if "?" in name or name[1:] not in ("", "+", "-"):
        raise Unreadable("a set of numbers has an exponent that is not known")
    return Node("within", (), name)


def _call(p: Parser, name: str) -> Node:
    base: Node | None = None
    power: Node | None = None
    while p.at("_", "^"):
        if p.take("_"):
            if not name.startswith("log"):
                raise Unreadable(f"{name} has a subscript")
            base = _base_of_log(p)
        else:
            p.pos += 1
            power = p.exponent()
    if name in _MANY:
        p.need("(")
        items = p.listed((")",))
        p.need(")")
        return _raised(Node("fn", items.args if items.op == "list" else (items,), name), power)
    argument = _argument(p)
    if name in ("log", "lg", "ln"):
        node = Node("fn", (argument,) if name == "ln" else (argument, base or num(10)), "log")
    elif name == "exp":
        node = Node("pow", (Node("const", (), "e"), argument))
    elif power is not None and name in _TRIG and power.same(Node("neg", (num(1),))):
        return Node("fn", (argument,), "arc" + name)
    else:
        node = Node("fn", (argument,), _NAMES.get(name, name))
    return _raised(node, power)


def _raised(node: Node, power: Node | None) -> Node:
    return node if power is None else Node("pow", (node, power))


def _base_of_log(p: Parser) -> Node:
    token = p.now
    if token.kind == "num" and token.text.isdigit():
        p.pos += 1
        follows = p.now.kind in ("num", "sym", "frac") or p.at("(", "{", "|") or p.now.kind == "word"
        if len(token.text) > 1 and not follows:  # \log_28: the base is one digit
            rest = token.text[1:]
            p.tokens.insert(p.pos, Token("num", rest, True, False, Fraction(rest)))
            return num(int(token.text[0]))
        return num(int(token.text))
    return p.group() if p.at("{") else atom(p)


def _argument(p: Parser) -> Node:
    """What a function is applied to: a bracket, or the factors up to the next sign, bracket or function."""
    if p.at("(", "[", "{", "|"):
        opening = p.now.text
        node = atom(p)
        if node.op in ("tuple", "list", "set") or (opening == "[" and node.op == "rel"):
            raise Unreadable("a function has several arguments")
        return node
    if p.now.kind == "word" and p.now.text in FUNCTIONS:
        return p.power()
    sign = p.sign()
    node = p.power()
    while p.now.kind in ("num", "sym", "frac") or (p.now.kind == "word" and p.now.text == "pi"):
        if p.now.upright:
            break
        if p.now.kind == "num" and p.tokens[p.pos - 1].kind == "num":
            raise Unreadable("two numbers stand side by side")
        node = Node("mul", (node, p.power()))
    return Node("neg", (node,)) if sign == "-" else node


def _fraction(p: Parser, token: Token) -> Node:
    if token.text == "sqrt":
        index = None
        if p.take("["):
            index = p.expression()
            p.need("]")
        radicand = _radicand(p, plain=False)
        return Node("fn", (radicand,), "sqrt") if index is None else Node("fn", (radicand, index), "root")
    top, bottom = _piece(p), _piece(p)
    return Node("div", (top, bottom)) if token.text == "frac" else Node("fn", (top, bottom), "binom")


def _piece(p: Parser) -> Node:
    """An argument of a fraction: a braced group, or one token; of a number one digit."""
    if p.at("{"):
        return p.group()
    token = p.now
    if token.kind == "num" and token.text.isdigit():
        if len(token.text) == 1:
            p.pos += 1
            return num(int(token.text))
        rest = token.text[1:]
        p.tokens[p.pos] = Token("num", rest, False, False, Fraction(rest))
        return num(int(token.text[0]))
    if token.kind in ("sym", "word") and not p.at("_"):
        p.pos += 1
        return _symbol(p, token) if token.kind == "sym" else _word(p, token)
    raise Unreadable("a fraction lacks a part")


def _radicand(p: Parser, *, plain: bool) -> Node:
    if p.at("{"):
        return p.group()
    if p.at("("):
        node = atom(p)
        if node.op in ("tuple", "list"):
            raise Unreadable("a root has several arguments")
        return node
    token = p.now
    if token.kind == "num" and (plain or len(token.text) == 1):
        p.pos += 1
        return num(token.value or 0)
    if token.kind in ("sym", "frac") or (token.kind == "word" and token.text == "pi"):
        return atom(p)
    raise Unreadable("a root has no radicand, or one of several digits without braces")


def _bracket(p: Parser, token: Token) -> Node:
    opening = token.text
    if opening == "dots":
        return Node("dots")
    if opening == "empty":
        return Node("empty")
    if opening in ("|", "‖"):
        p.bars += 1
        node = p.expression()
        p.bars -= 1
        p.need(opening)
        return Node("fn", (node,), "abs")
    if opening == "]":  # ]0,1[
        return _reversed(p)
    if opening not in _CLOSE:
        p.pos -= 1
        raise Unreadable(f"something is missing before {opening!r}")
    bars, p.bars = p.bars, int(opening in ("{", "\\{"))
    p.deeper()
    node = _inside(p, opening)
    p.depth -= 1
    p.bars = bars
    return node


def _inside(p: Parser, opening: str) -> Node:
    closing = _CLOSE[opening]
    if opening == "\\{" and p.take("\\}"):
        return Node("empty")
    items = p.listed((closing, ")", "]"))
    if opening == "\\{" and p.at("|", ":"):
        p.pos += 1
        condition = p.listed((closing,))
        p.need(closing)
        return Node("build", (items, condition))
    inner = items.args if items.op == "list" else (items,)
    if opening in ("(", "["):
        close = p.now.text
        p.need(")", "]")
        if len(inner) == 1 and close == closing:
            return inner[0]
        if len(inner) == 1:
            raise Unreadable("brackets do not match")
        return Node("tuple", inner, (opening, close))
    p.need(closing)
    if opening == "⌊":
        return Node("fn", (_single(inner),), "floor")
    if opening == "⌈":
        return Node("fn", (_single(inner),), "ceil")
    if opening == "⟨":
        return Node("tuple", inner, ("(", ")"))
    if opening == "{" and len(inner) == 1:
        return inner[0]
    return Node("set", inner)


def _single(inner: tuple[Node, ...]) -> Node:
    if len(inner) != 1:
        raise Unreadable("brackets hold several parts")
    return inner[0]


def _reversed(p: Parser) -> Node:
    mirrored, p.mirrored = p.mirrored, True
    low = p.expression()
    p.need(",", ";")
    high = p.expression()
    p.mirrored = mirrored
    close = p.now.text
    p.need("[", "]")
    return Node("tuple", (low, high), ("(", ")" if close == "[" else "]"))


def _matrix(p: Parser, token: Token) -> Node:
    kind = _MATRICES.fullmatch(token.text)
    if kind is None or kind.group(1) == "vmatrix":
        raise Unreadable(f"{token.text} is not known")
    p.deeper()
    rows: list[Node] = []
    row: list[Node] = []
    while True:
        if p.now.kind == "env":
            break
        row.append(p.expression())
        if p.take("&"):
            continue
        rows.append(Node("row", tuple(row)))
        row = []
        if not p.take("row"):
            break
    if p.now.text != token.text.replace("begin", "end") or row:
        raise Unreadable("a matrix is not closed")
    p.pos += 1
    p.depth -= 1
    if not rows or len({len(r.args) for r in rows}) != 1:
        raise Unreadable("the rows of a matrix are not of one length")
    return Node("matrix", tuple(rows))
