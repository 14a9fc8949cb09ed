"""One answer's text read as a whole: currency, names, labels, clock times and words around the mathematics itself."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rlready.rewards.mathematics.parse import Parser, numeral
from rlready.rewards.mathematics.tokens import MAX_CHARS, closing, plain, same_text, tokenise
from rlready.rewards.mathematics.tree import Node, Unreadable, num
from rlready.rewards.mathematics.words import ANSWERS

_WHOLE_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_CUE = re.compile(r"(?:the\s+)?(?:final\s+)?answer\s*(?:is\s*:?|[:=])\s*(?=\S)", re.IGNORECASE)
_HEDGE = re.compile(r"(?:exactly|approximately|about|only|just)\s+(?=\S)", re.IGNORECASE)
_OPTION = re.compile(r"(?:option|choice)\s+\(?([A-Z])\)?", re.IGNORECASE)
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
_LABEL = re.compile(r"\(([A-J])\)[\s:.]+(\S.*)", re.DOTALL)
_NAMED = re.compile(r"(?:[A-Za-z][A-Za-z ]*\b)?[A-Za-z]{3,}\s*=")
_CALL = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?'*)\s*(?:\\left)?\(\s*([a-z](?:\s*,\s*[a-z])*)\s*(?:\\right)?\)\s*=(?!=)")
_HEX = re.compile(r"\(?([0-9A-Fa-f]*[A-Fa-f][0-9A-Fa-f]*)\)?_\{?\s*(\d\d)\s*\}?")
_BASE_WORD = re.compile(r"([0-9A-Za-z]+)\s*(?:\(?\s*(?:in\s+)?base[- ]\s*(\d+)\s*\)?)")
_MATHS_WORDS = frozenset(["sin", "cos", "tan", "log", "lim", "max", "min", "gcd", "lcm", "exp", "sqrt", "and"])


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text says.

    Attributes:
        text: the text for comparing as text.
        node: the tree; None where it cannot be read.
        why: what is in the way then.
        listed: the other reading of `1,234`: a list.
    """

    text: str
    node: Node | None
    why: str = ""
    listed: Node | None = None


def read(text: str) -> Reading:
    """Read an answer; never raises. Readings of short texts are remembered."""
    return _remembered(text) if len(text) <= 200 else _read(text)


def _read(text: str) -> Reading:
    if len(text) > MAX_CHARS:
        return Reading(" ".join(text.split()), None, f"it is longer than {MAX_CHARS} characters")
    bare = same_text(text)
    try:
        body = _unwrapped(plain(text))
        node = _special(body, bare)
        if node is not None:
            return Reading(bare, node)
        node = _expression(body, commas=True)
        listed = None
        if re.search(r"\d,\d{3}", body):
            try:
                listed = _expression(body, commas=False)
            except Unreadable:
                listed = None
        return Reading(bare, node, "", listed if listed is not None and listed.op == "list" else None)
    except Unreadable as error:
        return Reading(bare, None, str(error))
    except (ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
        return Reading(bare, None, f"it cannot be read ({type(error).__name__})")


_remembered = functools.lru_cache(maxsize=4096)(_read)


def _unwrapped(text: str) -> str:
    """Without what only surrounds an answer: bold, boxes, math signs, a full stop, "the answer is"."""
    for _ in range(4):
        before = text
        text = text.strip().strip("`").strip()
        if text.startswith("**") and text.endswith("**") and len(text) > 4:
            text = text[2:-2]
        for opening, close in (("\\[", "\\]"), ("\\(", "\\)")):
            if text.startswith(opening) and text.endswith(close) and text.count(opening) == 1:
                text = text[2:-2]
        box = _WHOLE_BOX.match(text)
        if box and closing(text, box.end()) == len(text) - 1:
            text = text[box.end() : -1]
        if text.endswith((".", ",", ";")) and not text.endswith(("...", "\\,", "\\;")):
            text = text[:-1]
        text = (
            _HEDGE.sub("", _CUE.sub("", text, count=1) if _CUE.match(text) else text, count=1)
            if text[:1].isalpha()
            else text
        )
        if text == before:
            break
    return _currency(text)


def _currency(text: str) -> str:
    """Dollar signs that are currency, as a command: a lone one, or those directly before amounts with words between."""
    bare = len(re.findall(r"(?<!\\)\$", text))
    if not bare:
        return text
    between = re.search(r"(?<!\\)\$([^$]*)(?<!\\)\$", text)
    if bare % 2 == 1 or (between and re.search(r"\d\s*,?\s+(?:and|or)\s", between.group(1))):
        return re.sub(r"(?<!\\)\$(?=\s*[\d.])", r"\\$", text)
    return text


def _special(body: str, bare: str) -> Node | None:
    """Answers that are no expressions: words, times, ratios, numerals with letters, labelled choices."""
    word = ANSWERS.get(bare)
    if word is not None:
        return (
            Node("empty") if word == "empty" else Node("within", (), "R") if word == "reals" else Node("word", (), word)
        )
    flat = _WRAPPED.sub(r"\1", body).replace("\\:", ":").replace("{:}", ":").strip().strip("$").strip()
    option = _OPTION.fullmatch(flat)
    if option:
        return Node("sym", (), option.group(1).upper())
    if ":" in flat:
        clock = _CLOCK.fullmatch(" ".join(re.sub(r"\\[ ,;!]|~", " ", flat).split()))
        if clock:
            hours, minutes, seconds, half = clock.groups()
            parts = tuple(num(int(p)) for p in (hours, minutes, seconds) if p is not None)
            if int(minutes) < 60 and int(hours) < 25:
                return Node("colon", parts, half.lower() if half else "clock")
            return Node("colon", parts, "")
        if "{" not in flat.replace("\\frac{", "").replace("\\sqrt{", "") and "|" not in flat:
            sides = flat.split(":")
            return Node("colon", tuple(_expression(s, commas=True) for s in sides), "")
    if "_" in flat:
        letters = _HEX.fullmatch(flat)
        if letters and int(letters.group(2)) > 10 and (len(letters.group(1)) > 1):
            return numeral(letters.group(1), int(letters.group(2)))
    if "base" in flat:
        spelled = _BASE_WORD.fullmatch(" ".join(flat.replace("\\", " ").split()))
        if spelled:
            return numeral(spelled.group(1), int(spelled.group(2)))
    label = _LABEL.fullmatch(flat) if flat[:1] == "(" else None
    if label:
        return _labelled(label.group(1), label.group(2), body)
    return None


def _labelled(letter: str, rest: str, body: str) -> Node | None:
    r"""`(B) 12`, or `\textbf{(B) } 12`: a choice's letter and what it says."""
    content = re.sub(r"\\text(?:bf|rm)?\s*\{\s*\([A-J]\)\s*[:.]?\s*\}", "", body)
    content = content if content != body else rest
    if re.match(r"[-+*/^=<>!]", content.strip()):
        return None
    try:
        inner = _expression(content, commas=True)
    except Unreadable:
        inner = Node("word", (), same_text(content))
    return Node("label", (inner,), letter)


def _expression(text: str, *, commas: bool) -> Node:
    name = ""
    call = _CALL.match(text.strip())
    if call:
        name = f"{call.group(1)}({call.group(2)})"
        text = text.strip()[call.end() :]
    else:
        flat = _WRAPPED.sub(r"\1", text[: text.find("=") + 1]).strip() if "=" in text else ""
        named = _NAMED.fullmatch(flat) if flat and "\\" not in flat else None
        if named and not _MATHS_WORDS & set(flat.lower().split()):
            text = text[text.find("=") + 1 :]
    node = Parser(tokenise(text, commas=commas)).answer()
    if not name:
        return node
    function = Node("sym", (), name)
    if node.op == "rel" and all(s == "=" for s in node.value):
        return Node("rel", (function, *node.args), ("=", *node.value))
    if node.op in ("rel", "list"):
        raise Unreadable("a function is said to be several things")
    return Node("rel", (function, node), ("=",))
