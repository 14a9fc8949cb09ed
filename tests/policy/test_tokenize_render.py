"""Text to ids and back: nothing unknown passes silently, and contexts only ever grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.policy.render import ChatRenderer
from rlready.policy.tokenize import TextTokenizer, bpe_tokenizer, word_tokenizer
from rlready.types import Message, Part

WORDS = ["alpha", "beta", "gamma", "delta", "on->off", "ü"]
WORD = word_tokenizer(WORDS, specials=("<s>", ">", "<end>", "<user>", "<tool>"))
BPE = bpe_tokenizer(
    ["alpha beta gamma", "delta on->off"] * 3, 300, specials=("<s>", "<turn>", "<end>", "<user>", "<tool>")
)


def test_word_ids_are_stable_and_specials_come_first() -> None:
    a = word_tokenizer(["b a", "c"], specials=("<s>", ">"))
    b = word_tokenizer(["c", "a", "a b"], specials=("<s>", ">"))
    assert [a.token(i) for i in range(len(a))] == ["<s>", ">", "a", "b", "c"]
    assert a.encode("c  a\nb") == b.encode("c a b") == [4, 2, 3] and a.decode([4, 0, 3]) == "c <s> b"


def test_unknown_words_are_errors_unless_asked_for() -> None:
    with pytest.raises(UserError, match=r'"alpa" is not in the vocabulary of 11 tokens. Nearest: alpha'):
        WORD.encode("beta alpa")
    with pytest.raises(UserError, match="not in the vocabulary"):
        WORD.id("nope")
    lenient = word_tokenizer(WORDS, unk="<unk>")
    assert lenient.decode(lenient.encode("alpha nope")) == "alpha <unk>"
    with pytest.raises(UserError, match="Id 99 is outside"):
        WORD.decode([1, 99])
    with pytest.raises(UserError, match="one word"):
        word_tokenizer(WORDS, specials=("<a b>",))


@given(st.lists(st.sampled_from([*WORDS, ">", "<s>"]), max_size=12))
def test_word_level_agrees_with_the_library(words: list[str]) -> None:
    text = "  ".join(words)
    assert WORD.encode(text) == WORD.backend.encode(text).ids
    assert WORD.decode(WORD.encode(text)) == " ".join(words) == WORD.backend.decode(WORD.encode(text))


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_bpe_writes_any_text_and_text_cannot_forge_special_tokens(text: str) -> None:
    text = f"{text}<turn>{text}<end>"
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text and not {BPE.id("<turn>"), BPE.id("<end>")} & set(ids)


def test_bpe_refuses_what_it_cannot_be() -> None:
    with pytest.raises(UserError, match="at least 259"):
        bpe_tokenizer(["a"], 258)
    with pytest.raises(UserError, match="also a byte"):
        bpe_tokenizer(["a"], 300, specials=("<s>", ">"))


@pytest.mark.parametrize("tokenizer", [WORD, BPE])
def test_saved_tokenizers_read_the_same(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path, bos="<s>", eos="<end>")
    again = TextTokenizer.load(tmp_path)
    text = "alpha delta on->off beta ü"
    assert again.encode(text) == tokenizer.encode(text) and len(again) == len(tokenizer)
    assert again.specials == tokenizer.specials
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text, add_special_tokens=False).input_ids == tokenizer.encode(text)
    assert theirs.bos_token_id == tokenizer.id("<s>") and theirs.eos_token_id == tokenizer.id("<end>")
    with pytest.raises(UserError, match="no readable tokenizer"):
        TextTokenizer.load(tmp_path / "nowhere")


DIALECTS: dict[str, ChatRenderer] = {
    "open": ChatRenderer(WORD),
    "closed": ChatRenderer(WORD, end="<end>"),
    "bare": ChatRenderer(WORD, bos=None),
    "roles": ChatRenderer(WORD, end="<end>", roles={"user": "<user>", "tool": "<tool>"}),
    "bpe": ChatRenderer(BPE, turn="<turn>", end="<end>"),
    "bpe_open": ChatRenderer(BPE, turn="<turn>"),
    "bpe_roles": ChatRenderer(BPE, turn="<turn>", end="<end>", roles={"user": "<user>"}),
}


def test_the_compact_dialect_reads_as_documented() -> None:
    said = [
        Message("system", "gamma"),
        Message.user("alpha beta"),
        Message("assistant", "delta"),
        Message("tool", "beta"),
    ]
    expected = {
        "open": "<s> gamma alpha beta > delta beta >",
        "closed": "<s> gamma alpha beta > delta <end> beta >",
        "bare": "gamma alpha beta > delta beta >",
        "roles": "<s> gamma <user> alpha beta > delta <end> <tool> beta >",
        "bpe": "<s>gamma\nalpha beta<turn>delta<end>beta<turn>",
        "bpe_open": "<s>gamma\nalpha beta<turn>delta\nbeta<turn>",
        "bpe_roles": "<s>gamma<user>alpha beta<turn>delta<end>beta<turn>",
    }
    for name, text in expected.items():
        renderer = DIALECTS[name]
        assert renderer.tokenizer.decode(renderer.render(said)) == text, name


contents = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
replies = st.lists(st.tuples(st.sampled_from(["user", "tool", "system"]), contents), max_size=3)


@given(
    st.sampled_from(sorted(DIALECTS)),
    replies,
    st.lists(st.tuples(contents, replies), min_size=1, max_size=4),
    st.data(),
)
def test_extending_equals_rendering_the_whole(
    name: str, start: list[tuple[str, str]], turns: list[tuple[str, list[tuple[str, str]]]], data: st.DataObject
) -> None:
    renderer = DIALECTS[name]
    said = [Message(role, text) for role, text in start]  # type: ignore[arg-type]
    prompt = renderer.render(said)
    for text, new in turns:
        completion = renderer.encode_completion(text)
        assert renderer.decode(completion) == text
        if renderer.end is not None and data.draw(st.booleans()):
            completion = completion[:-1]  # cut short before its end token
        messages = [Message(role, reply) for role, reply in new]  # type: ignore[arg-type]
        extended = renderer.extend(prompt, completion, messages)
        assert extended[: len(prompt) + len(completion)] == prompt + completion
        said += [Message("assistant", text), *messages]
        prompt = extended
        assert prompt == renderer.render(said)


def test_sampled_ids_survive_whatever_they_are() -> None:
    """A completion whose text would encode differently stays as it was sampled."""
    renderer = DIALECTS["bpe"]
    pieces = [BPE.id("a"), BPE.id("l"), BPE.id("p"), BPE.id("h"), BPE.id("a")]
    assert BPE.encode(BPE.decode(pieces)) != pieces
    prompt = renderer.render([Message.user("beta")])
    assert renderer.extend(prompt, pieces, [Message.user("x")])[len(prompt) :][:5] == pieces
    odd = DIALECTS["closed"]
    forged = [WORD.id(">"), WORD.id("<s>")]
    assert odd.extend([0, 1], forged, [])[:4] == [0, 1, *forged]


def test_stop_ids_images_controls_and_empty_turns() -> None:
    closed, open_ = DIALECTS["closed"], DIALECTS["open"]
    assert closed.stop_ids == (WORD.id("<end>"),) and open_.stop_ids == ()
    image = Message("user", (Part("text", "alpha"), Part("image", image="x.png")))
    with pytest.raises(UserError, match="has an image"):
        closed.render([image])
    assert closed.render([Message("user", (Part("text", "alpha"),))]) == closed.render([Message.user("alpha")])
    assert closed.controls_in("alpha > beta") == [">"] and DIALECTS["bpe"].controls_in("a <turn> b") == []
    assert closed.encode_completion("") == [WORD.id("<end>")]
    with pytest.raises(UserError, match="empty assistant turn"):
        open_.encode_completion("")
    with pytest.raises(UserError, match="not in the vocabulary"):
        ChatRenderer(WORD, turn="<turn>")
    again = ChatRenderer.from_json(WORD, DIALECTS["roles"].to_json())
    assert again.render([Message.user("alpha")]) == DIALECTS["roles"].render([Message.user("alpha")])


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_transformers_writes_the_same_dialect(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    renderer = DIALECTS[name]
    renderer.tokenizer.save(tmp_path, bos=renderer.bos, eos=renderer.end, chat_template=renderer.chat_template())
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    said = [("system", "gamma"), ("user", "alpha beta"), ("assistant", "delta"), ("tool", "beta"), ("user", "alpha")]
    ids = theirs.apply_chat_template(
        [{"role": r, "content": c} for r, c in said], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(ids) == renderer.render([Message(r, c) for r, c in said])  # type: ignore[arg-type]
