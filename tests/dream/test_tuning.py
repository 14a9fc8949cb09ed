"""A Hugging Face model tuned on logs: rows in its own chat template, learning, resuming, saving, answering."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlready.dream.base import Moment, Reply
from rlready.dream.domain import Domain, call_text
from rlready.dream.format import Unparsable
from rlready.dream.library import Library
from rlready.dream.simulators import load_simulator
from rlready.dream.simulators.text import TextModel
from rlready.dream.simulators.tuning import TUNING, Tuning
from rlready.dream.state import StateRules
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.policy.hf import HFPolicy, LoraSettings
from tests.policy.hf_fixtures import folder

CONFIG = replace(TUNING, epochs=10, lr=1e-2, batch_tokens=3000, max_tokens=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("hf") / "model", context=2048)


def logs() -> tuple[Domain, Library]:
    episodes = [
        LoggedEpisode(
            f"t{i}",
            f"is {name} in?",
            (call_text("look", {"who": name}), "yes"),
            ('{"in": true}', ""),
            True,
            True,
        )
        for i, name in enumerate(("ann", "bob"))
    ]
    domain = Domain.learn(episodes, rules="Be brief.")
    return domain, Library(episodes, domain, StateRules(reads=frozenset({"look"})))


def tuning(model: Path, **options: Any) -> Tuning:
    domain, library = logs()
    policy = HFPolicy.load(model, lora=LoraSettings(rank=4), exact=True)
    return Tuning(library, domain, policy, name=f"hf:{model}", config=CONFIG, **options)


def answers(simulator: Any, domain: Domain) -> list[Any]:
    async def ask() -> list[Any]:
        out = []
        for i, name in enumerate(("ann", "bob")):
            (action,) = domain.parse(call_text("look", {"who": name}))
            moment = Moment(f"t{i}", f"is {name} in?", 3)
            try:
                out.append(await simulator.reply(moment, action))
            except Unparsable as error:  # a model as small as this one does not always keep to the form
                out.append(str(error))
            out.append(await simulator.judge(replace(moment, past=((action, Reply('{"in": true}')),))))
        return out

    return asyncio.run(ask())


def test_a_tuned_model_learns_resumes_and_is_found_by_its_string(model: Path, tmp_path: Path) -> None:
    domain, library = logs()
    whole = tuning(model)
    assert whole.counts["episodes"] == 2 and whole.counts["too_long"] == 0
    row = whole.rows[0]
    text = whole.policy.renderer.tokenizer.decode(row.tokens)  # type: ignore[attr-defined]
    assert text.startswith("<|im_start|>system\n") and "Be brief." in text and "<|im_start|>assistant\n" in text
    trained = whole.policy.renderer.decode(row.tokens[row.weights["nll"] > 0].tolist())
    assert trained.startswith('{"in": ')  # replies alone, not what the agent wrote
    for _ in range(whole.steps // 2):
        whole.advance()
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    simulator = asyncio.run(whole.run())
    assert max(whole.losses[-3:]) < 0.4 * min(whole.losses[:2])
    said = answers(simulator, domain)
    assert simulator.metrics["fit/episodes"] == 2 and simulator.metrics["fit/steps"] == whole.steps

    resumed = tuning(model, state=torch.load(tmp_path / "state.pt", weights_only=False))
    again = asyncio.run(resumed.run())
    assert resumed.losses == whole.losses and answers(again, domain) == said

    whole.save(tmp_path / "gym" / "model")
    found = load_simulator(f"hf:{model}", tmp_path / "gym", library, domain)
    assert isinstance(found, TextModel) and found.greedy and found.name == f"hf:{model}"
    assert answers(found, domain) == said


def test_an_untuned_model_can_be_asked(model: Path, tmp_path: Path) -> None:
    domain, library = logs()
    found = load_simulator(f"hf:{model}", tmp_path, library, domain)
    assert isinstance(found, TextModel) and 0 <= asyncio.run(found.judge(Moment("t0", "is ann in?", 3))) <= 1


def test_a_state_of_something_else_is_refused(model: Path) -> None:
    state = tuning(model).state_dict()
    with pytest.raises(UserError, match="belongs to other recordings"):
        tuning(model, state={**state, "fingerprint": "0"})
    domain, _ = logs()
    with pytest.raises(UserError, match="holds no steps"):
        Tuning(Library([], domain, StateRules()), domain, HFPolicy.load(model), name="hf:x")
