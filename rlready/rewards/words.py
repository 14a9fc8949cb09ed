"""The words of a text in any script, and the normal form in which short answers are compared.

`words` is for counting overlap: runs of letters, marks and digits, case folded; scripts that put no blanks between
words (Han, kana, Thai, Lao, Khmer, Burmese, Tibetan) are read character by character, marks with their letter.

`Answer` is for equality. It follows SQuAD's normalisation (arXiv 1606.05250: small letters, no punctuation, no
articles, single blanks) except where that makes different answers the same, or the same ones different:

- symbols that carry meaning stay: "F#" is not "F", "C++" not "C", "N/A" not "Na", "-5" not "5", "3.14" not "314"
- a percent or currency sign may be missing on one side, but two different ones differ
- no answer becomes empty: "A", "The" and "?" are kept; an article at the end is none ("Vitamin A", "Group A")
- a hyphen may be a blank or nothing, but joins no digits: "early- life" is "early-life", "1-2" is not "12"
- digits and wide forms of every script are one; accents matter
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Answer", "clusters", "is_unspaced", "words"]

_UNSPACED = (
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x19E0, 0x19FF), (0x1A20, 0x1AAF),
    (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip


@functools.lru_cache(maxsize=65536)
def is_unspaced(char: str) -> bool:
    """Whether a character is of a script that puts no blanks between words."""
    code = ord(char)
    return code >= 0x0E00 and any(low <= code <= high for low, high in _UNSPACED)


@functools.lru_cache(maxsize=65536)
def _kind(char: str) -> str:
    """L letter or digit, M mark, U letter of an unspaced script, S symbol, " " the rest."""
    category = unicodedata.category(char)
    if category[0] == "M":
        return "M"
    if category[0] in "LN":
        return "U" if is_unspaced(char) and category != "Nd" else "L"
    return "S" if category[0] == "S" else " "


def clusters(text: str) -> Iterator[str]:
    """Words, and single characters (with their marks) of unspaced scripts; everything else divides."""
    current = ""
    single = False
    for char in text:
        kind = _kind(char)
        if kind == "M":
            current += char if current else ""
        elif kind == "L" and not single:
            current += char
        else:
            if current:
                yield current
            single = kind == "U"
            current = char if kind in "LU" else ""
    if current:
        yield current


_ELISION = re.compile(r"(?<=\w)['’ʼ](?=\w)")


def words(text: str) -> list[str]:
    """The words of a text, case folded; "don't" is one word."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return list(clusters(_ELISION.sub("", folded)))


_SUPERSCRIPTS = str.maketrans({c: f"^{d}" for c, d in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)})
_MAP = {
    **dict.fromkeys(map(ord, "‐‑‒–—―−﹘﹣－"), "-"),
    **dict.fromkeys(map(ord, "®™©\u200b\u200c\u200d\u2060\ufeff\u00ad\ufe0e\ufe0f"), None),
    **dict.fromkeys(map(ord, "’‘ʼ`´′"), "'"),
    ord("⁄"): "/",
    ord("♯"): "#",
}
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{2,3})*,\d{3})(?!,?\d)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=\S)([^*\n]{1,300}?)(?<=\S)\1(?![\w*])")
_NUMBER = re.compile(r"\d+(?:[.:]\d+)*|\.\d+", re.ASCII)
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_MEANS = frozenset("&%/#@")  # of punctuation, what carries meaning
_SIGNS = frozenset("%$€£¥₹")
_SAME = {"percent": "%", "dollars": "$", "dollar": "$", "usd": "$", "euros": "€", "euro": "€", "eur": "€", "&": "and"}
_MAX_TEXT = 20_000


def _prepared(text: str) -> str:
    text = unicodedata.normalize("NFKC", text[:_MAX_TEXT].translate(_SUPERSCRIPTS)).translate(_MAP)
    digits = {
        ord(c): str(unicodedata.digit(c)) for c in set(text) if not c.isascii() and unicodedata.category(c) == "Nd"
    }
    text = _EMPHASIS.sub(r"\2", text.translate(digits))
    text = re.sub(r"\bper cent\b", "percent", text, flags=re.IGNORECASE)
    return _THOUSANDS.sub(lambda m: m.group(1).replace(",", ""), text).strip()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    article: bool = False
    hyphen: bool = False


class _Scanner:
    """Takes a prepared text apart."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds = [_kind(c) for c in text]
        self.tokens: list[_Token] = []

    def _at(self, i: int) -> str:
        return self.kinds[i] if 0 <= i < len(self.kinds) else " "

    def _is(self, i: int, chars: str) -> bool:
        return 0 <= i < len(self.text) and self.text[i] in chars

    def _letter(self, i: int) -> bool:
        return self._at(i) in "LU" and not self.text[i].isdecimal()

    def _digit(self, i: int) -> bool:
        return self._at(i) == "L" and self.text[i].isdecimal()

    def scan(self) -> list[_Token]:
        """All tokens."""
        i, minus, currency = 0, False, ""
        while i < len(self.text):
            char, kind = self.text[i], self.kinds[i]
            inside = self._at(i - 1) in "LUM"
            if self._digit(i) or (char == "." and self._digit(i + 1) and not inside):
                i = self._number(i, minus, currency)
                minus, currency = False, ""
            elif kind in "LUM":
                i = self._word(i)
            elif char in "+-" and not inside and not self._is(i - 1, ")]") and self._number_follows(i + 1):
                minus, i = char == "-", i + 1
            elif char in _SIGNS - {"%"} and self._number_follows(i):
                currency, i = char, i + 1
            elif (
                char == "." and self._letter(i + 1) and self._letter(i + 2) and not inside and not self._is(i - 1, ".")
            ):
                i = self._word(i + 1, head=".")
            else:
                if char == "-":
                    self._hyphen(i)
                elif (kind == "S" or char in _MEANS) and not (char == "#" and self._digit(i + 1)):
                    self._add(char)
                i += 1
        return self.tokens

    def _add(self, text: str, *, article: bool = False) -> None:
        folded = unicodedata.normalize("NFKC", text.casefold())
        self.tokens.append(_Token(_SAME.get(folded, folded), article))

    def _number_follows(self, i: int) -> bool:
        if self._is(i, "$€£¥₹"):
            i += 1
        return self._digit(i) or (self._is(i, ".") and self._digit(i + 1))

    def _number(self, i: int, minus: bool, currency: str) -> int:
        match = _NUMBER.match(self.text, i)
        if match is None:  # a digit that has no decimal value of its own
            self._add(self.text[i])
            return i + 1
        text, end = match.group(), match.end()
        text = ("-" if minus else "") + (f"0{text}" if text.startswith(".") else text)
        if self._is(end, "+") and self._at(end + 1) not in "LU":
            text, end = text + "+", end + 1
        self._add(text)
        if currency:
            self._add(currency)
        return end

    def _word(self, start: int, head: str = "") -> int:
        if self.kinds[start] == "U":
            end = start + 1
            while self._at(end) == "M":
                end += 1
            self._add(self.text[start:end])
            return end
        letters, i = [head], start
        while i < len(self.text):
            if self._at(i) in "LM":
                letters.append(self.text[i])
            elif self._is(i, "'.") and self._letter(i - 1) and self._letter(i + 1) and self._at(i + 1) == "L":
                pass  # "don't" is "dont", "U.S." is "us"
            elif self._is(i, ".:") and self._digit(i - 1) and self._digit(i + 1):
                letters.append(self.text[i])
            else:
                break
            i += 1
        word = "".join(letters)
        if self._is(i, "#"):
            word, i = word + "#", i + 1
        elif self._is(i, "+"):
            end = i
            while self._is(end, "+"):
                end += 1
            if self._at(end) not in "LU":
                word, i = word + self.text[i:end], end
        elif len(word) == 1 and self._is(i, "-*") and self._at(i + 1) not in "LU" and not self._is(i + 1, " -*"):
            word, i = word + self.text[i], i + 1
        self._add(word, article=self._is_article(word, start, i))
        return i

    def _is_article(self, word: str, start: int, end: int) -> bool:
        """Whether "a", "an" or "the" stands before a word; a capital A inside is rather a name ("Vitamin A levels")."""
        if word.lower() not in ("a", "an", "the") or not (self._is(end, " ") and self._at(end + 1) in "LU"):
            return False
        if word.lower() == "the":
            return True
        longer = self._at(end + 2) in "LM"
        return longer and (word != "A" or not self.text[:start].strip() or self.text.isupper())

    def _hyphen(self, i: int) -> None:
        before = self.text[:i].rstrip()[-1:]
        after = self.text[i + 1 :].lstrip()[:1]
        if before and after and _kind(before) in "LM" and _kind(after) == "L" and not before.isdecimal():
            self.tokens.append(_Token("-", hyphen=True))


class Answer:
    """A short answer in normal form; see the module.

    Attributes:
        words: its words for counting overlap, without articles; never empty where there is any text.
        number: its value where it is one number and nothing else but signs.
    """

    def __init__(self, text: str) -> None:
        """Read a text; of a very long one only the beginning."""
        prepared = _prepared(text)
        self._tokens = _Scanner(prepared).scan()
        if not any(not t.hyphen for t in self._tokens):
            rest = "".join(prepared.split()).casefold()
            self._tokens = [_Token(rest)] if rest else []
        self.words = [t.text for t in self._tokens if not t.article and not t.hyphen]
        self.number = self._value()

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._tokens)

    def _value(self) -> Fraction | None:
        bare = [w for w in self.words if w not in _SIGNS]
        return Fraction(bare[0]) if len(bare) == 1 and _PLAIN_NUMBER.fullmatch(bare[0]) and len(bare[0]) < 400 else None

    def _forms(self) -> tuple[tuple[str, ...], ...]:
        """With and without articles, hyphens as blanks and as nothing."""
        kept = tuple(t.text for t in self._tokens if not t.hyphen)
        return kept, tuple(self.words), self._joined(articles=True), self._joined(articles=False)

    def _joined(self, *, articles: bool) -> tuple[str, ...]:
        out: list[str] = []
        join = False
        for token in self._tokens:
            if token.hyphen:
                join = bool(out)
            elif articles or not token.article:
                if join:
                    out[-1] += token.text
                else:
                    out.append(token.text)
                join = False
        return tuple(out)

    def same(self, other: Answer) -> bool:
        """Whether both are the same answer."""
        if not self or not other:
            return False
        mine, theirs = ([w for w in a.words if w in _SIGNS] for a in (self, other))
        if mine and theirs and sorted(mine) != sorted(theirs):
            return False
        if self.number is not None and other.number is not None:
            return self.number == other.number
        if any(a == b for a, b in zip(self._forms(), other._forms(), strict=True)):
            return True
        if bool(mine) == bool(theirs):
            return False
        numeric = any(w[-1:].isdigit() for w in self.words)
        return numeric and any(_unsigned(a) == _unsigned(b) for a, b in zip(self._forms(), other._forms(), strict=True))


def _unsigned(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(w for w in words if w not in _SIGNS)
