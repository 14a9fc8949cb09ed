r"""Where the answer stands in a response.

What a thought holds is superseded by what follows it; a thought that is not closed leaves no answer. Where the model
runs on into a new question of its own after it has answered, the text ends there. Then the last mark counts, of these:

- `\boxed{...}`, complete and not empty (boxes joined by "and", "or" or a comma are one list);
- `<answer>...</answer>`; `#### ...`; a cue word with a connective ("answer is", "Answer:", "答案是", by configuration).
  These count behind a box only where they hold mathematics, so that closing remarks do not replace it;
- bold type, where nothing stronger is there and it holds mathematics.

Without a mark the whole text is the answer where it can be read; else the last formula or number in it.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rlready.rewards.answers import strip_thoughts
from rlready.rewards.mathematics.reading import read
from rlready.rewards.mathematics.tokens import closing
from rlready.rewards.mathematics.tree import EMPTY
from rlready.rewards.mathematics.words import CUES

MAX_RESPONSE = 200_000
_MAX_MARKS = 40
_MAX_ANSWER = 2000
_MAX_BOX = 10_000

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?\d+(?:\.\d+)?)(?=[\s$.,]|\Z))")
_JOIN = re.compile(
    r"[\s$\\)(\]\[,;]*(?:and|or|,)?[\s$\\)(\]\[]*(?:\\\()?\s*(?:[a-zA-Z](?:_\w)?\s*=)?[\s$]*", re.IGNORECASE
)
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*([^\n#]+)")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_NEW = re.compile(
    r"^[ \t>*#]*(?:question|problem|q|new question|next question|user|human)\s*\d*\s*:", re.IGNORECASE | re.MULTILINE
)
_MORE_THOUGHTS = ("</thinking>", "</thought>", "</reasoning>", "[/THINK]", "</seed:think>")
_CONNECTIVES = r"is|are|was|ist|lautet|est|es|é|è|är|er|jest|equals|是|为|は|는|은|है|là|adalah"
_MATHS = r"(?<![\\\w])\$(?!\s*\d[\d,.]*(?:\s|$))([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$"
_FORMULA = re.compile(_MATHS, re.DOTALL)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(
    rf"(?<![\w.,\\^{{}}_/)(*+])([-+\u2212]?\s?(?:\\?[$€£]\s*)?(?:{_DIGITS}(?:\.\d+)?|\.\d+)"
    rf"(?:\s*/\s*{_DIGITS}|[eE][+-]?\d+)?\s*\\?%?)(?![\w{{}}^_\\/*+!]|\.\d|\s*[=*/^+<>])"
)
_GROUP = re.compile(r"[(\[][^()\[\]\n]{1,80}[)\]]")
_SEVERAL = re.compile(r"(?:-?\d[\d.]*(?:\s*,\s*(?:or\s+|and\s+)?|\s+or\s+|\s+)){1,100}-?\d[\d.]*%?$")
_STOPS = re.compile(
    r"(?<=[^\s\d.])\.(?:\s|$)|(?<=\d)\.(?:\s+\D|\s*$)|[!?](?:\s|$)|\s(?:because|since|as|which|so|where|but)\s"
)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer in a response.

    Attributes:
        text: the answer; empty where there is none.
        how: what pointed at it: "box", "tag", "hashes", "cue", "bold", "whole", "last" or "" for none.
    """

    text: str
    how: str

    @property
    def marked(self) -> bool:
        """Whether an explicit mark said that this is the answer."""
        return self.how in ("box", "tag", "hashes", "cue", "bold")


def find(response: str, *, cue_words: Sequence[str] = (), cut: bool = False) -> Found:
    """The answer in a response; never raises.

    Args:
        response: all that the model wrote. Of a very long text only the end is looked at.
        cue_words: words for "answer" besides those of `words.CUES`.
        cut: whether it was cut off; then the last number of a text without marks is no answer.
    """
    text = _visible(response)
    if not text:
        return Found("", "")
    pattern = _cues(tuple(cue_words)) if cue_words else _DEFAULT_CUES
    text = _before_new_question(text, pattern)
    marks = _marks(text, pattern)
    box = max((m for m in marks if m[2] == "box"), default=None)
    for position, content, how in sorted(marks, reverse=True):
        if how == "box":
            return Found(content, how)
        answer = _clause(content)
        if box is not None and (position < box[0] or not _is_maths(answer)):
            continue
        if _plausible(answer):
            return Found(answer, how)
    if box is None:
        bold = _bold(text)
        if bold:
            return Found(bold, "bold")
    if marks:
        _, content, how = max(m for m in marks)
        return Found(_clause(content), how)
    return _unmarked(text, cut)


def _visible(response: str) -> str:
    text = response[-MAX_RESPONSE:]
    for end in _MORE_THOUGHTS:
        if end in text:
            text = text.rpartition(end)[2]
    return _CALL.sub("", strip_thoughts(text)).strip()


def _before_new_question(text: str, cues: re.Pattern[str]) -> str:
    header = _NEW.search(text)
    if header is None:
        return text
    marks = [m.end() for p in (_HASHES, _BOX, _TAG, cues) if (m := p.search(text))]
    header = _NEW.search(text, min(marks)) if marks else None
    return text[: header.start()].rstrip() if header else text


def _marks(text: str, cues: re.Pattern[str]) -> list[tuple[int, str, str]]:
    out = _boxes(text)
    out += [(m.start(), m.group(1).strip(), "tag") for m in _last(_TAG, text) if m.group(1).strip()]
    out += [(m.start(), m.group(1).strip(), "hashes") for m in _last(_HASHES, text)]
    for match in _last(cues, text):
        after = text[match.end() : match.end() + _MAX_ANSWER]
        shown = _FORMULA.match(after.lstrip(" *\t\n"))
        if shown and shown.group().startswith(("\\[", "$$")) and not _BOX.search(shown.group()):
            out.append((match.start(), _content(shown), "cue"))
            continue
        lines = [line for line in after.split("\n", 4)[:4] if line.strip(" *\t")]
        if lines and not _BOX.search(lines[0]):
            out.append((match.start(), lines[0].strip(), "cue"))
    return out


def _last(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The last matches, some hundreds at most."""
    return list(deque(pattern.finditer(text), maxlen=_MAX_MARKS))


def _boxes(text: str) -> list[tuple[int, str, str]]:
    """Complete boxes with content; those that are joined are one."""
    found: list[tuple[int, int, str]] = []
    for match in _last(_BOX, text):
        if match.group(1) is not None:
            found.append((match.start(), match.end(), match.group(1)))
            continue
        end = closing(text, match.end(), match.end() + _MAX_BOX)
        content = text[match.end() : end].strip() if end >= 0 else ""
        if content and not _inside(found, match.start()):
            found.append((match.start(), end + 1, content))
    out: list[tuple[int, str, str]] = []
    last_end = -1
    for start, end, content in found:
        gap = text[last_end:start] if last_end >= 0 else None
        if out and gap is not None and len(gap) < 30 and "\n" not in gap and gap.strip() and _JOIN.fullmatch(gap):
            out[-1] = (out[-1][0], f"{out[-1][1]}, {content}", "box")
        else:
            out.append((start, content, "box"))
        last_end = end
    return out


def _inside(found: list[tuple[int, int, str]], position: int) -> bool:
    return bool(found) and position < found[-1][1]


@functools.lru_cache(maxsize=64)
def _cues(extra: tuple[str, ...]) -> re.Pattern[str]:
    words = "|".join(re.escape(w) for w in sorted({*CUES, *extra}, key=len, reverse=True) if w)
    return re.compile(
        rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])[ \t]*(?:\*\*)?[ \t]*"
        rf"(?:(?:{_CONNECTIVES})(?![A-Za-z])[ \t]*(?:[:：])?|[:：=])[ \t]*(?:\*\*)?(?=\s*\S)",
        re.IGNORECASE | re.DOTALL,
    )


_DEFAULT_CUES = _cues(())


def _clause(content: str) -> str:
    """The answer at the head of a line: without its emphasis, and without what is said after it."""
    content = content[:_MAX_ANSWER].strip().strip("*").strip()
    if read(content).node is not None:
        return content
    inner = re.match(r"\*\*([^*]+)\*\*", content)
    if inner:
        return inner.group(1).strip()
    formula = _FORMULA.match(content)
    if formula and _ends_clause(content[formula.end() :]):
        return _content(formula)
    stop = _STOPS.search(content)
    head = content[: stop.start()].strip().strip("*").strip() if stop else content
    return head if head and (read(head).node is not None or not _is_maths(content)) else content


def _content(formula: re.Match[str]) -> str:
    """What stands between the signs of a formula."""
    return next(g for g in formula.groups() if g is not None).strip().rstrip(".,").strip()


def _ends_clause(rest: str) -> bool:
    return not re.match(r"\s*(?:and|or|,|[-+*/=])\s*\S*[\d$\\]", rest)


def _is_maths(content: str) -> bool:
    return read(content).node is not None


def _plausible(content: str) -> bool:
    """Whether it may be meant as an answer: mathematics, well formed or not, or a few words."""
    if _is_maths(content) or len(content.split()) <= 4:
        return True
    return bool(re.search(r"\\[a-zA-Z]|[=^_]", content))


def _bold(text: str) -> str:
    last = text.rstrip().rsplit("\n\n", 1)[-1]
    for match in reversed(_last(_BOLD, last)[-5:]):
        content = match.group(1).strip().rstrip(".:")
        if re.search(r"\d|\\", content) and _is_maths(content) and not re.match(r"\s*[:.)]", last[match.end() :]):
            return content
    return ""


def _unmarked(text: str, cut: bool) -> Found:
    whole = read(text)
    if whole.why == EMPTY:
        return Found("", "")
    if whole.node is not None or (len(text.split()) <= 6 and not cut and not re.search(r"\d", text)):
        known = whole.node is not None or len(text.split()) <= 2
        return Found(text, "whole") if known else Found("", "")
    if cut:
        return Found("", "")
    tail = text[-2000:]
    formula = _latest(_FORMULA, tail)
    number = _latest(_NUMBER, _without_formulas(tail))
    if formula is not None and (number is None or number.start() < formula.start()):
        return Found(_content(formula), "last")
    if number is None:
        return Found("", "")
    for group in _GROUP.finditer(tail):
        if group.start() < number.start(1) < group.end() and read(group.group()).node is not None:
            return Found(group.group(), "last")
    several = _SEVERAL.search(tail[: number.end(1)])  # naming several numbers is no way to be paid for the last
    return Found(several.group() if several else number.group(1).strip(), "last")


def _without_formulas(text: str) -> str:
    return _FORMULA.sub(lambda m: "x" * len(m.group()), text)


def _latest(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match, None where there is none."""
    found = None
    for found in pattern.finditer(text):  # noqa: B007  (the last one is wanted)
        pass
    return found
