"""Template and mask on tasks alone: each renderer's fault is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlready.doctor import check_mask, check_template, credit
from rlready.policy.render import ChatRenderer
from rlready.policy.tokenize import bpe_tokenizer, word_tokenizer
from rlready.types import Group, Message, Task

TASKS = [Task.of(f"Say {word} aloud", answer=word) for word in ("red", "green", "deep blue")]


def words(*extra: str, kind: type[ChatRenderer] = ChatRenderer) -> ChatRenderer:
    texts = [t.prompt[0].text for t in TASKS] + [t.data["answer"] for t in TASKS] + list(extra)
    return kind(word_tokenizer(texts, ("<s>", "<turn>", "<end>")), bos="<s>", turn="<turn>", end="<end>")


def errors(findings: Any) -> str:
    return " ".join(f.text for f in findings.errors)


def test_sound_renderers_pass() -> None:
    bpe = bpe_tokenizer([t.prompt[0].text for t in TASKS], 300)
    for renderer in (words(), ChatRenderer(bpe, bos="<s>", turn="<turn>", end="<end>")):
        assert check_template(TASKS, renderer).ok and not check_template(TASKS, renderer).warnings
        mask = check_mask(TASKS, renderer)
        assert mask.ok and "tokens are trained" in str(mask)
    said = sum(2 * len(words().encode_completion(t.data["answer"])) for t in TASKS)
    assert f"{said} of " in str(check_mask(TASKS, words()))


def test_a_renderer_that_encodes_its_own_words_again() -> None:
    class Again(ChatRenderer):
        def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Any) -> list[int]:
            return super().extend(prompt_ids, self.tokenizer.encode(self.decode(completion_ids))[:-1], new)

    assert "Extending the context changes what the model saw and said" in errors(
        check_template(TASKS, words(kind=Again))
    )


def test_a_renderer_that_loses_text() -> None:
    class Loses(ChatRenderer):
        def decode(self, completion_ids: Any) -> str:
            return super().decode(completion_ids).lower()

    found = errors(check_template(TASKS, words(kind=Loses)))
    assert "The user message is not what the ids decode to" in found


def test_a_renderer_that_differs_when_it_renders_afresh() -> None:
    class Strips(ChatRenderer):
        def render(self, messages: Any) -> list[int]:
            return super().render([m for m in messages if m.role != "assistant"])

    (warning, *_) = check_template(TASKS, words(kind=Strips)).warnings
    assert "extending and rendering afresh differ from token" in warning.text


def test_answers_that_cannot_be_said() -> None:
    tasks = [*TASKS, Task.of("Say red aloud", answer="purple", n=1), Task.of("Say red aloud", answer="red <end> red")]
    found = check_template(tasks, words())
    assert 'The answer "purple" cannot be written' in errors(found)
    assert 'The answer "red <end> red" holds the end token' in errors(found)
    assert "ids of a prompt" not in str(found), "the same question with other data is the task set's to tell"
    blanks = [*TASKS, Task.of(TASKS[0].prompt[0].text.replace(" ", "  "), answer="red", n=2)]
    assert f"1 of {len(blanks)} prompts have the ids of a prompt with other words" in str(
        check_template(blanks, words())
    )
    long = check_template(TASKS, words(), room=2)
    assert (
        "The prompt has" in errors(long) and long.errors[0].where.task == TASKS[0].id and "room for 2." in errors(long)
    )


def test_a_prompt_that_cannot_be_rendered() -> None:
    assert "The prompt cannot be rendered: The word" in errors(
        check_template([Task((Message.user("unheard of"),))], words())
    )


@pytest.mark.parametrize("slip", ["context", "nothing", "twice"])
def test_a_wrong_mask(slip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = credit.compile_groups

    def wrong(groups: list[Group], **kw: Any) -> Any:
        rows = real(groups, **kw)
        if slip == "twice":
            return rows + rows
        for row in rows:
            row.weights["policy"] = np.full_like(row.weights["policy"], 1.0 if slip == "context" else 0.0)
        return rows

    monkeypatch.setattr(credit, "compile_groups", wrong)
    found = check_mask(TASKS, words())
    assert not found.ok and "tokens would be trained" in errors(found)
