"""A gym as a folder: the same again after a round trip, one sentence where it cannot be read, and repair."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlready.aio import run_sync
from rlready.dream.checks import replay
from rlready.dream.gym import Gym
from rlready.dream.perturb import Perturb
from rlready.dream.simulators.confidence import Calibration
from rlready.dream.simulators.fitting import TextConfig
from rlready.dream.simulators.text import TextModel
from rlready.errors import UserError
from rlready.policy.tiny import TinyConfig
from rlready.rollout.episode import play as play_episode
from rlready.seeds import rng
from rlready.tasks.scoring import RewardFn
from rlready.types import Message, Trajectory, Turn, Verdict
from tests.dream.gyms import CLOSE, DOMAIN, STATE, gym_of, played, recorded, replies, transcript
from tests.dream.measure.desk import LIST, Scripted, cancel, doc, get

REPLAYS, SCRIPTS = 50, 20
SMALL = TextConfig(
    model=TinyConfig(dim=32, layers=1, heads=2, kv_heads=1, max_len=512, value_head=False),
    epochs=100, batch_tokens=2000, max_steps=80, max_tokens=24, lr=5e-3,
)  # fmt: skip


def scripts() -> list[tuple[int, list[str]]]:
    """Recorded ways, ways nobody went, wrong actions, several calls at once."""
    wrong = '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'
    out = []
    for i in range(SCRIPTS):
        chance = rng("script", i)
        order = f"W{chance.randrange(14)}"
        choice = [LIST, get(order), cancel(order), get("W3"), wrong, get(order) + cancel(order), "Really?"]
        out.append((chance.randrange(14), [*chance.choices(choice[:-1], k=chance.randrange(1, 5)), CLOSE]))
    return out


@pytest.fixture(scope="module")
def tiny() -> Gym:
    """A gym whose simulator is a small transformer after a second of training: much of what it says is noise."""
    torch.set_num_threads(1)
    gym = gym_of()
    gym.simulator = run_sync(TextModel.fit(gym.library, DOMAIN, config=SMALL))
    return gym


# ---------------------------------------------------------------------- same-action variance


async def _alone(gym: Gym) -> list[str]:
    """Each script once, one after another."""
    factory = gym.env_factory()
    return [
        repr(await replay(factory, gym.task(f"t{n}", f"Cancel order W{n} if it is open."), 7, actions))
        for n, actions in scripts()
    ]


async def _mixed(gym: Gym, times: int, seed: int) -> list[list[str]]:
    """All scripts so many times, all episodes at once, a step of a randomly chosen one at a time or many together."""
    chance = rng("mixed", seed)
    heard: list[list[str]] = [[] for _ in range(SCRIPTS)]

    async def one(i: int, n: int, actions: list[str]) -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        task = gym.task(f"t{n}", f"Cancel order W{n} if it is open.")
        heard[i].append(repr(await replay(gym.env_factory(), task, 7, actions)))

    work = [one(i, n, actions) for i, (n, actions) in enumerate(scripts()) for _ in range(times)]
    chance.shuffle(work)
    await asyncio.gather(*work)
    return heard


def differences(gym: Gym, batches: list[int]) -> int:
    """How many of the replays differ from the script played alone."""
    first = asyncio.run(_alone(gym))
    different = total = 0
    for seed, times in enumerate(batches):
        heard = asyncio.run(_mixed(gym, times, seed)) if times > 1 else [[x] for x in asyncio.run(_alone(gym))]
        different += sum(run != alone for alone, runs in zip(first, heard, strict=True) for run in runs)
        total += sum(map(len, heard))
    assert total == SCRIPTS * REPLAYS == 1000
    return different


def test_a_thousand_replays_by_retrieval_do_not_differ_once():
    assert differences(gym_of(), [*[1] * 10, 10, 30]) == 0


def test_a_thousand_replays_by_a_small_transformer_do_not_differ_once(tiny):
    first = asyncio.run(_alone(tiny))
    good = [run for run in first if "failure=None" in run]
    assert len(good) > SCRIPTS // 2 and len(set(good)) > SCRIPTS // 3  # it does say things
    assert differences(tiny, [1, 3, 6, 10, 30]) == 0


def test_the_count_would_find_a_difference():
    """A simulator with a memory between episodes is caught by the same measurement."""
    count = itertools.count()
    gym = gym_of(Scripted(lambda m, a: f"{next(count) // 500}"))
    assert differences(gym, [*[1] * 10, 10, 30]) > 0


# ---------------------------------------------------------------------- the folder


def filled(**options) -> Gym:
    return gym_of(
        runs=recorded(8), held_out=recorded(4, from_=8),
        splits={"train": [f"t{i}" for i in range(8)], "dev": ["t8", "t9"], "test": ["t10", "t11"]},
        **options,
    )  # fmt: skip


def test_a_round_trip_changes_nothing(tmp_path):
    gym = filled(
        reward_source="criteria", perturb=[Perturb("error", 0.2, ("get_order",)), Perturb("page", 0.1, size=2)],
        min_confidence=0.1, low_confidence="end", calibration=Calibration.fit([0.1, 0.9] * 20, [0, 1] * 20),
        about={"from": "a test"},
    )  # fmt: skip
    gym.save(tmp_path / "gym")
    again = Gym.load(tmp_path / "gym")
    for name in ("domain", "splits", "reward_source", "perturb", "min_confidence", "low_confidence", "about"):
        assert getattr(again, name) == getattr(gym, name), name
    assert again.folder == tmp_path / "gym" and again.simulator.name == "retrieval"
    assert list(again.library) == list(gym.library) and again.criteria.right == gym.criteria.right
    assert {e.task_id for e in again.held_out} == {"t8", "t9", "t10", "t11"}
    assert [again.calibrated(x / 7) for x in range(8)] == [gym.calibrated(x / 7) for x in range(8)]
    for n, actions in scripts():
        assert transcript(played(again, actions, task=f"t{n}")) == transcript(played(gym, actions, task=f"t{n}"))
    again.save(tmp_path / "twice")
    assert (tmp_path / "gym" / "gym.json").read_bytes() == (tmp_path / "twice" / "gym.json").read_bytes()


def test_a_trained_simulator_travels_with_it(tiny, tmp_path):
    tiny.simulator.save(tmp_path / "model")  # type: ignore[attr-defined]
    tiny.save(tmp_path / "gym", model=tmp_path / "model")
    again = Gym.load(tmp_path / "gym")
    assert asyncio.run(_alone(again)) == asyncio.run(_alone(tiny))
    other = Gym.load(tmp_path / "gym", simulator="no_change")
    assert other.simulator.name == "no_change" and other.calibration is None


def test_options_in_place_of_what_was_saved(tmp_path):
    filled(perturb=[Perturb("error", 0.2)]).save(tmp_path)
    gym = Gym.load(tmp_path, perturb=[], reward_source="criteria", min_confidence=0.3)
    assert gym.perturb == () and gym.reward_source == "criteria" and gym.min_confidence == 0.3


def test_saving_replaces_a_gym_only_when_it_is_whole(tmp_path, monkeypatch):
    filled().save(tmp_path / "gym")
    before = {p.name: p.read_bytes() for p in (tmp_path / "gym").iterdir()}
    gym = filled(about={"no": object()})
    with pytest.raises(TypeError):
        gym.save(tmp_path / "gym")
    assert {p.name: p.read_bytes() for p in (tmp_path / "gym").iterdir()} == before


def damage(folder: Path, **changes) -> None:
    path = folder / "gym.json"
    body = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in body.items() if v is not None or k in ("calibration", "criteria")}))


BROKEN = {
    "missing": (lambda f: (f / "gym.json").unlink(), "no gym.json"),
    "cut off": (lambda f: (f / "gym.json").write_text((f / "gym.json").read_text()[:300]), "damaged"),
    "not utf-8": (lambda f: (f / "gym.json").write_bytes(b"\xff\xfe{}"), "damaged"),
    "a list": (lambda f: (f / "gym.json").write_text("[]"), "damaged"),
    "later": (lambda f: damage(f, format=99), "format 99"),
    "no domain": (lambda f: damage(f, domain=None), "damaged"),
    "half a domain": (lambda f: damage(f, domain={"rules": ""}), "damaged"),
    "no splits": (lambda f: damage(f, splits=None), "damaged"),
    "no train": (lambda f: damage(f, splits={}), "damaged"),
    "state": (lambda f: damage(f, state={}), "damaged"),
    "perturb": (lambda f: damage(f, perturb=[{"what": 1}]), "damaged"),
    "reward source": (lambda f: damage(f, reward_source="modle"), "model"),
    "fingerprint": (lambda f: damage(f, fingerprint="0" * 16), "parser, template or flags"),
    "simulator": (lambda f: damage(f, simulator="retreival"), "retrieval"),
    "model": (lambda f: damage(f, simulator="tiny"), "no fitted simulator"),
    "store": (lambda f: (f / "MANIFEST.json").unlink(), "no experience store"),
    "segment": (lambda f: next(f.glob("0*.jsonl")).unlink(), "missing"),
    "record": (lambda f: next(f.glob("0*.jsonl")).write_bytes(b"{}\n" * 3), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_read_is_one_sentence(kind, saved, tmp_path):
    folder = tmp_path / "gym"
    shutil.copytree(saved, folder)
    fault, named = BROKEN[kind]
    fault(folder)
    with pytest.raises(UserError, match=named) as told:
        Gym.load(folder)
    assert str(folder) in str(told.value) or kind in ("reward source", "simulator")
    assert "\n" not in str(told.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "gym"
    filled().save(folder)
    return folder


def test_wrong_options_are_one_sentence(saved):
    for options, named in (
        ({"reward_sorce": "model"}, "reward_source"),
        ({"reward_source": "modle"}, "model"),
        ({"min_confidence": 2.0}, "min_confidence"),
        ({"low_confidence": "drop"}, "mask"),
        ({"simulator": "magic"}, "retrieval"),
    ):
        with pytest.raises(UserError, match=named):
            Gym.load(saved, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"no gym.*rlready dream fit"):
        Gym.load(saved / "gym.json")


# ---------------------------------------------------------------------- tasks and scores


def test_tasks_by_split_and_by_what_can_be_judged():
    gym = filled()
    assert [t.id for t in gym.tasks("test")] == ["t10", "t11"]
    (first, *_) = gym.tasks("train")
    assert first.prompt == DOMAIN.prompt(first.data["instruction"]) and first.data["task_id"] == first.id
    with pytest.raises(UserError, match="train"):
        gym.tasks("trian")
    known = filled(reward_source="criteria")
    assert len(known.tasks("train")) == 8 and len(known.tasks("test")) == 0  # no criteria for what is held out
    with pytest.raises(UserError, match="--verifier"):
        filled(reward_source="verifier").tasks("train")


def end_of(gym: Gym, actions: list[str], verifier: RewardFn | None = None, task: str = "t0") -> Trajectory:
    """An episode as the collector plays and scores it."""

    class Says:
        def start(self, *_):
            self.left = list(actions)
            return self

        async def act(self, observation, trajectory):
            return Turn([], [], text=self.left.pop(0))

        def close(self):
            pass

    tasks = gym.tasks("train", verifier=verifier)
    (posed,) = (t for t in tasks if t.id == task)
    return run_sync(play_episode(posed, gym.env, Says(), tasks, seed=1))  # type: ignore[arg-type]


def test_a_verifier_scores_alone_or_beside_the_dream():
    yes, no = (lambda task, trajectory: 1.0), (lambda task, trajectory: 0.0)
    alone = gym_of(reward_source="verifier")
    assert (end_of(alone, [CLOSE], yes).reward, end_of(alone, [CLOSE], no).reward) == (1.0, 0.0)
    sure = gym_of(Scripted(lambda m, a: "", judge=lambda m: 1.0), reward_source="both")
    good = end_of(sure, [cancel("W0"), CLOSE], yes)
    assert good.success and not good.excluded
    split = end_of(sure, [cancel("W0"), CLOSE], no)
    assert split.excluded and split.verdict is Verdict.GRADER_FAILED
    assert "verifier says wrong and the dream says right" in split.info["note"]
    unlike = end_of(sure, [CLOSE], yes)  # criteria and simulator disagree before the verifier is asked
    assert unlike.excluded and "criteria say False" in str(unlike.failure)


def test_an_empty_gym_holds_no_tasks():
    gym = gym_of(runs=[])
    assert len(gym.tasks("train")) == 0 and gym.questions.about("W1") == [] and gym.criteria.right == {}
    assert played(gym, [get("W0"), CLOSE])[-1].terminated


# ---------------------------------------------------------------------- repair


def truth(n: int, status: str):
    """A real episode of a task, that the gym had got wrong."""
    e = recorded(1, from_=n)[0]
    replies_ = tuple(
        doc(f"W{n}", status, 99) if a == get(f"W{n}") else r for a, r in zip(e.actions, e.replies, strict=True)
    )
    return replace(e, replies=replies_, source="real", seed=3)


def test_what_was_learned_is_said_next_time_and_put_back():
    gym = gym_of(runs=[e for e in recorded() if e.task_id != "t5"])
    before = replies(played(gym, [get("W5")], task="t5"))
    numbers = run_sync(gym.learn([truth(5, "lost")], seed=1))
    assert numbers["repair/episodes"] == 1 and 0 < numbers["repair/wrong"] <= 1
    after = replies(played(gym, [get("W5")], task="t5"))
    assert after == [doc("W5", "lost", 99)] != before
    assert gym.criteria.known("t5")  # a recorded success of it
    again = gym_of(runs=[e for e in recorded() if e.task_id != "t5"])
    again.restore([truth(5, "lost")], json.loads(json.dumps(gym.learned())))
    for n, actions in scripts():
        assert transcript(played(again, actions, task=f"t{n}")) == transcript(played(gym, actions, task=f"t{n}"))
    assert run_sync(gym.learn([truth(5, "lost")]))["repair/episodes"] == 0  # known


def test_pinned_criteria_stay_as_they_were():
    gym = gym_of(runs=recorded(2), criteria=gym_of(runs=recorded(2)).criteria, reward_source="criteria")
    run_sync(gym.learn(recorded(1, from_=5)))
    assert not gym.criteria.known("t5")


def test_a_trained_simulator_learns_and_is_put_back(tiny, tmp_path):
    tiny.simulator.save(tmp_path / "model")  # type: ignore[attr-defined]
    tiny.save(tmp_path / "gym", model=tmp_path / "model")
    one, two = Gym.load(tmp_path / "gym"), Gym.load(tmp_path / "gym")
    assert one.learned() == {}
    new = [truth(20 + i, "lost") for i in range(3)]
    numbers = run_sync(one.learn(new[:2], seed=4))
    assert numbers["learn/steps"] >= 1
    run_sync(one.learn(new[2:], seed=5))
    two.restore(new, one.learned())
    assert asyncio.run(_alone(two)) == asyncio.run(_alone(one))
    before = tiny.simulator.policy.learner.weights()  # type: ignore[attr-defined]
    after = one.simulator.policy.learner.weights()  # type: ignore[attr-defined]
    assert one.learned() and any((after[name] != before[name]).any() for name in before)


def test_state_rules_and_domain_are_what_the_gym_was_given():
    gym = gym_of()
    assert gym.state is STATE and gym.domain is DOMAIN
    assert gym.task("x", "words", extra=1).data == {"task_id": "x", "instruction": "words", "extra": 1}
    assert gym.task("x", "words").prompt[-1] == Message.user("words")
