"""A small transformer learns the shop, says the same whenever it is asked, and resumes as if it was never stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlready.dream.base import Learns, Moment, Reply, Simulator
from rlready.dream.format import Unparsable
from rlready.dream.library import Library, read_action
from rlready.dream.simulators import load_simulator
from rlready.dream.simulators.fitting import Fitting, TextConfig
from rlready.dream.simulators.layout import RIGHT, Layout
from rlready.dream.simulators.rows import RowWriter
from rlready.dream.simulators.text import TextModel
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import Policy, Sample, SampleRequest, require_learner
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig
from rlready.types import Row
from tests.dream.simulators.shop import DOMAIN, Reads, episodes, order, play, stock

SHAPE = TinyConfig(dim=48, layers=2, heads=4, kv_heads=1, max_len=256, value_head=False)
CONFIG = TextConfig(model=SHAPE, epochs=16, batch_tokens=800, lr=3e-3, judge_share=0.6)
SMALL = replace(CONFIG, model=replace(SHAPE, dim=16, layers=1, heads=2), epochs=4, max_steps=12)


def shop(runs: int, start: int = 0) -> Library:
    given = [play(task, run) for task in range(4) for run in range(start, start + runs)]
    return Library(given, DOMAIN, Reads())  # type: ignore[arg-type]


def act(text: str):  # type: ignore[no-untyped-def]
    return read_action(text, DOMAIN)


@pytest.fixture(scope="module")
def fitted() -> TextModel:
    torch.set_num_threads(1)
    return asyncio.run(TextModel.fit(shop(60), DOMAIN, config=CONFIG))


def test_it_learns_replies_and_verdicts(fitted: TextModel) -> None:
    test = shop(24, start=1000)
    fitted.greedy = True

    async def measure() -> tuple[float, float]:
        right, judged = [], []
        for id in test:
            e, steps = test.episodes[id], test.steps(id)
            for t, (action, truth) in enumerate(steps):
                said = await fitted.reply(Moment(e.task_id, e.instruction, 1, steps[:t]), action)
                right.append((said.text, said.failed, said.done) == (truth.text, truth.failed, truth.done))
            judged.append((await fitted.judge(Moment(e.task_id, e.instruction, 1, steps)) > 0.5) == e.success)
        return sum(right) / len(right), sum(judged) / len(judged)

    replies, verdicts = asyncio.run(measure())
    fitted.greedy = False
    assert replies > 0.9 and verdicts > 0.9
    assert fitted.metrics["fit/loss"] < 0.3 < fitted.metrics["fit/first_loss"]


def test_the_judge_is_not_moved_by_who_looked(fitted: TextModel) -> None:
    look, buy = (act(stock("books")), Reply("2 books left")), (act(order("books", 1)), Reply("ordered 1 books"))
    blind = Moment("t1", "order 1 books", 1, (buy,), facts=(look,))
    looked = replace(blind, past=(look, buy))
    assert asyncio.run(fitted.judge(blind)) == asyncio.run(fitted.judge(looked))


def test_same_moment_same_reply_over_a_thousand_replays(fitted: TextModel) -> None:
    """Alone or among others, first or later: a reply is a function of world, history and action."""
    lib = shop(3, start=2000)
    cases = []
    for id in list(lib)[:5]:
        e, steps = lib.episodes[id], lib.steps(id)
        cases += [(Moment(e.task_id, e.instruction, 5, steps[:t]), a) for t, (a, _) in enumerate(steps)]

    async def replay() -> set[str]:
        alone = [await fitted.reply(m, a) for m, a in cases]
        seen = {repr([(r.text, r.failed, r.done) for r in alone])}
        for i in range(1000 // len(cases)):
            if i % 10 == 0:
                fitted.release(5)
            replies = await asyncio.gather(*(fitted.reply(m, a) for m, a in cases))
            seen.add(repr([(r.text, r.failed, r.done) for r in replies]))
        return seen

    assert len(asyncio.run(replay())) == 1


def test_questions_about_the_world_are_shared(fitted: TextModel) -> None:
    """The caller asks them with an empty past, so whatever a member did, it hears what the others heard."""
    action = act(stock("apples"))

    async def ask(world: int) -> Reply:
        return await fitted.reply(Moment("t0", "order 1 apples", world), action)

    async def ask_all() -> list[list[Reply]]:
        return [list(await asyncio.gather(*(ask(world) for _ in range(4)))) for world in range(8)]

    for group in asyncio.run(ask_all()):
        assert len({(r.text, r.failed) for r in group}) == 1


def test_worlds_have_noise_of_their_own() -> None:
    """An untrained model says different things in different worlds, and the same in one."""
    model = Fitting(shop(3), DOMAIN, replace(SMALL, max_tokens=4)).model
    seen = []

    class Ears:
        version = 0

        async def sample(self, requests: list[SampleRequest]) -> list[Sample]:
            seen.append(requests[0].seed)
            ids = model.policy.renderer.encode_completion("2 books left")
            return [Sample(ids, [-0.5] * len(ids), "end")]

        def load(self, state: Any, version: int) -> None: ...
        def release(self, session: Any) -> None: ...

    model.policy = Policy(Ears(), model.policy.renderer)  # type: ignore[arg-type]
    for world in (1, 2, 1):
        said = asyncio.run(model.reply(Moment("t", "order 1 apples", world), act(stock("books"))))
    assert seen[0] == seen[2] != seen[1]
    assert said.confidence == pytest.approx(2.718281828**-0.5)


def test_what_cannot_be_read_is_drawn_once_more_then_raised() -> None:
    model = Fitting(shop(3), DOMAIN, SMALL).model
    renderer = model.policy.renderer
    said: list[tuple[str, str]] = []
    seeds = []

    class Script:
        version = 0

        async def sample(self, requests: list[SampleRequest]) -> list[Sample]:
            text, stop = said.pop(0)
            seeds.append(requests[0].seed)
            ids = renderer.encode_completion(text)
            return [Sample(ids, [0.0] * len(ids), stop)]  # type: ignore[arg-type]

        def load(self, state: Any, version: int) -> None: ...
        def release(self, session: Any) -> None: ...

    model.policy = Policy(Script(), renderer)  # type: ignore[arg-type]
    moment, action = Moment("t", "order 1 apples", 1), act(stock("books"))
    said[:] = [("<done> left", "end"), ("2 books left", "end")]
    assert asyncio.run(model.reply(moment, action)).text == "2 books left"
    assert model.resampled == 1 and seeds[0] != seeds[1]
    for bad in (("<done> left", "end"), ("2 books", "length"), ("unheard-of-word", "end")):
        said[:] = [bad, bad]
        with pytest.raises(Unparsable):
            asyncio.run(model.reply(moment, action))


def test_the_verdicts_probability_is_that_of_the_two_way_choice(fitted: TextModel) -> None:
    moment = Moment("t0", "order 1 apples", 1, ((act(order("apples", 1)), Reply("ordered 1 apples")),))
    renderer = fitted.policy.renderer
    prompt = fitted.prompts.verdict(moment.instruction, (), moment.past)
    scores = []
    for text in ("<right>", "<wrong>"):
        row = Row.from_segments([(prompt, 0.0), (renderer.encode_completion(text), 1.0)])
        scores.append(require_learner(fitted.policy).logprobs([row])[0][len(prompt)])
    expected = 1 / (1 + 2.718281828 ** float(scores[1] - scores[0]))
    assert asyncio.run(fitted.judge(moment)) == pytest.approx(expected, abs=1e-3)


def test_a_resumed_fit_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    lib = shop(6)
    whole: list[float] = []
    straight = asyncio.run(TextModel.fit(lib, DOMAIN, config=SMALL, on_step=lambda f, m: whole.append(m["nll"])))
    kept: list[dict[str, Any]] = []

    def stop(fitting: Fitting, metrics: dict[str, float]) -> bool:
        if fitting.step == 5:
            torch.save(fitting.state_dict(), tmp_path / "state.pt")
        return fitting.step == 5

    asyncio.run(TextModel.fit(lib, DOMAIN, config=SMALL, on_step=stop))
    kept.append(torch.load(tmp_path / "state.pt", weights_only=False))
    rest: list[float] = []
    resumed = asyncio.run(
        TextModel.fit(lib, DOMAIN, config=SMALL, state=kept[0], on_step=lambda f, m: rest.append(m["nll"]))
    )
    assert whole[5:] == rest and len(whole) == 12
    assert resumed.metrics == straight.metrics
    a, b = (require_learner(m.policy).weights() for m in (straight, resumed))
    assert all(torch.equal(a[k], b[k]) for k in a)
    with pytest.raises(UserError, match="other recordings or another config"):
        Fitting(shop(5), DOMAIN, SMALL, kept[0])


def test_a_saved_model_answers_the_same(fitted: TextModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "gym" / "model")
    loaded: Simulator = load_simulator("tiny", tmp_path / "gym", fitted.library, DOMAIN)
    assert isinstance(loaded, TextModel) and loaded.settings() == fitted.settings() and loaded.name == "tiny"
    lib = shop(2, start=3000)
    for id in lib:
        e, steps = lib.episodes[id], lib.steps(id)
        for t, (action, _) in enumerate(steps):
            m = Moment(e.task_id, e.instruction, 5, steps[:t])
            assert asyncio.run(loaded.reply(m, action)) == asyncio.run(fitted.reply(m, action))
    with pytest.raises(UserError, match=r"no text\.json"):
        load_simulator("tiny", tmp_path, lib, DOMAIN)
    with pytest.raises(UserError, match="Did you mean retrieval"):
        load_simulator("retreival", tmp_path, lib, DOMAIN)
    for name in ("retrieval", "nearest", "no_change"):
        assert load_simulator(name, tmp_path, lib, DOMAIN).name == name


def test_rows_are_what_a_dream_shows() -> None:
    """The context of every trained reply is the very prompt that a dream would have, window included."""
    lib = shop(4)
    for config in (SMALL, replace(SMALL, model=replace(SMALL.model, max_len=48)), replace(SMALL, demos=2)):
        fitting = Fitting(lib, DOMAIN, config)
        writer = RowWriter(fitting.prompts)
        for id in lib:
            e, steps = lib.episodes[id], lib.steps(id)
            rows, targets = list(writer._episode(id)), []
            for row in rows:
                weight, start = row.weights["nll"], 0
                for i in range(1, len(row) + 1):
                    if i == len(row) or weight[i] != weight[i - 1]:
                        if weight[i - 1]:
                            targets.append((row.tokens[:start].tolist(), row.tokens[start:i].tolist()))
                        start = i
            world = Moment(e.task_id, e.instruction, 0)
            expected = [
                (
                    fitting.prompts.reply(replace(world, past=steps[:t]), action),
                    fitting.prompts.renderer.encode_completion(fitting.prompts.layout.write(reply)),
                )
                for t, (action, reply) in enumerate(steps)
            ]
            assert targets == expected
            assert all(len(row) <= config.model.max_len for row in rows)


def test_demonstrations_in_rows_are_never_the_tasks_own() -> None:
    secret = LoggedEpisode("secret", "order 1 apples", (stock("pears"), "done"), ("41 left", ""), True, True)
    lib = Library([*episodes(3), secret], DOMAIN, Reads())  # type: ignore[arg-type]
    fitting = Fitting(lib, DOMAIN, replace(SMALL, demos=3))
    moment, action = Moment("secret", "order 1 apples", 1), act(stock("pears"))
    shown = fitting.prompts.demos_at(moment, action, 0)
    assert len(shown) == 3 and all("41" not in reply for _, reply in shown)
    assert any("41" in reply for _, reply in fitting.model.prompts.demos_at(moment, action, 0))


def test_right_and_wrong_weigh_the_same() -> None:
    given = [play(t, r) for t in range(4) for r in range(12)]
    won, lost = [e for e in given if e.success], [e for e in given if not e.success]
    lib = Library([*won[:4], *lost[:12]], DOMAIN, Reads())  # type: ignore[arg-type]
    fitting = Fitting(lib, DOMAIN, SMALL)
    renderer = fitting.prompts.renderer
    assert isinstance(renderer, ChatRenderer)
    right = renderer.tokenizer.id(RIGHT)
    weight = {True: 0.0, False: 0.0}
    for row in RowWriter(fitting.prompts, 0.5)._verdicts(list(lib), 100.0):
        weight[right in row.tokens[-2:]] += float(row.weights["nll"].sum())
    assert weight[True] == pytest.approx(weight[False]) == pytest.approx(50.0)


def test_replies_with_line_breaks_are_written_as_they_were() -> None:
    lines = LoggedEpisode("t", "list", (stock("all"), "done"), ("apples 3\n  books 2", ""), True, True)
    fitting = Fitting(Library([lines], DOMAIN, Reads()), DOMAIN, replace(SMALL, vocab_size=400))  # type: ignore[arg-type]
    renderer = fitting.prompts.renderer
    text = "apples 3\n  books 2"
    assert renderer.decode(renderer.encode_completion(text)) == text
    words = Fitting(shop(2), DOMAIN, SMALL).prompts.renderer
    assert isinstance(words, ChatRenderer) and words.tokenizer.unk == "<unk>"
    assert words.render(Layout(system=False).episode("never heard of", (), act("at all")))


def test_it_goes_on_learning_and_that_is_kept() -> None:
    lib = shop(6)
    model = asyncio.run(TextModel.fit(lib, DOMAIN, config=SMALL))
    assert isinstance(model, Learns) and model.state_dict() == {}
    grown = Library([*lib.episodes.values(), *(play(0, r) for r in range(50, 54))], DOMAIN, Reads())  # type: ignore[arg-type]
    new = [id for id in grown if id not in lib.episodes]
    before = {k: v.clone() for k, v in require_learner(model.policy).weights().items()}
    numbers = asyncio.run(model.learn(grown, new, seed=1))
    assert numbers["learn/steps"] > 0 and model.library is grown
    after = require_learner(model.policy).weights()
    assert any(not torch.equal(before[k], after[k]) for k in before)
    again = asyncio.run(TextModel.fit(lib, DOMAIN, config=SMALL))
    again.load_state_dict(model.state_dict(), grown)
    weights = require_learner(again.policy).weights()
    assert all(torch.equal(weights[k], after[k]) for k in after)
    moment = Moment("t0", "order 1 apples", 3)
    assert asyncio.run(again.judge(moment)) == asyncio.run(model.judge(moment))


def test_nothing_recorded_is_an_error() -> None:
    with pytest.raises(UserError, match="holds no steps"):
        Fitting(Library([], DOMAIN, Reads()), DOMAIN)  # type: ignore[arg-type]
