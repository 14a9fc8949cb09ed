"""For tests of full presets: a small checkpoint that is sometimes right, a file of a dozen problems, and spies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlready.algorithms import SFT
from rlready.policy.base import OptimizerConfig, Sample, SampleRequest
from rlready.policy.hf import HFPolicy
from rlready.policy.hf.learner import HFLearner
from rlready.policy.hf.renderer import HFRenderer
from rlready.policy.hf.sampler import HFSampler
from rlready.rewards import ThinkFormat
from rlready.run import Run
from rlready.types import Message, Row
from tests.policy.hf_fixtures import folder

SUMS = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3, 4)]
SYSTEM = ThinkFormat().instruction()


def opened(root: Path, config: Any, resume: str | None = None) -> Run:
    return Run.create("full", config, 3, root=root, resume=resume, progress="quiet")


def question(a: int, b: int) -> str:
    return f"Tell the sum of {a} and {b}."


def answer(a: int, b: int, said: int) -> str:
    return f"<think>Look at the two of them.\nTogether they make it.</think>\nSo the total is \\boxed{{{said}}}"


def spell(policy: HFPolicy, text: str) -> list[int]:
    """The text in letters alone, where the tokenizer itself would take whole words: so whoever writes it out and reads
    it in again gets other ids."""
    tokenizer = policy.renderer.tokenizer  # type: ignore[attr-defined]
    ids: list[int] = tokenizer.convert_tokens_to_ids(list(text))
    assert tokenizer.unk_token_id not in ids and ids != policy.renderer.encode_completion(text)[:-1]
    return ids


def problems(path: Path, **names: str) -> Path:
    """A dozen problems."""
    problem, gold = names.get("problem", "problem"), names.get("answer", "answer")
    lines = [{problem: question(a, b), gold: str(a + b), "solution": answer(a, b, a + b)} for a, b in SUMS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def checkpoint(path: Path) -> Path:
    """A random Llama that has then seen answers, two of three right, with and without the system prompt."""
    policy = HFPolicy.load(folder(path / "random", sharp=1.0, context=384), optimizer=OptimizerConfig(lr=1e-2))
    rows = []
    for i, (a, b) in enumerate(SUMS * 3):
        messages = [Message.user(question(a, b))]
        if i % 2:
            messages.insert(0, Message("system", SYSTEM))
        said = a + b + (i // len(SUMS) == 2)
        ids = [*spell(policy, answer(a, b, said)), policy.renderer.stop_ids[0]]
        rows.append(Row.from_segments([(policy.renderer.render(messages), 0.0), (ids, 1.0)]))
    SFT(seed=0).fit_rows(policy, rows, epochs=16, batch_tokens=1000)
    policy.save(path / "model")
    return path / "model"


@dataclass
class Spy:
    """What was sampled, written and trained on.

    Attributes:
        asked: requests and their samples.
        trained: rows that a gradient was taken of.
        encoded: texts that a tokenizer was given.
    """

    asked: list[tuple[SampleRequest, Sample]] = field(default_factory=list)
    trained: list[Row] = field(default_factory=list)
    encoded: list[str] = field(default_factory=list)

    @classmethod
    def on(cls, monkeypatch: pytest.MonkeyPatch) -> Spy:
        spy = cls()
        sample, backward, encode = HFSampler.sample, HFLearner.forward_backward, HFRenderer._encode

        async def sampled(self: HFSampler, requests: Sequence[SampleRequest]) -> list[Sample]:
            out = await sample(self, requests)
            spy.asked += zip(requests, out, strict=True)
            return out

        def trained(self: HFLearner, rows: Sequence[Row], *args: Any, **options: Any) -> dict[str, float]:
            spy.trained += rows
            return backward(self, rows, *args, **options)

        def encoded(self: HFRenderer, text: str) -> list[int]:
            spy.encoded.append(text)
            return encode(self, text)

        monkeypatch.setattr(HFSampler, "sample", sampled)
        monkeypatch.setattr(HFLearner, "forward_backward", trained)
        monkeypatch.setattr(HFRenderer, "_encode", encoded)
        return spy

    @property
    def probes(self) -> list[tuple[SampleRequest, Sample]]:
        """Those of VinePPO."""
        return [(r, s) for r, s in self.asked if r.session[0] == "probe"]

    def check_ids(self, policy: HFPolicy) -> None:
        """Fails where something was trained on or gone on from that was not sampled so, id for id."""
        said = [(r.prompt_ids, s.completion_ids) for r, s in self.asked if r.session[0] != "probe"]
        whole = {(*prompt, *completion) for prompt, completion in said}
        assert self.trained and all(tuple(row.tokens.tolist()) in whole for row in self.trained)
        again = [policy.renderer.encode_completion(policy.renderer.decode(c)) for _, c in said]
        assert sum(ids[:-1] != c[: len(ids) - 1] for ids, (_, c) in zip(again, said, strict=True)) > len(said) / 2
        begun = {state[:n] for state in whole for n in range(len(state) + 1)}
        assert all(tuple(request.prompt_ids) in begun for request, _ in self.probes)
