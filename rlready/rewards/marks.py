r"""Where a response says "this is my answer": boxes, tags, `####`, and cue words such as "the answer is".

What a thought holds is superseded by what follows it; a thought that is not closed leaves no answer. Where the model
runs on into a new question of its own after it has answered, the text ends there.

A cue that someone else is credited with ("many people think the answer is D"), that is denied ("the wrong answer is
D") or that asks ("is the answer D?") is no mark.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rlready.rewards.answers import strip_thoughts
from rlready.rewards.mathematics.words import CUES

__all__ = ["Mark", "before_new_question", "marks", "visible"]

MAX_RESPONSE = 200_000
_MAX_MARKS = 60
_MAX_CONTENT = 2_000
_MAX_CUED = 800

_ENDS = ("</thinking>", "</thought>", "</reasoning>", "</scratchpad>", "[/THINK]", "</seed:think>")
_STARTS = ("<thinking>", "<thought>", "<reasoning>", "<scratchpad>", "[THINK]", "<seed:think>")
_FINAL = "<|channel|>final<|message|>"
_CHANNEL = re.compile(r"<\|(?:end|return|start|message|channel)\|>")
_SPECIAL = re.compile(r"<\|[\w-]{1,40}\|>|</s>|<(?:eos|end_of_turn|endoftext)>")
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_NEW = re.compile(
    r"^[ \t>*#]*(?:question|problem|q|new question|next question|user|human)\s*\d*\s*:", re.IGNORECASE | re.MULTILINE
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TAG = re.compile(r"<(answer|ans|final_answer|choice)>((?:(?!<\1>).){0,2000}?)</\1>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"(?:^|(?<=\s))####[ \t]*([^\n#]+)", re.MULTILINE)

_MORE_CUES = (
    "ans", "choice", "option", "selection", "solution", "letter", "final", "correct one", "right one", "best one",
    "opción correcta", "option correcte", "opção correta", "alternativa correta", "opzione corretta", "вариант", "选项",
    "選択肢", "答", "답", "答案应",
)  # fmt: skip
_BE = (
    r"(?:would|should|must|will|has to|may|might|could|can only)[ \t]+be|is|are|was|were|equals|seems[ \t]+to[ \t]+be"
    r"|ist|lautet|est|es|é|è|är|er|jest|это|—[ \t]+это|है|là|adalah"
)
_UNSPACED = r"应该是|應該是|应为|應為|是|为|為|选|選|は|는|은"
_SURELY = (
    r"(?:therefore|thus|hence|then|now|clearly|definitely|likely|probably|most[ \t]+likely|simply|indeed|actually"
    r"|surely|certainly|obviously|still|only|just|both|given[ \t]+by|as[ \t]+follows)"
)
_AFTER = r"(?:[ \t]+(?:correcta?s?|correctes?|corretas?|correttas?|final[e]?|exacta|juste|giusta|esatta|certa))?"
_LINE = r"[ \t]*(?:\*\*|__|[\"“*])*[ \t]*"
_OTHERS = re.compile(
    r"\b(?:many|most|some|several|few|others?|people|students|readers|one|you|they|he|she|anyone|someone|everyone)\b"
    r"[^.!?\n]{0,80}\b(?:think|say|said|believe|claim|guess|assume|argue|suggest|expect|thought|conclude)s?\b"
    r"|\b(?:tempting|wrongly|mistakenly|falsely|incorrectly|mistake[ \t]+of)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:wrong|incorrect|false|mistaken|tempting|bad|worst|no|not|never|another|other)"
    r"|n['’]t)[ \t]+(?:an?|the|possible|final)?[ \t]*$",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"\b(?:is|was|could|would|might|why[ \t]+is|whether)[ \t]+(?:the|an?|my|your)[ \t]+\S*[ \t]*$", re.I
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One place that says where the answer is.

    Attributes:
        start: where the mark begins in the text.
        content: what it points at; of a cue, the text behind it, some lines at most.
        how: "box", "tag", "hashes" or "cue".
        sure: False where it is hedged ("the answer might be").
    """

    start: int
    content: str
    how: str
    sure: bool = True


def visible(response: str) -> str:
    """What is not thought, and no tool call; empty where a thought was not closed. Of a very long text the end."""
    text = response[-MAX_RESPONSE:]
    if "<|channel|>" in text:
        before, final, after = text.rpartition(_FINAL)
        text = _CHANNEL.split(after, maxsplit=1)[0] if final else before.partition("<|channel|>")[0]
    for start, end in zip(_STARTS, _ENDS, strict=True):
        if end in text:
            text = text.rpartition(end)[2]
        text = text.partition(start)[0]
    return _SPECIAL.sub("", _CALL.sub("", strip_thoughts(text))).strip()


def before_new_question(text: str, cue_words: Sequence[str] = ()) -> str:
    """The text up to a question that the model asks itself after it has answered."""
    if _NEW.search(text) is None:
        return text
    cues = _cues(tuple(cue_words))
    ends = [m.end() for p in (_HASHES, _BOX, _TAG, cues) if (m := p.search(text))]
    header = _NEW.search(text, min(ends)) if ends else None
    return text[: header.start()].rstrip() if header else text


def marks(text: str, cue_words: Sequence[str] = ()) -> list[Mark]:
    """All marks of a text that has no thoughts, in their order; of very many the last ones."""
    out = _boxes(text)
    out += [Mark(m.start(), m.group(2).strip(), "tag") for m in _last(_TAG, text)]
    out += [Mark(m.start(), m.group(1).strip(), "hashes") for m in _last(_HASHES, text)]
    for match in _last(_cues(tuple(cue_words)), text):
        before = text[max(0, match.start() - 160) : match.start()]
        sentence = re.split(r"[.!?\n](?:\s|$)|[;\n]|,\s+(?:but|so|yet|however)\b", before)[-1]
        content = text[match.end() : match.end() + _MAX_CUED]
        asked = _ASKED.search(sentence) and "?" in content.split("\n", 1)[0][:60]
        if _OTHERS.search(sentence) or _DENIED.search(sentence) or asked:
            continue
        hedged = re.search(r"\b(?:may|might|could|seems)\b", match.group(), re.IGNORECASE)
        out.append(Mark(match.start(), content, "cue", sure=not hedged))
    return sorted(out, key=lambda m: m.start)


def _last(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    return list(deque(pattern.finditer(text), maxlen=_MAX_MARKS))


def _boxes(text: str) -> list[Mark]:
    out: list[Mark] = []
    for match in _last(_BOX, text):
        depth, end = 1, -1
        for i in range(match.end(), min(len(text), match.end() + _MAX_CONTENT)):
            if text[i] in "{}" and text[i - 1] != "\\":
                depth += 1 if text[i] == "{" else -1
                if depth == 0:
                    end = i
                    break
        content = text[match.end() : end].strip() if end >= 0 else ""
        if content:
            out.append(Mark(match.start(), content, "box"))
    return out


@functools.lru_cache(maxsize=64)
def _cues(extra: tuple[str, ...]) -> re.Pattern[str]:
    words = "|".join(re.escape(w) for w in sorted({*CUES, *_MORE_CUES, *extra}, key=len, reverse=True) if w)
    return re.compile(
        rf"(?<![A-Za-z])(?:{words})(?:\(?s\)?|en|s)?(?![A-Za-z]){_AFTER}"
        rf"(?:[ \t]+(?:to|for|of|here|in|choice|option|letter)\b[^.\n:?!=]{{0,80}}?)?{_LINE}"
        rf"(?:(?:(?:{_BE})(?![A-Za-z])|{_UNSPACED}){_LINE}(?:{_SURELY}\b[ \t,]*)*(?:[:：]|\.\.\.|…)?"
        rf"|[:：=]|(?<=ans)\.|->|→|[-–—](?=\s))"
        rf"(?:\*\*|__)?(?=\s*\S)",
        re.IGNORECASE,
    )
