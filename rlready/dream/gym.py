"""A gym: everything a dream made from logs consists of, as one folder.

gym.json             domain, state rules, questions, criteria, splits, options, fingerprint
MANIFEST.json, *.jsonl   the replay store: the recorded episodes
model/               the simulator's weights or adapter, where it has any
templates/           a domain's own prompt templates, where the user put some
report.*             what `rlready dream report` measured
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from rlready.dream.actions import ActionChecks
from rlready.dream.base import Action, Layer, Learns, Moment, Reply, Simulator
from rlready.dream.criteria import Criteria
from rlready.dream.domain import Domain
from rlready.dream.facts import Questions
from rlready.dream.format import Unparsable
from rlready.dream.gymenv import GymEnv
from rlready.dream.hindsight import explained
from rlready.dream.library import Library, Recorded, Steps
from rlready.dream.perturb import Perturb
from rlready.dream.simulators import load_simulator
from rlready.dream.simulators.confidence import Calibration
from rlready.dream.state import StateRules
from rlready.envs.base import EnvFactory
from rlready.errors import UserError, did_you_mean
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import ExperienceStore
from rlready.policy.tiny.save import fresh_folder
from rlready.tasks.base import TaskSet, score_by_env
from rlready.tasks.scoring import RewardFn, as_scorer
from rlready.types import Score, Task, Trajectory

FORMAT = 1
RewardSource = Literal["model", "criteria", "verifier", "both"]
REWARD_SOURCES: tuple[RewardSource, ...] = ("model", "criteria", "verifier", "both")
LowConfidence = Literal["end", "mask"]
LOW_CONFIDENCE: tuple[LowConfidence, ...] = ("end", "mask")
_MOST_IMAGINED = 100_000


class Gym:
    """The parts of a dream, put together.

    Attributes:
        domain: what the logs' agents could do, and how it is written.
        state: what code knows of the state.
        library: the recorded episodes that the dream may use (those of the training tasks).
        simulator: answers the rest.
        splits: task ids by split; the library holds the recordings of "train" only.
        reward_source: who says whether a finished episode succeeded; fixed before rollouts.
        perturb: trouble on purpose; off in evaluation.
        calibration: raw to calibrated confidence of the simulator; None before it was measured.
        min_confidence, low_confidence: a reply below this ends the episode, or masks it from training.
        about: where the gym comes from, JSON-ready.
        folder: where it was loaded from; None for one that was put together.
    """

    def __init__(
        self,
        domain: Domain,
        state: StateRules,
        library: Library,
        simulator: Simulator,
        *,
        splits: Mapping[str, Sequence[str]] | None = None,
        held_out: Sequence[LoggedEpisode] = (),
        reward_source: RewardSource = "model",
        criteria: Criteria | None = None,
        perturb: Sequence[Perturb] = (),
        calibration: Calibration | None = None,
        min_confidence: float = 0.0,
        low_confidence: LowConfidence = "mask",
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Put the parts together; `dreaming.fit` and `Gym.load` are the usual ways here.

        Args:
            domain: see the class; so are `state`, `library`, `simulator`, `splits`, `reward_source`, `perturb`,
                `calibration`, `min_confidence`, `low_confidence` and `about`.
            held_out: the recorded episodes of the other splits, for measuring; the dream never uses them.
            criteria: None learns them from the library.
            state: code that knows of the state.
            library: recordings.
            simulator: answers the rest.
            splits: task ids by split.
            reward_source: who judges.
            perturb: trouble on purpose.
            calibration: of confidence.
            min_confidence: in [0, 1].
            low_confidence: "end" or "mask".
            about: facts.

        Raises:
            UserError: there is no such reward source or way with low confidence, or a limit is no probability.
        """
        if reward_source not in REWARD_SOURCES:
            raise did_you_mean("reward source", reward_source, REWARD_SOURCES)
        if low_confidence not in LOW_CONFIDENCE:
            raise did_you_mean("way with low confidence", low_confidence, LOW_CONFIDENCE)
        if not 0 <= min_confidence <= 1:
            raise UserError(f"min_confidence is {min_confidence}; it must lie in [0, 1].")
        self.domain, self.state, self.library, self.simulator = domain, state, library, simulator
        tasks = list(dict.fromkeys(e.task_id for e in library.episodes.values()))
        self.splits = {k: tuple(v) for k, v in (splits or {"train": tasks}).items()}
        self.held_out = tuple(held_out)
        self.reward_source: RewardSource = reward_source
        self.perturb = tuple(perturb)
        self.calibration = calibration
        self.min_confidence = min_confidence
        self.low_confidence: LowConfidence = low_confidence
        self.about = dict(about or {})
        self.folder: Path | None = None
        self._imagined: dict[tuple[int, str, str], Reply] = {}
        self.checks = ActionChecks(domain)
        self.layers: tuple[Layer, ...] = (Recorded(library), state)
        self._criteria = criteria
        self.limited = domain.actions is not None

    # ------------------------------------------------------------------ learned from the library, when first asked

    @cached_property
    def questions(self) -> Questions:
        """What can be asked of a world before anything is changed."""
        steps = (a for id in self.library for a, reply in self.library.steps(id) if not reply.failed)
        return Questions.learn(steps, self.state.reads)

    @cached_property
    def criteria(self) -> Criteria:
        """What recorded successes changed, by task."""
        if self._criteria is not None:
            return self._criteria
        judged = ((e.task_id, e.success, self.library.steps(id)) for id, e in self.library.episodes.items() if e.judged)
        return Criteria.learn(judged, self.state.reads)

    # ------------------------------------------------------------------ use

    def env(self, *, evaluation: bool = False) -> GymEnv:
        """A dream of one episode."""
        return GymEnv(self, evaluation=evaluation)

    def env_factory(self, *, evaluation: bool = False) -> EnvFactory:
        """Makes dreams."""
        return lambda: GymEnv(self, evaluation=evaluation)

    def refuse(self, moment: Moment, action: Action) -> Reply | None:
        """The recorded kind of error where an action is none, or is not admissible; None for a good one."""
        if not action.text and not action.problem:
            return Reply(
                self.domain.errors["malformed"].fill(problem="The message is empty."), failed=True, origin="check"
            )
        return self.checks.reply(moment, action)

    async def imagined(self, moment: Moment, action: Action) -> Reply:
        """What an untouched world answers to a question that nobody recorded there; the same whenever it is asked.

        Where recordings of the world were judged, the answer is one that explains their verdicts (`dream.hindsight`).

        Raises:
            Unparsable: the simulator's answer could not be read.
        """
        key = (moment.world, moment.anchor, action.text)
        known = self._imagined.get(key)
        if known is None:
            known = await explained(self.simulator, self.library, moment, action)
            if known is None:
                known = await self.simulator.reply(replace(moment, facts=()), action)
            if len(self._imagined) >= _MOST_IMAGINED:
                self._imagined.clear()
            self._imagined[key] = known
        return known

    def calibrated(self, raw: float) -> float:
        """A simulator's confidence as a probability of being right."""
        return raw if self.calibration is None else self.calibration(raw)

    def episodes(self, split: str) -> list[LoggedEpisode]:
        """The recorded episodes of a split's tasks."""
        wanted = set(self._ids(split))
        return [e for e in (*self.library.episodes.values(), *self.held_out) if e.task_id in wanted]

    def tasks(self, split: str = "train", *, verifier: RewardFn | None = None) -> TaskSet:
        """The tasks of a split, scored as `reward_source` says.

        Args:
            split: "train", "dev" or "test".
            verifier: the user's own score, needed where the reward source is "verifier"; with "both" it is asked
                besides the simulator, and an episode on which they disagree is left out and counted.

        Raises:
            UserError: there is no such split, or no verifier where one is needed.
        """
        chosen: dict[str, Task] = {}
        for episode in self.episodes(split):
            if episode.task_id not in chosen and episode.instruction.strip():
                chosen[episode.task_id] = self.task(episode.task_id, episode.instruction)
        tasks = list(chosen.values())
        if self.reward_source == "criteria":
            tasks = [t for t in tasks if self.criteria.known(t.id)]
        if self.reward_source == "verifier" and verifier is None:
            raise UserError('The reward source is "verifier"; name one, such as --verifier my_task.py:score.')
        made = TaskSet(tasks, name=f"dream/{split}")
        if verifier is not None and self.reward_source in ("verifier", "both"):
            judge, both = as_scorer(verifier), self.reward_source == "both"

            async def score(task: Task, trajectory: Trajectory) -> Score:
                said = await judge(task, trajectory)
                dreamt = await score_by_env(task, trajectory)
                if both and said.verdict != dreamt.verdict:
                    return Score.failed(f"the verifier says {said.verdict} and the dream says {dreamt.verdict}")
                return said

            made.scorer = score
        return made

    def task(self, task_id: str, instruction: str, **data: Any) -> Task:
        """A task of this gym, written as the logs' agents saw it."""
        return Task(
            self.domain.prompt(instruction), {"task_id": task_id, "instruction": instruction, **data}, id=task_id
        )

    def _ids(self, split: str) -> tuple[str, ...]:
        if split not in self.splits:
            raise did_you_mean("split", split, self.splits)
        return self.splits[split]

    # ------------------------------------------------------------------ repair

    async def learn(self, episodes: Sequence[LoggedEpisode], *, seed: int = 0) -> dict[str, float]:
        """Take in real episodes: they join the library, and the simulator learns what it would have got wrong.

        Args:
            episodes: of training tasks.
            seed: of the simulator's learning.

        Returns:
            `repair/episodes`, `repair/wrong` (share of their steps that the dream had answered otherwise), and the
            simulator's own numbers.
        """
        known = set(self.library.episodes)
        grown = Library([*self.library.episodes.values(), *episodes], self.domain, self.state)
        ids = [id for id in grown if id not in known]
        wrong = await self._wrong([(grown.episodes[id], grown.steps(id)) for id in ids])
        self._grow(grown)
        numbers = await self.simulator.learn(grown, ids, seed=seed) if isinstance(self.simulator, Learns) else {}
        return {"repair/episodes": float(len(ids)), "repair/wrong": wrong, **numbers}

    def learned(self) -> dict[str, Any]:
        """What `learn` changed of the simulator, for checkpoints."""
        return self.simulator.state_dict() if isinstance(self.simulator, Learns) else {}

    def restore(self, episodes: Sequence[LoggedEpisode], state: Mapping[str, Any]) -> None:
        """Put back what `learn` changed: the episodes that joined, and the simulator's state."""
        if not episodes:
            return
        self._grow(Library([*self.library.episodes.values(), *episodes], self.domain, self.state))
        if isinstance(self.simulator, Learns):
            self.simulator.load_state_dict(state, self.library)

    def _grow(self, library: Library) -> None:
        self.library = library
        self.layers = (Recorded(library), self.state)
        self._imagined = {}
        self.__dict__.pop("questions", None)
        if self._criteria is None:
            self.__dict__.pop("criteria", None)

    async def _wrong(self, episodes: Sequence[tuple[LoggedEpisode, Steps]]) -> float:
        """Share of recorded steps that the dream answers otherwise, each under its recorded history."""
        asked = wrong = 0
        for episode, steps in episodes:
            env = self.env(evaluation=True)
            await env.reset(self.task(episode.task_id, episode.instruction), episode.seed)
            for action, reply in steps:
                try:
                    said = (await env.answer(action)).text
                except Unparsable:
                    said = None
                asked += 1
                wrong += said != reply.text
                env.take(action, reply)
        return wrong / asked if asked else 0.0

    # ------------------------------------------------------------------ folder

    def save(self, folder: str | Path, *, model: Path | None = None) -> None:
        """Write the gym as one folder; an older one stays until the new one is whole.

        Args:
            folder: where.
            model: the simulator's own folder, which becomes `model/`.
        """
        body = {
            "format": FORMAT,
            "fingerprint": self.domain.fingerprint,
            "simulator": self.simulator.name,
            "domain": self.domain.to_json(),
            "state": self.state.to_json(),
            "criteria": self._criteria.to_json() if self._criteria is not None else None,
            "splits": {k: list(v) for k, v in self.splits.items()},
            "reward_source": self.reward_source,
            "perturb": [asdict(p) for p in self.perturb],
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "min_confidence": self.min_confidence,
            "low_confidence": self.low_confidence,
            "about": self.about,
        }
        with fresh_folder(Path(folder)) as work:
            (work / "gym.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            with ExperienceStore(work) as store:
                for episode in (*self.library.episodes.values(), *self.held_out):
                    store.append(episode)
            if model is not None:
                _link_tree(model, work / "model")

    @classmethod
    def load(cls, folder: str | Path, *, simulator: str | None = None, **options: Any) -> Self:
        """Inverse of `save`.

        Args:
            folder: what `rlready dream fit` wrote.
            simulator: another one than the gym's own, by its string.
            options: in place of what was saved: `reward_source`, `perturb`, `min_confidence`, `low_confidence`.

        Raises:
            UserError: there is no gym, it is of a later format, or an option is unknown.
        """
        folder = Path(folder)
        try:
            body = json.loads((folder / "gym.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f"There is no gym in {folder} (no gym.json). Make one: rlready dream fit LOGS --out {folder}."
            ) from error
        except ValueError as error:
            raise UserError(f"{folder / 'gym.json'} is damaged ({error}). Fit the gym again.") from error
        if isinstance(body, dict) and body.get("format") != FORMAT:
            raise UserError(
                f"{folder} is a gym of format {body.get('format')}; this rlready reads {FORMAT}. Fit it again."
            )
        try:
            domain, found = Domain.from_json(body["domain"]), body["fingerprint"]
            state = StateRules.from_json(body["state"])
            train = set(body["splits"]["train"])
            saved = {
                "reward_source": body["reward_source"],
                "perturb": [Perturb(**p) for p in body["perturb"]],
                "min_confidence": body["min_confidence"],
                "low_confidence": body["low_confidence"],
            }
            criteria = None if body["criteria"] is None else Criteria.from_json(body["criteria"])
            calibration = None if body["calibration"] is None else Calibration.from_json(body["calibration"])
            about, name = body["about"], body["simulator"]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UserError(f"{folder / 'gym.json'} is damaged ({what}). Fit the gym again.") from error
        if domain.fingerprint != found:
            raise UserError(
                f"{folder}: parser, template or flags of this rlready are others than those the gym was fitted with. "
                "Fit it again, or use the version that wrote it."
            )
        for key in options:
            if key not in saved:
                raise did_you_mean("option of a gym", key, saved)
        with ExperienceStore(folder, readonly=True) as store:
            episodes = [entry.episode for entry in store]
        library = Library([e for e in episodes if e.task_id in train], domain, state)
        own = simulator is None or simulator == name
        gym = cls(
            domain,
            state,
            library,
            load_simulator(simulator or name, folder, library, domain),
            splits=body["splits"],
            held_out=[e for e in episodes if e.task_id not in train],
            criteria=criteria,
            calibration=calibration if own else None,
            about=about,
            **{**saved, **options},
        )
        gym.folder = folder
        return gym


def _link_tree(source: Path, target: Path) -> None:
    """A copy of a folder; files are linked where the file system can."""
    import os
    import shutil

    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    shutil.copytree(source, target, copy_function=link)
