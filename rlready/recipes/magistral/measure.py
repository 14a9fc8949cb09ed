"""What the recipe measures: where cloning stops, looks at dev tasks, the language spoken, and the claims' numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rlready.aio import run_sync
from rlready.algorithms.sft import SFT
from rlready.envs.chat import ChatEnv
from rlready.policy.base import Policy, Renderer, SamplingParams
from rlready.recipes.magistral.tables import long_tail, padding_shares, rows_right
from rlready.recipes.magistral.tasks import FORM, Lexicon
from rlready.recipes.study import Study
from rlready.rewards import answer_text, strip_marks
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import play_many
from rlready.run import Run
from rlready.run_files import read_jsonl
from rlready.run_report import Table, percent
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Row, Task, Trajectory

BUDGET = 8192
SKIPPED = 2
"""Steps at the start of an arm that say nothing of its times: processes start and caches fill."""


@dataclass(frozen=True)
class Names:
    """Of the arms: cloned, filtered cloning, RL as in the paper, and RL with one thing changed each."""

    base: str = "SFT"
    filtered: str = "filtered cloning"
    rl: str = "magistral"
    free: str = "without the bonus"
    many: str = "minibatches"
    symmetric: str = "minibatches, symmetric clip"
    apart: str = "asynchronous"

    @property
    def trained(self) -> tuple[str, ...]:
        """Those trained by RL."""
        return self.rl, self.free, self.many, self.symmetric, self.apart


@dataclass(frozen=True)
class Look:
    """A glance at dev tasks at temperature 1; what `train` calls an evaluation.

    Attributes:
        success, consistency, formed, long: shares of right answers, of answers in one language, in form, and with a
            length penalty.
        length: mean tokens.
        env_steps: episodes it took.
    """

    success: float
    consistency: float
    formed: float
    long: float
    length: float
    env_steps: int

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        out = asdict(self)
        del out["env_steps"]
        return out


async def look(
    policy: Policy, tasks: TaskSet, params: SamplingParams, seed: int, deadline: float | None = 60.0
) -> Look:
    """Play every task once."""
    actor = PolicyActor(policy, params, derive(seed, "look"))
    played = await play_many(tasks, ChatEnv, actor, list(tasks), derive(seed, "look"), deadline=deadline)
    valid = [t for t in played if not t.excluded]
    return Look(
        success=_mean([float(t.success) for t in valid]),
        consistency=_mean([t.scores.get("language/same", 0.0) for t in valid]),
        formed=_mean([t.scores.get("format", 0.0) for t in valid]),
        long=_mean([t.scores.get("length/over", 0.0) for t in valid]),
        length=_mean([float(t.length) for t in valid]),
        env_steps=len(played),
    )


def rows_of(renderer: Renderer, shown: Sequence[tuple[Task, str]]) -> list[Row]:
    """Demonstrations as supervised rows."""
    return [
        Row.from_segments([(renderer.render(task.prompt), 0.0), (renderer.encode_completion(text), 1.0)])
        for task, text in shown
    ]


def clone_until(
    run: Run, policy: Policy, rows: Sequence[Row], dev: TaskSet, params: SamplingParams,
    *, accuracy: float, epochs: int, batch_tokens: int, every: int,
) -> None:  # fmt: skip
    """Supervised learning that ends where sampled accuracy on dev tasks has reached a bound."""
    with run.progress.track("clone", 1) as bar:

        def on_step(step: int, total: int, metrics: dict[str, float]) -> bool:
            bar.total = total
            bar.advance()
            if step % every:
                return False
            policy.sync()
            seen = run_sync(look(policy, dev, params, run.seed))
            run.log(step, {**metrics, **{f"eval/{name}": value for name, value in seen.metrics().items()}})
            return seen.success >= accuracy

        SFT(seed=run.seed).fit_rows(policy, rows, epochs=epochs, batch_tokens=batch_tokens, on_step=on_step)


@dataclass(frozen=True)
class Spoken:
    """What an arm's answers to held-out problems sound like, at temperature 1; English problems left out.

    Attributes:
        consistency: share of answers whose three texts the classifier puts into one language; an answer whose form is
            broken, or too short to be told, counts as inconsistent.
        told: the same by the lexicon, which has no part in the reward.
        agreement: share of answers on which classifier and lexicon agree.
        purity: mean share of a thought's telling words that are of its commonest language.
        english: share of thoughts that are English by the lexicon.
        formed, long: shares of answers in form, and with a length penalty.
        length: mean tokens.
    """

    consistency: float
    told: float
    agreement: float
    purity: float
    english: float
    formed: float
    long: float
    length: float


def spoken(run: Run, name: str, policy: Policy, tasks: TaskSet, max_tokens: int) -> Spoken:
    """Measure it, in a stage of the run."""
    with run.stage(f"language of {name}") as stage:
        if not stage.done:
            foreign = tasks.filter(lambda task: task.data["language"] != "en")
            actor = PolicyActor(
                policy, SamplingParams(temperature=1.0, max_tokens=max_tokens), derive(run.seed, "spoken")
            )
            played = run_sync(play_many(foreign, ChatEnv, actor, list(foreign), derive(run.seed, "spoken")))
            run.spend(measure=len(played))
            stage.result.update(asdict(_summed([t for t in played if not t.excluded])))
    return Spoken(**stage.result)


def _summed(played: Sequence[Trajectory]) -> Spoken:
    tell = Lexicon()
    read = [FORM.read(answer_text(t)) for t in played]
    thoughts = [strip_marks(each.thoughts) for each in read]
    own = [str(t.task.data["language"]) for t in played]
    heard = [tell(text) for text in thoughts]
    after = [tell(strip_marks(each.visible)) for each in read]
    same = [t.scores.get("language/same", 0.0) for t in played]
    told = [float(lang == a == b and a != "") for lang, a, b in zip(own, heard, after, strict=True)]
    return Spoken(
        consistency=_mean(same),
        told=_mean(told),
        agreement=_mean([float(a == b) for a, b in zip(same, told, strict=True)]),
        purity=_mean([tell.purity(text) for text in thoughts]),
        english=_mean([float(a == "en") for a in heard]),
        formed=_mean([t.scores.get("format", 0.0) for t in played]),
        long=_mean([t.scores.get("length/over", 0.0) for t in played]),
        length=_mean([float(t.length) for t in played]),
    )


@dataclass(frozen=True)
class Course:
    """Numbers of an arm's training, means over its steps but the first; entropy over the last tenth.

    Attributes:
        entropy: nats per sampled token.
        idle, wait: shares of the time in which generator and trainer had nothing to do.
        lag: updates by which trained tokens were behind, on average.
        uniform: share of groups without signal.
        clipped: share of tokens whose ratio was clipped.
        step_seconds: wall-clock time of a step, evaluations left out.
    """

    entropy: float
    idle: float
    wait: float
    lag: float
    uniform: float
    clipped: float
    step_seconds: float


def course(run: Run, name: str, steps: int) -> Course:
    """Read an arm's training off the run's own log."""
    lines = [line for line in read_jsonl(run.dir / "metrics.jsonl") if line["stage"] == name and line["step"] > 0]
    steady = lines[SKIPPED:] or lines

    def mean(metric: str, among: Sequence[dict[str, float]] = steady) -> float:
        return _mean([float(line[metric]) for line in among if line.get(metric) is not None])

    return Course(
        entropy=mean("entropy", lines[-max(1, steps // 10) :]),
        idle=mean("generator/idle"),
        wait=mean("trainer/wait"),
        lag=mean("lag/mean"),
        uniform=mean("uniform"),
        clipped=mean("update/clip/fraction"),
        step_seconds=mean("seconds") + mean("update/seconds"),
    )


def judged(
    run: Run, study: Study, speech: dict[str, Spoken], steps: int, names: Names
) -> tuple[dict[str, float], list[Table], list[str]]:
    """The numbers that the claims are judged by, with the tables and notes that show them."""
    courses = {name: course(run, name, steps) for name in names.trained}
    right, rows = rows_right()
    shares = padding_shares(long_tail(run.seed), BUDGET)

    def gap(a: str, b: str, mode: str) -> float:
        return study.arms[a].success("test", mode) - study.arms[b].success("test", mode)

    out: dict[str, float] = {"tables/rows": float(rows), "tables/rows wrong": float(rows - right)}
    for name, said in speech.items():
        out |= {f"language/{name}/{key}": float(value) for key, value in asdict(said).items()}
    for name, each in courses.items():
        out |= {f"course/{name}/{key}": float(value) for key, value in asdict(each).items()}
    for mode in ("greedy", "tuned", "sampled"):
        out[f"accuracy over SFT, {mode}"] = gap(names.rl, names.base, mode)
        out[f"accuracy over filtered cloning, {mode}"] = gap(names.rl, names.filtered, mode)
        out[f"accuracy, bonus less no bonus, {mode}"] = gap(names.rl, names.free, mode)
        out[f"accuracy, asynchronous less synchronous, {mode}"] = gap(names.apart, names.rl, mode)
        out[f"accuracy, eight minibatches less one, {mode}"] = gap(names.many, names.rl, mode)
    out |= {
        "consistency with the bonus": speech[names.rl].consistency,
        "consistency, change without the bonus": abs(speech[names.free].consistency - speech[names.base].consistency),
        "entropy, clip-higher to symmetric": _ratio(courses[names.many].entropy, courses[names.symmetric].entropy),
        "idle, synchronous": courses[names.rl].idle,
        "idle, asynchronous": courses[names.apart].idle,
        "step time, asynchronous to synchronous": _ratio(
            courses[names.apart].step_seconds, courses[names.rl].step_seconds
        ),
        "padding saved, packed": 1 - _ratio(shares["packed, greedy"], shares["packed, in order"]),
        "padding saved, padded": 1 - _ratio(shares["padded, similar lengths"], shares["padded, in order"]),
    }
    tables = [
        Table(
            "Language of answers to problems that are not in English, at T=1",
            ("arm", "consistent", "by lexicon", "thoughts in English", "in form", "long", "tokens"),
            [
                [name, *(percent(x) for x in (s.consistency, s.told, s.english, s.formed, s.long)), round(s.length, 1)]
                for name, s in speech.items()
            ],
        ),
        Table(
            "Training",
            ("arm", "entropy", "clipped", "no signal", "generator idle", "trainer waits", "lag", "seconds a step"),
            [
                [name, round(c.entropy, 3), *(percent(x) for x in (c.clipped, c.uniform, c.idle, c.wait)),
                 round(c.lag, 2), round(c.step_seconds, 2)]
                for name, c in courses.items()
            ],
        ),
        Table(
            f"Padding of {len(long_tail(run.seed))} long-tailed sequences under {BUDGET:,} tokens",
            ("micro-batches", "padding"),
            [[name, percent(share)] for name, share in shares.items()],
        ),
    ]  # fmt: skip
    notes = [
        f"{a} against {b}, greedy: {study.difference(a, b)}."
        for a, b in ((names.rl, names.base), (names.rl, names.free), (names.apart, names.rl), (names.many, names.rl))
    ]
    return out, tables, notes


def draw_curves(run: Run, path: Path, names: Sequence[str]) -> str:
    """Accuracy and consistency on dev tasks, entropy and length of rollouts, by step; returns the file's name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = (
        ("eval/success", "accuracy, dev"), ("eval/consistency", "one language, dev"),
        ("entropy", "entropy, nats a token"), ("length", "tokens an answer"),
    )  # fmt: skip
    lines = read_jsonl(run.dir / "metrics.jsonl")
    figure = Figure(figsize=(10.0, 6.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for place, (metric, label) in enumerate(shown, 1):
        axes = figure.add_subplot(2, 2, place)
        for name in names:
            points = [(e["step"], e[metric]) for e in lines if e["stage"] == name and e.get(metric) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, linewidth=1.4)
        axes.set(xlabel="update", ylabel=label)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if place == 1:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    return path.name


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
