"""The labels of a multiple choice, and how they are told from words: "A" in "A boat" is an article, in "A, C." a label.

A label in running text counts where it is a capital (or a small letter in brackets or before a stop), is no part of a
word, a formula or a name such as "C++", and is not followed by a word that it would belong to ("A boat", "B vitamins").
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.rewards.verdict import short

__all__ = ["Labels", "clean"]

_LATIN = "ABCDEFGHIJ"
_FAMILIES = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "АБВГДЕЖЗИК", "ΑΒΓΔΕΖΗΘΙΚ", "アイウエオカキクケコ", "あいうえおかきくけこ",
    "イロハニホヘト", "가나다라마바사아자차", "ㄱㄴㄷㄹㅁㅂㅅㅇ", "أبجدهوزحطي", "甲乙丙丁戊己庚辛", "कखगघङच", "กขคงจฉ",
)  # fmt: skip


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_REASONS = _set("because since as for weil da denn porque puisque car parce perché omdat потому так pois ja")
_JOINS = _set("and or und oder et ou y e o и или plus")
# Words that may stand behind a label in a sentence; any other small word makes the label part of a phrase.
_FOLLOW = _set(
    "is are was were be would should must has have had will can cannot does do did seems remains due not which who "
    "that this these it its they there so therefore thus hence given where when while whereas with without by from in "
    "on at if but here i we you my the only also too however although though rather instead of to ist sind es est são "
    "é же это"
).union(_REASONS, _JOINS)
_BEFORE = _FOLLOW | _set(
    "option options choice choices statement statements answer answers letter both either clearly think believe say "
    "guess choose pick select maybe perhaps probably definitely likely then because since just variant"
)
_PREFIX = re.compile(
    r"[\s:>\-–—•*#=~.]*(?:(?:the|both|either|only|clearly|definitely|probably|likely|just|simply|all|most|correct|right"
    r"|best|final|indeed|actually|surely|options?|choices?|letters?|answers?|statements?|number|la|el|le|il|die|der|das|选项|选|選|lettre|letra"
    r"|lettera|buchstabe|вариант|буква)(?![A-Za-z])[\s:#,]*)*",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(
    r"\s*,\s*(?:(?:and|or|und|oder|et|ou|y|e|o|и|или)\s+|&\s*)?|\s*[;/&+、]\s*"
    r"|\s+(?:and|or|und|oder|et|ou|y|e|o|и|или|as[ \t]+well[ \t]+as|along[ \t]+with|plus)\s+|\s*[和与與或及]\s*|[ \t]+"
)
_NO_END = re.compile(r"['’+#°^~%]|[-‑](?=\w)|\.[A-Za-z](?![A-Za-z])|\s*[=<>≤≥^×*]|_")
_NEXT = re.compile(r"[ \t]+([^\W\d_][\w'’]*)")
_TEXT_COMMAND = re.compile(r"\\(?:text\w*|math\w*|boxed|fbox|bf|rm|it|left|right|large|Large|displaystyle)\b\s*")
_SPACE_COMMAND = re.compile(r"\\(?:quad|qquad|[ ,;:!~\\])")
_QUOTED = re.compile(r"(?<!\w)['‘’](\w)['’‘](?!\w)")
_DROP = dict.fromkeys(map(ord, '*`${}"“”„«»「」『』【】\u200b\u200c\u200d\ufeff\u2060'))


def clean(text: str) -> str:
    """The text without emphasis, LaTeX's text commands, quotes and wide forms; lines stay."""
    text = unicodedata.normalize("NFKC", text)
    text = _SPACE_COMMAND.sub(" ", _TEXT_COMMAND.sub("", text))
    text = re.sub(r"\\([()\[\]])", " ", text)
    text = re.sub(r"(?<!\w)_+|_+(?!\w)", "", text.translate(_DROP))
    return _QUOTED.sub(r"\1", text)


class Labels:
    """The labels that may be named, and the texts of their options where these are known.

    Attributes:
        names: the labels, in order.
        texts: option text by label.
        several: whether the gold has more than one.
    """

    def __init__(self, names: Sequence[str], texts: Mapping[str, str], several: bool) -> None:
        """See `of`."""
        self.names, self.texts, self.several = tuple(names), dict(texts), several
        alternatives = "|".join(re.escape(n) for n in sorted(self.names, key=len, reverse=True))
        self._item = re.compile(rf"(?P<open>[(\[<]\s*)?(?P<label>{alternatives})(?(open)\s*[)\]>])", re.IGNORECASE)
        self._known = {n.upper(): n for n in self.names}
        self._run = re.compile(rf"([{re.escape(''.join(n for n in self.names if len(n) == 1))}]{{2,10}})(?![^\W_])")

    @classmethod
    def of(cls, gold: Any, options: Sequence[str] | Mapping[str, str] | None, letters: str | None) -> Labels:
        """The labels of a question.

        Raises:
            UserError: `options` is empty or holds something else than texts, or `letters` is empty.
        """
        texts: dict[str, str] = {}
        if isinstance(options, Mapping):
            texts = {str(k).strip(): v for k, v in options.items()}
        elif options is not None:
            if isinstance(options, str):
                raise UserError(f"options must be a list of texts, not the text {short(options)}.")
            if len(options) > 26:
                raise UserError(f"options has {len(options)} texts; give them by label where there are more than 26.")
            texts = {chr(65 + i): text for i, text in enumerate(options)}
        if options is not None and not (texts and all(isinstance(t, str) and t.strip() for t in texts.values())):
            raise UserError(f"options must be texts in order, or texts by label, not {short(options)}.")
        if letters is not None and not letters.strip():
            raise UserError('letters must hold at least one label, such as "ABCD".')
        if not all(texts):
            raise UserError("options has an empty label.")
        named = list(texts) or (list(dict.fromkeys(letters.upper().replace(" ", ""))) if letters else [])
        several = isinstance(gold, (list, tuple)) and len(gold) > 1
        labels = cls(named or _family(gold), texts, several)
        if isinstance(gold, str) and len(labels.gold(gold)[0]) > 1:
            labels.several = True
        return labels

    def __str__(self) -> str:
        return ", ".join(self.names)

    def sorted(self, named: set[str]) -> list[str]:
        """Labels in the order of the question."""
        return [n for n in self.names if n in named]

    def gold(self, gold: Any) -> tuple[set[str], str]:
        """The labels of a gold, and its text where it gives one; both empty where it cannot be read."""
        if isinstance(gold, bool) or gold is None:
            return set(), ""
        if isinstance(gold, int):
            return ({self.names[gold]} if 0 <= gold < len(self.names) else set()), ""
        if isinstance(gold, (list, tuple)):
            parts = [self.gold(g) for g in gold]
            if not parts or not all(named for named, _ in parts):
                return set(), ""
            return set().union(*(named for named, _ in parts)), ""
        if not isinstance(gold, str) or not gold.strip():
            return set(), ""
        text = clean(gold).strip()
        named = self._whole(text, run=True)
        if named:
            return named, ""
        for label, option in self.texts.items():
            if option.strip().casefold() == gold.strip().casefold():
                return {label}, option
        head = self.head(text, leading=True)
        if head and len(head[0]) == 1:
            return head[0], text[head[1] :].strip(" .:)-–—")
        if self.texts or len(re.sub(r"\W", "", text)) < 2:
            return set(), ""
        return set(), text

    def whole(self, text: str) -> set[str]:
        """The labels of a text that holds nothing else; empty where it holds something else."""
        return self._whole(text, run=self.several)

    def _whole(self, text: str, *, run: bool) -> set[str]:
        text = text.strip()
        if len(text) > 200:
            return set()
        found = self.head(text, alone=True)
        if found and text[found[1] :].strip(" .,:;!)]\n") in ("", "only"):
            return found[0]
        match = self._run.fullmatch(text.strip(" .")) if run else None
        return self._ascending(match)

    def head(
        self, text: str, *, leading: bool = False, closed: bool = False, alone: bool = False
    ) -> tuple[set[str], int] | None:
        """The labels that a text begins with, and where they end; None where it begins with none.

        Args:
            text: a cleaned text.
            leading: only a label with a delimiter, as before an option's text: "B.", "(B)", "B:".
            closed: only where the sentence ends with it, or gives a reason.
            alone: nothing else is expected, so that a small letter counts.
        """
        start = _PREFIX.match(text).end()  # type: ignore[union-attr]
        opened = text[start : start + 1] in ("[", "(") and self._item.match(text, start) is None
        start += opened  # of "[A, C]"
        named: list[str] = []
        end = at = start
        while len(named) < 30:
            item = self._at(text, at, leading=leading, closed=closed, alone=alone)
            if item is None:
                break
            named.append(item[0])
            end = item[1]
            separator = _SEPARATOR.match(text, end)
            if separator is None or (leading and not separator.group().strip()):
                break
            at = separator.end()
            if separator.group().strip():
                at = _PREFIX.match(text, at).end()  # type: ignore[union-attr]
        if named:
            return set(named), end
        run = self._run.match(text, start) if self.several and not leading else None
        ascending = self._ascending(run)
        return (ascending, run.end()) if run and ascending else None

    def _ascending(self, run: re.Match[str] | None) -> set[str]:
        """The letters of "ACD"; empty where they are not in order, as those of words seldom are."""
        if run is None:
            return set()
        places = [self.names.index(c) for c in run.group(1)]
        return set(run.group(1)) if all(a < b for a, b in itertools.pairwise(places)) else set()

    def order(self, text: str) -> Iterator[str]:
        """The labels in a short text that holds only labels, in order."""
        for match in self._item.finditer(text):
            alone = not (text[: match.start()][-1:].isalnum() or text[match.end() :][:1].isalnum())
            if alone:
                yield self._known[match.group("label").upper()]

    def runs(self, text: str) -> Iterator[tuple[int, int, set[str]]]:
        """Every list of labels in a text: where it begins and ends, and its labels."""
        at = 0
        while match := self._item.search(text, at):
            at = match.end()
            before = text[max(0, match.start() - 40) : match.start()]
            if before[-1:].isalnum() or before.endswith(("'", "’", ".", "-", "_", "/")):
                continue
            word = re.search(r"([^\W\d_]+)[ \t]+$", before)
            if word and match.group("open") is None and word.group(1).lower() not in _BEFORE:  # "Vitamin C is best"
                continue
            if match.group("open") is None and not match.group("label").isupper() and match.group("label").isalpha():
                continue
            found = self.head(text[match.start() : match.start() + 300])
            if found:
                at = max(at, match.start() + found[1])
                yield match.start(), match.start() + found[1], found[0]

    def emphasised(self, text: str) -> set[str]:
        """The labels in brackets or bold, or behind "option", except those that are called wrong."""
        alternatives = "|".join(re.escape(n) for n in sorted(self.names, key=len, reverse=True))
        pattern = re.compile(
            rf"[(\[（【]\s*(?:\*\*)?({alternatives})(?:\*\*)?\s*[)\]）】]|\*\*\s*({alternatives})(?:\s*\*\*|[.):]\s)"
            rf"|\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer|[Ll]etter)\s+({alternatives})(?![\w'’])"
        )
        wrong = re.compile(
            r"[*\s]*(?:is|are|was|cannot|can't|isn't|does)[ \t]+(?:\w+[ \t]+)?(?:not|wrong|incorrect|false)"
        )
        named = set()
        for match in pattern.finditer(text):
            if not wrong.match(text[match.end() : match.end() + 60]):
                named.add(self._known[next(g for g in match.groups() if g).upper()])
        return named

    def _at(self, text: str, at: int, *, leading: bool, closed: bool, alone: bool) -> tuple[str, int] | None:
        match = self._item.match(text, at)
        if match is None:
            return None
        raw, end = match.group("label"), match.end()
        label = self._known[raw.upper()]
        if match.group("open"):
            return label, end
        following = text[end : end + 1]
        if (raw.isalpha() or raw.isdigit()) and _continues(raw, following):
            return None
        if raw.isdigit() and re.match(r"[.,:/]\d", text[end : end + 2]):
            return None
        if following in (")", "]"):
            return label, end + 1
        if _NO_END.match(text, end):
            return None
        word = _NEXT.match(text, end)
        if leading:
            delimited = re.match(r"[.:](?:\s|$|(?=[A-Z]))|[ \t]+[-–—/|][ \t]|—|,\s|[ \t]*(?:\n|$|\()", text[end:])
            return (label, end) if delimited and (raw.isupper() or not raw.isalpha() or following in ".:") else None
        if raw.isalpha() and not raw.isupper() and raw.lower() != raw.upper():
            small = self._small(text, end, word, alone) and not (closed and raw in ("a", "i"))
            return (label, end) if small else None
        if word and not self._may_follow(label, word.group(1), closed):
            return None
        return label, end

    def _small(self, text: str, end: int, word: re.Match[str] | None, alone: bool) -> bool:
        """Whether a small letter is a label."""
        if word is None:
            return alone or re.match(r"\s*(?:[.,;:!]|$|\n)", text[end:]) is not None
        follower = word.group(1).lower()
        if follower in _JOINS:
            return self._item.match(text, _SEPARATOR.match(text, end).end()) is not None  # type: ignore[union-attr]
        return follower in _REASONS

    def _may_follow(self, label: str, word: str, closed: bool) -> bool:
        follower = word.lower()
        if closed:
            return follower in _REASONS or follower in _JOINS
        if len(word) == 1 and word.isupper() and word in self._known:
            return True
        if label == "I":
            return follower in _REASONS or follower in _JOINS or follower == "is"
        if follower in _FOLLOW:
            return True
        return word[:1].isupper() and label != "A"


def _continues(raw: str, following: str) -> bool:
    """Whether a word or number goes on behind a label; a label of one script may touch a letter of another."""
    if not following or not following.isalnum():
        return False
    if raw.isascii():
        return following.isascii() or "LATIN" in unicodedata.name(following, "")
    return unicodedata.name(raw[0], "").split(" ")[0] == unicodedata.name(following, "").split(" ")[0]


def _family(gold: Any) -> Sequence[str]:
    """Labels of the kind of the gold's: ten letters, or more where the gold needs them; numbers; other scripts."""
    golds = gold if isinstance(gold, (list, tuple)) else [gold]
    if any(isinstance(g, int) and not isinstance(g, bool) and g >= len(_LATIN) for g in golds):
        return _FAMILIES[0]
    heads = []
    for g in golds:
        found = re.match(r"[\s(\[]*([^\W_]+)", clean(g)) if isinstance(g, str) else None
        heads.append(found.group(1).upper() if found else "")
    first = heads[0] if heads else ""
    if first.isdigit() and first.isascii() and len(first) < 3:
        return [str(i) for i in range(0, max(10, *(int(h) + 1 for h in heads if h.isdigit() and h.isascii())))]
    for family in _FAMILIES[1:]:
        if len(first) == 1 and first in family:
            return list(family)
    if len(first) == 1 and first in _FAMILIES[0] and first > "J":
        return list(_FAMILIES[0])
    last = max((h for h in heads if len(h) == 1 and h in _FAMILIES[0]), default="")
    return list(_FAMILIES[0] if last > "J" else _LATIN)
