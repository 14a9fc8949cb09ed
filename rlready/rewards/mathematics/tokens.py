r"""From text to tokens: LaTeX and plain text alike, with Unicode's signs read as what they mean.

Blank space is no token, but each token knows whether some stood before it: `1 1/2` is a mixed number and `11/2` is
not. What stands in `\text{...}` or `\mathrm{...}` is upright: its words are words and never products of letters.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from rlready.rewards.mathematics.tree import Unreadable
from rlready.rewards.mathematics.words import CONSTANTS, FUNCTIONS, PROSE, STOP, unit_named

MAX_CHARS = 2000
_MAX_DIGITS = 4000
_MAX_EXPONENT = 5000
_MAX_NESTING = 8

_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUB = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_VULGAR = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
_SIGNS = {
    "\u2212": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": r"\div ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ", "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ",
    "∅": r"\emptyset ", "Ø": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "√": r" sqrt ", "∛": r" cbrt ",
    "°": r"\degree ", "′": "'", "…": r"\ldots ", "⟨": r"\langle ", "⟩": r"\rangle ", "∨": r"\lor ", "∧": r"\land ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
    "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "∣": "|", "，": ", ", "：": ":", "；": ";", "、": ", ",
    "（": "(", "）": ")", "。": ".", "％": "%", "∼": "~", "\u2061": "", "\u200b": "", "\ufeff": "", "⁄": "/", "∕": "/",
}  # fmt: skip
_GREEK = {
    chr(code): f"\\{unicodedata.name(chr(code)).split()[-1].lower()} " for code in range(0x3B1, 0x3CA) if code != 0x3C2
}
_TABLE = str.maketrans({**_SIGNS, **_GREEK, **{k: rf"\frac{{{a}}}{{{b}}}" for k, (a, b) in _VULGAR.items()}})

_SEP = r"(?:,\\!|\\,|\{,\}|,)"
_WORDY = r"text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|sf|tt|normal)|mbox|hbox|operatorname\*?|rm"
_PLAINLY = r"math(?:bf|it|cal|scr|frak)|boldsymbol|bm|pmb"
_TOKEN = re.compile(
    rf"""(?P<space>(?:[\s~]|\\[,;:!>\ ]|\\q?quad(?![a-z])|\\(?:left|right)\.|\\(?:left|right|middle|[bB]igg?[lrm]?|
        displaystyle|textstyle|limits|nolimits|phantom\{{[^{{}}]*\}})(?![a-zA-Z])|\$)+)
    |(?P<repeat>\d*\.\d*\\overline\s*\{{?\d+\}}?)
    |(?P<num>(?:\d{{1,3}}(?:(?P<sep>{_SEP})\d{{3}})(?:(?P=sep)\d{{3}})*(?!\d)(?:\.\d+)?
        |\d{{1,3}}(?:\ \d{{3}})+(?![\d/.]|\ ?\d|\s*\\[dt]?frac)|\d+\{{,\}}\d+|\d+(?:\.(?!\.)\d*)?|\.\d+)
        (?:[eE][+-]?\d+(?![\d.A-Za-z]))?)
    |(?P<wordy>\\(?:{_WORDY})\s*\{{)|(?P<plainly>\\(?:{_PLAINLY})\s*\{{)|(?P<bb>\\mathbb\s*\{{?\s*[RZNQC]\s*\}}?)
    |(?P<deco>\\(?:overline|vec|hat|bar|widehat|overrightarrow|tilde|dot)\s*\{{[A-Za-z]{{1,3}}\}})
    |(?P<deg>\^\s*\{{?\s*\\circ\s*\}}?(?:\s*(?:\\(?:text|mathrm)\s*\{{\s*)?[CF](?![a-zA-Z])\s*\}}?)?
        |\\(?:degree|circ)(?![a-zA-Z])(?:\s*[CF](?![a-zA-Z]))?)
    |(?P<prime>\^\s*\{{?\s*(?:\\prime\s*)+\}}?|'+)
    |(?P<env>\\(?:begin|end)\s*\{{[a-z]+\*?\}}(?:\s*\{{[clr|\ ]*\}})?)
    |(?P<cur>\\\$|[€£¥])
    |(?P<cmd>\\[A-Za-z]+|\\.)
    |(?P<letters>[^\W\d_]+)
    |(?P<op>\.\.\.|<=|>=|=<|\ !=|\*\*|[-+*/^_()\[\]{{}}|<>=,;:!%&])""",
    re.VERBOSE | re.DOTALL,
)
_COMMANDS = {
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=",
    "geq": ">=", "geqslant": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=", "approx": "~", "simeq": "~",
    "equiv": "≡", "in": "in", "notin": "notin", "pm": "±", "mp": "∓", "cup": "cup", "cap": "cap", "setminus": "\\",
    "backslash": "\\", "emptyset": "empty", "varnothing": "empty", "ldots": "dots", "dots": "dots", "cdots": "dots",
    "{": "\\{", "}": "\\}", "lbrace": "\\{", "rbrace": "\\}", "langle": "⟨", "rangle": "⟩", "lor": "or", "vee": "or",
    "land": "and", "wedge": "and", "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "|": "‖", "lfloor": "⌊",
    "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "%": "%", "\\": "row", "colon": ":", "lbrack": "[", "rbrack": "]",
    "lparen": "(", "rparen": ")", "&": "&", "pmod": "pmod", "bmod": "bmod", "mod": "bmod",
}  # fmt: skip
_FRACS = frozenset(("frac", "dfrac", "tfrac", "cfrac", "binom", "dbinom", "tbinom", "sqrt"))
_GREEK_NAMES = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "omicron",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Pi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "hbar",
    ]
)
_ROMAN = re.compile(r"[IVX]{2,}")
_NAME = re.compile(r"[A-Z][a-z]*[aeiouy][a-z]*")
_KEYWORDS = frozenset(("and", "or", "in", "mod"))


@dataclass(slots=True)
class Token:
    """One token.

    Attributes:
        kind: "num", "sym", "word", "op", "frac", "env", "cur" or "deg".
        text: the number's text, the letter, the word, the sign.
        space: whether blank space stands before it.
        upright: whether it stands in a text command.
        value: of a number.
    """

    kind: str
    text: str
    space: bool = False
    upright: bool = False
    value: Fraction | None = None


def plain(text: str) -> str:
    """The text with Unicode's mathematical signs as LaTeX, its digits as ASCII, and blank space at the ends gone."""
    if text.isascii():
        return text.strip()
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: "^{" + m.group().translate(_SUPER) + "}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m.group().translate(_SUB) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
    text = re.sub(r"[^\x00-\x7f]", lambda m: str(unicodedata.digit(m.group(), m.group())), text)
    return text.strip()


@functools.lru_cache(maxsize=2048)
def same_text(text: str) -> str:
    """The text for comparing as text: its wrappers, LaTeX spacing and letter case gone, blank space joined."""
    text = plain(text[:MAX_CHARS]) + text[MAX_CHARS:]
    text = re.sub(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[,;:! ]|\$|\\q?quad(?![a-z])", " ", text)
    text = re.sub(rf"\\(?:{_WORDY}|{_PLAINLY})\s*\{{([^{{}}]*)\}}", r" \1 ", text)
    return " ".join(text.casefold().split()).strip(" .").strip()


def number(text: str) -> Fraction:
    """The value of a number's text.

    Raises:
        Unreadable: it is too long, or its exponent too large, to be worth reading.
    """
    if text.isdigit() and len(text) <= _MAX_DIGITS:
        return Fraction(int(text))
    if "{,}" in text and not re.search(r"(?<!\d)\d{1,3}(?:\{,\}\d{3})+(?!\d)", text):
        text = text.replace("{,}", ".")  # a decimal comma
    text = re.sub(rf"{_SEP}| ", "", text)
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > _MAX_DIGITS or (exponent and (len(exponent) > 6 or abs(int(exponent)) > _MAX_EXPONENT)):
        raise Unreadable("a number is too long")
    return Fraction(text)


def _repeating(text: str) -> Fraction:
    """0.1 with 6 repeated: the digits once with the period less once without, over as many nines and zeros."""
    whole, fixed, period = (
        re.sub(r"\\overline|[{}\s]", lambda m: "|" if "o" in m.group() else "", text).replace(".", "|").split("|")
    )
    if len(text) > _MAX_DIGITS:
        raise Unreadable("a number is too long")
    long, short = int((whole + fixed + period) or "0"), int((whole + fixed) or "0")
    return Fraction(long - short, (10 ** len(period) - 1) * 10 ** len(fixed))


def closing(text: str, start: int, stop: int | None = None) -> int:
    """Index of the brace, before `stop`, that closes the one before `start`; -1 where there is none."""
    depth = 1
    for i in range(start, len(text) if stop is None else min(len(text), stop)):
        c = text[i]
        if c in "{}" and text[i - 1] != "\\":
            depth += 1 if c == "{" else -1
            if depth == 0:
                return i
    return -1


def tokenise(text: str, *, upright: bool = False, nesting: int = 0, commas: bool = True) -> list[Token]:
    """The tokens of a text that went through `plain`.

    Args:
        text: the text.
        upright: it stands in a text command.
        nesting: how many commands it stands in.
        commas: read `1,234` outside brackets as one number.

    Raises:
        Unreadable: a character that means nothing here, a brace without its other.
    """
    if nesting > _MAX_NESTING:
        raise Unreadable("commands are nested too deep")
    if upright:
        text = re.sub(r"(?<=[A-Za-z])\.", " ", text)
    out: list[Token] = []
    pos, space, depth = 0, False, 0
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise Unreadable(f"{text[pos]!r} has no meaning there")
        kind, found, pos = match.lastgroup or "", match.group(), match.end()
        if kind == "space":
            space = True
            continue
        if kind == "num":
            groups = match.group("sep")
            if groups == "," and (depth > 0 or not commas):
                found = found.partition(",")[0]
                pos = match.start() + len(found)
            elif " " in found and out and out[-1].kind in ("num", "frac"):
                found = found.partition(" ")[0]
                pos = match.start() + len(found)
            out.append(Token("num", found, space, upright, number(found)))
        elif kind == "repeat":
            out.append(Token("num", found, space, upright, _repeating(found)))
        elif kind in ("wordy", "plainly"):
            end = closing(text, pos)
            if end < 0:
                raise Unreadable("a brace is not closed")
            straight = kind == "wordy"
            inner = tokenise(text[pos:end], upright=upright or straight, nesting=nesting + 1, commas=depth == 0)
            if inner:
                inner[0].space = space or straight
            out.extend(inner)
            pos = end + 1
            space = straight
            continue
        elif kind == "letters":
            _letters(out, found, space, upright)
        elif kind == "cmd":
            _command(out, found[1:], space)
            depth += found in ("\\{", "\\langle", "\\lbrace")
            depth -= found in ("\\}", "\\rangle", "\\rbrace")
        elif kind == "bb":
            out.append(Token("word", f"set {re.sub('mathbb|[^RZNQC]', '', found)}", space))
        elif kind == "deco":
            name = re.sub(r"\s", "", found)
            known = re.fullmatch(r"\\(?:vec|hat)\{([ijk])\}", name)
            out.append(Token("sym", known.group(1) if known else name, space))
        elif kind == "deg":
            scale = re.search(r"[CF]\s*\}?$", found)
            out.append(Token("deg", scale.group()[0] if scale else "", space))
        elif kind == "prime":
            out.append(Token("op", "'" * (found.count("'") or found.count("prime")), space))
        elif kind in ("env", "cur"):
            out.append(Token(kind, re.sub(r"\s|\{[clr| ]*\}$", "", found), space))
        else:
            found = {"...": "dots", "=<": "<=", " !=": "!=", "**": "^"}.get(found, found)
            depth += found in ("(", "[")
            depth -= found in (")", "]")
            out.append(Token("op", found, space, upright))
        space = False
    return out


def _letters(out: list[Token], run: str, space: bool, upright: bool) -> None:
    """A run of letters as one word, as letters that multiply, or as a function's name and what follows it."""
    low = run.lower()
    if len(run) == 1:
        out.append(Token("sym", run, space, upright))
    elif low in FUNCTIONS or low in CONSTANTS or low in _KEYWORDS:
        out.append(Token("word", low, space, upright))
    elif upright or not run.isascii() or low in STOP or low in PROSE or _NAME.fullmatch(run):
        out.append(Token("word", run, space, upright))
    elif _ROMAN.fullmatch(run):  # IV is not V times I
        out.append(Token("sym", run, space))
    elif unit_named(run) is not None or len(run) > 3:
        prefix = next((run[:n] for n in (6, 5, 4, 3, 2) if run[:n] in FUNCTIONS or (n == 2 and run[:2] == "pi")), "")
        if prefix and len(run) - len(prefix) <= 1:
            out.append(Token("word", prefix, space))
            out.append(Token("sym", run[len(prefix) :]))
        else:
            out.append(Token("word", run, space))
    elif low[:2] in ("ln", "lg", "pi") and len(run) == 3:
        out.append(Token("word", low[:2], space))
        out.append(Token("sym", run[2]))
    else:
        out.extend(Token("sym", c, space and i == 0) for i, c in enumerate(run))


def _command(out: list[Token], name: str, space: bool) -> None:
    if name in _COMMANDS:
        out.append(Token("op", _COMMANDS[name], space))
    elif name in _FRACS:
        out.append(Token("frac", name.lstrip("dtc") if name != "cfrac" else "frac", space))
    elif name in FUNCTIONS or name in CONSTANTS:
        out.append(Token("word", name, space))
    elif name in _GREEK_NAMES:
        out.append(Token("sym", "\\" + name.replace("var", "").replace("omicron", "o"), space))
    elif name in ("angle", "triangle", "measuredangle"):
        out.append(Token("sym", "\\" + name, space))
    elif name == "N":
        out.append(Token("word", "set N", space))
    elif name in ("Re", "R", "Z"):
        out.append(Token("word", f"set {name[0]}", space))
    else:
        raise Unreadable(f"\\{name} is not known")
