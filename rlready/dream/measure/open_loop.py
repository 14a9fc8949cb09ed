"""Open loop: at every step of recorded, held-out episodes, what would the dream have said?

Blind to mistakes that build on one another, and no such score is shown to predict what training gains; it finds what
is wrong with a simulator step by step. Every figure stands as a macro mean (over kinds of action) and a micro mean
(over steps). A reply that could not be read counts as a wrong one. A step whose simulator could not be reached at all
is left out and counted (`void`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlready.dream.base import Action, Layer, Reply, Simulator, first_reply
from rlready.dream.format import Unparsable
from rlready.dream.measure import documents
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.dream.measure.numbers import Detection, Mean, Probabilities, mean
from rlready.dream.measure.walk import Asked, finished_moment, looks_failed, walk
from rlready.dream.simulators.confidence import risk_coverage
from rlready.dream.simulators.words import f1
from rlready.errors import EnvError
from rlready.experience.episode import LoggedEpisode
from rlready.rollout.gather import together

if TYPE_CHECKING:
    from rlready.dream.domain import Domain
    from rlready.dream.state import StateRules

Progress = Callable[[int, int], None]
UNREADABLE = "(could not be read)"
RIGHT_REWARD = 1e-6
"""A stated step reward this close to the recorded one is right."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One recorded step and what was said; see `walk.Asked`."""

    task_id: str
    episode: int
    step: int
    action: Action
    truth: Reply
    said: Reply
    exact: bool
    f1: float
    fields: documents.FieldScore | None
    readable: bool
    ended: bool


@dataclass(frozen=True)
class Kind:
    """The figures of one kind of action.

    Attributes:
        steps: how many were asked.
        exact: share of replies equal to the recorded one.
        f1: mean token F1.
        failed: share of recorded replies that are errors.
        unreadable: share of replies that could not be read.
    """

    steps: int
    exact: float
    f1: float
    failed: float
    unreadable: float


@dataclass(frozen=True)
class Fields:
    """Documents of one bucket: by how many fields the recorded one differs from the one before it.

    Attributes:
        replies: how many.
        exact: share of replies with every field right.
        fields: share of fields right, of those in the recorded or the said document (invented ones count as wrong).
        moved: share right of the fields that changed; NaN where none did. What "no change" cannot know.
    """

    replies: int
    exact: float
    fields: float
    moved: float


@dataclass(frozen=True)
class Confidence:
    """Do stated confidences tell right replies from wrong ones?

    Attributes:
        stated: as probabilities that the reply equals the recorded one.
        coverage: (share of steps kept, the most confident first; share of these that are right).
    """

    stated: Probabilities
    coverage: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Example:
    """A step on which recorded and said differ.

    Attributes:
        place: task, episode and step, for people.
        instruction, action: what was asked and done.
        recorded, said: the two replies.
        f1: token F1 of the two.
        origin, confidence: of what was said.
    """

    place: str
    instruction: str
    action: str
    recorded: str
    said: str
    f1: float
    origin: str
    confidence: float


@dataclass(frozen=True)
class OpenLoop:
    """What `open_loop` measured of one simulator.

    Attributes:
        name: of the simulator.
        with_code: whether code layers were asked first.
        episodes, tasks: measured.
        steps: replies asked for; closing actions that nothing answered are not among them.
        exact, f1: share of replies equal to the recorded one (or an equal JSON value), mean F1 of words.
        by_kind: by kind of action.
        fields: of replies that are documents, by number of fields that changed ("new", "0", "1", "2", "3+").
        errors: replies that are errors; its recall is the invalid-action recall.
        done: ends of episodes, the agent's own closing included.
        verdict: stated probability of success of judged, finished episodes.
        unjudgeable: verdicts that could not be read; they count as one half among the verdicts.
        step_reward: share of recorded step rewards that were said right; NaN where the logs have none.
        confidence: of the replies.
        unparsable: share of replies that could not be read.
        void: steps without an answer since the simulator could not be reached; left out above.
        origins: share answered by each layer.
        leaked: replies that replay a recording of the very task; above 0 the episodes were not held out.
        length_ratio: characters said over characters recorded.
        seconds_per_step: wall-clock time over steps, with as many at once as were allowed.
        worst: examples to read, the surest mistakes first.
        results: every step, for further figures; not written to JSON.
    """

    name: str
    with_code: bool
    episodes: int
    tasks: int
    steps: int
    exact: Mean
    f1: Mean
    by_kind: dict[str, Kind]
    fields: dict[str, Fields]
    errors: Detection
    done: Detection
    verdict: Probabilities
    unjudgeable: int
    step_reward: float
    confidence: Confidence
    unparsable: float
    void: int
    origins: dict[str, float]
    leaked: int
    length_ratio: float
    seconds_per_step: float
    worst: tuple[Example, ...] = ()
    results: tuple[StepResult, ...] = field(default=(), repr=False, compare=False, metadata={"json": False})
    verdicts: tuple[tuple[str, float, bool], ...] = field(
        default=(), repr=False, compare=False, metadata={"json": False}
    )

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; NaN becomes null, single steps are left out."""
        record: dict[str, Any] = to_json(self)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> OpenLoop:
        """Inverse of `to_json`."""
        return from_json(cls, record)

    def by_task(self) -> dict[str, list[StepResult]]:
        """The steps of each task, for intervals: steps of one task are not independent."""
        out: dict[str, list[StepResult]] = {}
        for result in self.results:
            out.setdefault(result.task_id, []).append(result)
        return out


async def open_loop(
    episodes: Sequence[LoggedEpisode],
    domain: Domain,
    rules: StateRules,
    layers: Sequence[Layer],
    simulator: Simulator,
    *,
    with_code: bool = True,
    judge: bool = True,
    at_once: int = 64,
    seed: int = 0,
    examples: int = 12,
    on_progress: Progress | None = None,
) -> OpenLoop:
    """Ask a simulator at every step of held-out episodes.

    Args:
        episodes: held out: the simulator's library must not hold their tasks (`leaked` tells where it does).
        domain: the one parser, and what ends an episode.
        rules: the typed state; follows the recorded history.
        layers: code to ask first.
        simulator: asked what no code knows.
        with_code: False asks the simulator alone.
        judge: also ask for the verdict of judged, finished episodes.
        at_once: moments asked concurrently.
        seed: of the worlds.
        examples: how many of the worst to keep.
        on_progress: called with (done, total) after each step and verdict.
    """
    everything = [a for i, e in enumerate(episodes) for a in walk(e, domain, rules, index=i, seed=seed)]
    asked = [a for a in everything if not a.silent]
    judged = [i for i, e in enumerate(episodes) if judge and e.judged and e.finished and len(e)]
    gate = asyncio.Semaphore(at_once)
    total, count = len(asked) + len(judged), 0

    def report() -> None:
        nonlocal count
        count += 1
        if on_progress is not None:
            on_progress(count, total)

    async def reply(each: Asked) -> StepResult | None:
        async with gate:
            said = await ask(each, layers if with_code else (), simulator)
            report()
            return None if said is None else score(each, said, episodes[each.episode], domain)

    async def verdict(index: int) -> tuple[str, float, bool] | None:
        async with gate:
            episode = episodes[index]
            moment = finished_moment(episode, domain, rules, seed=seed)
            try:
                p = await simulator.judge(moment)
            except Unparsable:
                p = math.nan
            except EnvError:
                return None
            finally:
                report()
            return episode.task_id, float(p), episode.success

    start = time.perf_counter()
    results = await together([reply(a) for a in asked])
    seconds = time.perf_counter() - start
    said_verdicts = await together([verdict(i) for i in judged])
    for world in {a.moment.world for a in asked}:
        simulator.release(world)
    kept = [r for r in results if r is not None]
    done = [(r.truth.done, r.ended) for r in kept]
    done += [(True, domain.closes(a.action)) for a in everything if a.silent and a.truth.done]
    probabilities = [v for v in said_verdicts if v is not None]
    return OpenLoop(
        name=simulator.name,
        with_code=with_code,
        episodes=len(episodes),
        tasks=len({e.task_id for e in episodes}),
        void=len(results) - len(kept) + len(said_verdicts) - len(probabilities),
        seconds_per_step=seconds / len(asked) if asked else math.nan,
        done=Detection.of(done),
        verdict=Probabilities.of(
            [0.5 if math.isnan(p) else p for _, p, _ in probabilities], [y for *_, y in probabilities]
        ),
        unjudgeable=sum(math.isnan(p) for _, p, _ in probabilities),
        worst=worst(kept, episodes, examples),
        results=tuple(kept),
        verdicts=tuple(probabilities),
        **summary(kept),
    )


async def ask(each: Asked, layers: Sequence[Layer], simulator: Simulator) -> Reply | None:
    """The reply as `GymEnv` finds it; None where the simulator could not be reached."""
    known = first_reply(layers, each.moment, each.action)
    if known is not None:
        return known
    try:
        return await simulator.reply(each.blank, each.action)
    except Unparsable:
        return Reply(UNREADABLE, confidence=0.0, note="unparsable")
    except EnvError:
        return None


def score(each: Asked, said: Reply, episode: LoggedEpisode, domain: Domain) -> StepResult:
    """Compare one reply with the recorded one."""
    readable = said.note != "unparsable"
    truth = each.truth
    return StepResult(
        episode.task_id,
        each.episode,
        each.step,
        each.action,
        truth,
        said,
        readable and documents.same(said.text, truth.text),
        f1(said.text, truth.text) if readable else 0.0,
        documents.score_fields(each.moment.past, each.action, said.text, truth.text),
        readable,
        domain.closes(each.action, said),
    )


def summary(results: Sequence[StepResult]) -> dict[str, Any]:
    """The figures that depend on steps alone, as keywords of `OpenLoop`."""
    by_kind: dict[str, list[StepResult]] = defaultdict(list)
    buckets: dict[str, list[tuple[documents.FieldScore, bool]]] = defaultdict(list)
    for r in results:
        by_kind[r.action.kind].append(r)
        if r.fields is not None:
            buckets[r.fields.bucket].append((r.fields, r.exact))
    n = len(results)
    origins = Counter(r.said.origin for r in results)
    recorded = sum(len(r.truth.text) for r in results)
    rewards = [(r.truth.reward, r.said.reward) for r in results if r.truth.reward is not None]
    sure = [r.said.confidence for r in results]
    return {
        "steps": n,
        "exact": Mean.of({k: [float(r.exact) for r in v] for k, v in by_kind.items()}),
        "f1": Mean.of({k: [r.f1 for r in v] for k, v in by_kind.items()}),
        "by_kind": {k: _kind(v) for k, v in sorted(by_kind.items(), key=lambda kv: (-len(kv[1]), kv[0]))},
        "fields": {b: _fields(buckets[b]) for b in ("new", "0", "1", "2", "3+") if b in buckets},
        "errors": Detection.of([(r.truth.failed, r.said.failed or looks_failed(r.said.text)) for r in results]),
        "step_reward": mean([float(s is not None and abs(s - t) <= RIGHT_REWARD) for t, s in rewards]),
        "confidence": Confidence(
            Probabilities.of(sure, [r.exact for r in results]), _coverage(sure, [r.exact for r in results])
        ),
        "unparsable": mean([float(not r.readable) for r in results]),
        "origins": {k: v / n for k, v in origins.most_common()},
        "leaked": origins["recorded"],
        "length_ratio": sum(len(r.said.text) for r in results if r.readable) / recorded if recorded else math.nan,
    }


def worst(results: Sequence[StepResult], episodes: Sequence[LoggedEpisode], n: int) -> tuple[Example, ...]:
    """The wrong replies furthest off, the surest first among equals, at most a third of them of one kind."""
    wrong = sorted(
        (r for r in results if not r.exact),
        key=lambda r: (round(r.f1, 1), -r.said.confidence, r.task_id, r.episode, r.step),
    )
    left, out = Counter[str](), list[StepResult]()
    for r in wrong:
        if len(out) < n and left[r.action.kind] < max(1, math.ceil(n / 3)):
            left[r.action.kind] += 1
            out.append(r)
    return tuple(
        Example(
            f"task {r.task_id}, episode {r.episode + 1}, step {r.step + 1}",
            episodes[r.episode].instruction,
            r.action.text,
            r.truth.text,
            r.said.text,
            r.f1,
            r.said.origin,
            r.said.confidence,
        )
        for r in out
    )


def _coverage(confidence: Sequence[float], right: Sequence[bool]) -> tuple[tuple[float, float], ...]:
    rows = risk_coverage(confidence, right) if confidence else []
    return tuple(dict.fromkeys((row["coverage"], row["accuracy"]) for row in reversed(rows)))


def _kind(results: Sequence[StepResult]) -> Kind:
    return Kind(
        len(results),
        mean([float(r.exact) for r in results]),
        mean([r.f1 for r in results]),
        mean([float(r.truth.failed) for r in results]),
        mean([float(not r.readable) for r in results]),
    )


def _fields(scores: Sequence[tuple[documents.FieldScore, bool]]) -> Fields:
    fields, moved = sum(s.fields for s, _ in scores), sum(s.moved for s, _ in scores)
    return Fields(
        len(scores),
        mean([float(exact) for _, exact in scores]),
        sum(s.right for s, _ in scores) / fields if fields else math.nan,
        sum(s.moved_right for s, _ in scores) / moved if moved else math.nan,
    )


async def compare(
    episodes: Sequence[LoggedEpisode],
    domain: Domain,
    rules: StateRules,
    layers: Sequence[Layer],
    simulators: Sequence[Simulator],
    *,
    baselines: Sequence[Simulator],
    at_once: int = 64,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> list[OpenLoop]:
    """Every simulator with code and alone, and the baselines alone, on the same steps in one run.

    Args:
        episodes: held out.
        domain: see `open_loop`, like all that follows.
        rules: the typed state.
        layers: code to ask first.
        simulators: the backends.
        at_once: moments asked concurrently.
        seed: of the worlds.
        baselines: "nearest recorded transition" and "no change" (`simulators.baselines`).
        on_progress: called with (done, total) over all of it.

    Returns:
        One `OpenLoop` a row: each simulator with code, each alone, then the baselines.
    """
    rows = [(s, True) for s in simulators] + [(s, False) for s in (*simulators, *baselines)]
    out: list[OpenLoop] = []
    for i, (simulator, with_code) in enumerate(rows):

        def progress(done: int, total: int, i: int = i) -> None:
            if on_progress is not None:
                on_progress(i * total + done, len(rows) * total)

        out.append(
            await open_loop(
                episodes,
                domain,
                rules,
                layers,
                simulator,
                with_code=with_code,
                at_once=at_once,
                seed=seed,
                on_progress=progress,
            )
        )
    return out
