"""Completions cut into steps: pieces join back, maths stays whole, tokens hold the characters they should."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.policy.render import ChatRenderer
from rlready.policy.tokenize import bpe_tokenizer, word_tokenizer
from rlready.rollout.steps import SplitError, StepRule, by_line, by_separator, math, maths, on_tokens, pieces_of, spans

TEXTS = ["Tom has 3 apples.\nHe buys 2 more.\n#### 5", "Let $x = 3$. Then \\(x+1\\) is é or 数学 🙂."]


def cut(text: str, starts: list[int]) -> list[str]:
    return [text[a:b] for a, b in spans(starts, len(text))]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a\nb\n#### 3", ["a\n", "b\n#### 3"]),
        ("\n\na\nb", ["\n\na\n", "b"]),  # leading empty lines join the first real step
        ("a\n\n  \nb\n", ["a\n\n  \n", "b\n"]),  # empty lines are no steps
        ("a\n#### 3\nand more\n", ["a\n#### 3\nand more\n"]),  # from the mark on, all is the final answer
        ("#### 3", ["#### 3"]),  # an answer without steps is the step
        ("\n#### 3\nb", ["\n#### 3\n", "b"]),
        ("", [""]),
        ("\n\n", ["\n\n"]),
    ],
)
def test_a_line_is_a_step_and_the_answer_joins_the_last(text: str, pieces: list[str]) -> None:
    assert cut(text, by_line(text)) == pieces


def test_the_mark_of_the_answer_is_a_setting() -> None:
    assert cut("+1=2\n#2", by_line("+1=2\n#2", answer="#")) == ["+1=2\n#2"]
    assert cut("+1=2\n#2", by_line("+1=2\n#2", answer="")) == ["+1=2\n", "#2"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "We first add the numbers. Then we divide by three.",
            ["We first add the numbers. ", "Then we divide by three."],
        ),
        ("We first add the numbers. then we divide by three.", ["We first add the numbers. then we divide by three."]),
        (
            "We first add the numbers\nthen we divide by three.",
            ["We first add the numbers\n", "then we divide by three."],
        ),
        ("So. The numbers are added now.", ["So. The numbers are added now."]),  # short pieces join what follows
        ("The numbers are added now. So.", ["The numbers are added now. So."]),  # a short last one what precedes
        (
            "The sum is $a. B$ in any case. Now divide by three please.",
            ["The sum is $a. B$ in any case. ", "Now divide by three please."],
        ),
        (
            "\\begin{align}x &= 1\\\\\ny &= 2\n\\end{align}\nAll in all that makes 3.",
            ["\\begin{align}x &= 1\\\\\ny &= 2\n\\end{align}\n", "All in all that makes 3."],
        ),
        (
            "It costs \\$5. Tomorrow it will cost $6. That is a lot of money.",
            ["It costs \\$5. Tomorrow it will cost $6. ", "That is a lot of money."],
        ),
        (
            "We have \\[ x = 1 \n\n y = 2 and it stops. Here Is No Step any more",
            ["We have \\[ x = 1 \n\n y = 2 and it stops. Here Is No Step any more"],
        ),
    ],
)
def test_sentences_are_steps_and_maths_stays_whole(text: str, pieces: list[str]) -> None:
    assert cut(text, math(text)) == pieces


def test_a_short_piece_of_its_own_is_merged_where_the_sentence_was_short() -> None:
    text = "It costs \\$5. Tomorrow it will cost $6. That is a lot of money."
    assert cut(text, math(text, least=5)) == [
        "It costs \\$5. ",
        "Tomorrow it will cost $6. ",
        "That is a lot of money.",
    ]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("a $x$ b $$y$$ c", ["$x$", "$$y$$"]),
        (r"\(a\) \[b\] \$ \\", [r"\(a\)", r"\[b\]"]),
        (r"\begin{a}\begin{a}x\end{a}\end{a}\begin{b}y", [r"\begin{a}\begin{a}x\end{a}\end{a}", r"\begin{b}y"]),
        ("one $ and\n\nanother $ too", []),  # inline maths ends with its paragraph
        ("a $x \\$ y$ b", ["$x \\$ y$"]),
        ("a $$ x", ["$$ x"]),
    ],
)
def test_maths_is_found(text: str, inside: list[str]) -> None:
    assert [text[a:b] for a, b in maths(text)] == inside


marks = st.lists(
    st.sampled_from(
        ["$", "$$", "\\[", "\\]", "\\(", "\\)", "\\begin{a}", "\\end{a}", ". ", "\n", "A", "b ", "? T", "#### "]
    )
).map("".join)


@given(st.one_of(st.text(), marks), st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_pieces_join_back_and_no_cut_is_inside_maths(text: str, least: int) -> None:
    for starts in (by_line(text), math(text, least=least)):
        assert starts[0] == 0 and starts == sorted(set(starts))
        assert "".join(cut(text, starts)) == text
        assert all(start < len(text) for start in starts[1:])
    starts = math(text, least=least)
    assert not any(a < start < b for a, b in maths(text) for start in starts)
    if len(starts) > 1:
        assert all(len(piece.strip()) >= least for piece in cut(text, starts))


def words() -> ChatRenderer:
    return ChatRenderer(word_tokenizer(["3", "5", "8", ";", "#"]), end="<end>")


def bytes_() -> ChatRenderer:
    return ChatRenderer(bpe_tokenizer(TEXTS, 300), turn="<turn>", end="<end>")


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_the_texts_of_tokens_join_to_the_text(text: str) -> None:
    render = bytes_()
    ids = render.tokenizer.encode(text)
    pieces = pieces_of(ids, render.decode)
    assert len(pieces) == len(ids) and "".join(pieces) == text


@given(st.text(alphabet="a \n.é数🙂#", max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_step_begins_with_the_token_that_holds_its_first_character(text: str) -> None:
    render = bytes_()
    ids = render.encode_completion(text)
    starts = StepRule("line").starts(ids, render)
    assert starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < len(ids)
    pieces = pieces_of(ids[:-1], render.decode)
    before = ["".join(pieces[:start]) for start in starts]
    for at, character in zip(starts[1:], by_line(text)[1:], strict=False):
        if len(starts) == len(by_line(text)):  # no two steps within one token
            assert len("".join(pieces[:at])) <= character < len("".join(pieces[: at + 1]))
    assert before == sorted(before, key=len)


def test_two_steps_within_one_token_are_one() -> None:
    assert on_tokens([0, 2, 3, 5], ["ab", "cd", "e", "f"]) == [0, 1, 3]


def test_a_character_of_several_tokens_belongs_to_the_first() -> None:
    render = ChatRenderer(bpe_tokenizer(["x"], 259), turn="<turn>", end="<end>")
    ids = render.tokenizer.encode("a🙂\nb")
    assert pieces_of(ids, render.decode) == ["a", "🙂", "", "", "", "\n", "b"]


def test_a_separator_token_ends_a_step() -> None:
    render = words()
    ids = render.encode_completion("3 ; 5 8 ; # 8")
    assert StepRule("separator", separator=";", answer="").starts(ids, render) == [0, 2, 5]
    assert StepRule("separator", separator=";", answer="#").starts(ids, render) == [0, 2]
    assert StepRule("every", size=3).starts(ids, render) == [0, 3, 6]
    assert by_separator(["a\n", "b", ".\n", "c"], "\n") == [0, 1, 3]
    assert by_separator(["a", ";"], ";") == [0]  # nothing follows, so nothing begins


def test_an_answer_that_is_only_an_end_token_is_one_step() -> None:
    render = words()
    for kind in ("line", "math", "every"):
        assert StepRule(kind).starts(render.encode_completion(""), render) == [0]  # type: ignore[arg-type]
    assert StepRule("separator", separator=";").starts(render.encode_completion(""), render) == [0]


def test_what_cannot_be_cut_says_so() -> None:
    render = words()
    with pytest.raises(SplitError, match="no tokens"):
        StepRule("line").starts([], render)
    with pytest.raises(SplitError, match="not its text"):
        pieces_of([1, 2, 3], lambda ids: "x" * len(ids) ** 2)
    with pytest.raises(UserError, match="separator"):
        StepRule("separator")
    with pytest.raises(UserError, match="unknown"):
        StepRule("page")  # type: ignore[arg-type]
