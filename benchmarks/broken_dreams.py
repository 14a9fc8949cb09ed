"""Broken dreams hurt: what gate and report say of them, and what reality says of an agent that was trained in them.

From the same logs of the fictional desk come a healthy gym and broken ones (`broken_gyms.py`). Each is put through gate
and report. Then every seed's agent is cloned once and trained from there in each gym, past the gate by force and
without reality, with the same budgets and settings; and then checked on all held-out tickets of the real desk, paired
by ticket. Once more with reality beside: the second line of defence.

    python benchmarks/broken_dreams.py                 # writes benchmarks/results/broken_dreams.json
    python benchmarks/broken_dreams.py --work FOLDER   # keeps what is finished there, and goes on from it
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from broken_gyms import Elsewhere, Tolerant
from parts import write

from rlready import __version__
from rlready.aio import run_sync
from rlready.algorithms.presets import GRPO
from rlready.dream.gate import GateReport
from rlready.dream.gym import Gym
from rlready.dream.measure.whole import measure_gym
from rlready.dream.report import to_markdown
from rlready.dreaming.agent import policy_of
from rlready.dreaming.clone import clone
from rlready.dreaming.fit import fit
from rlready.dreaming.options import FitOptions
from rlready.dreaming.rounds import RealSide
from rlready.dreaming.train import DreamTrainConfig, check_gate, train_in_dream
from rlready.envs.base import Step
from rlready.errors import UserError
from rlready.evaluate import Evaluation, evaluate, paired
from rlready.policy.base import Policy, SamplingParams
from rlready.policy.tiny import TinyConfig, load_policy
from rlready.run import Run
from rlready.seeds import derive
from rlready.worlds.fiction import play_logs, write_logs
from rlready.worlds.fiction.desk import WORLD, Desk, tasks, test_tasks

SETTINGS = DreamTrainConfig(
    steps=50, groups=16, group_size=8, rl_lr=6e-4, enough=1.1, check_every=0, real_rounds=0, save_every=0,
    tiny=TinyConfig(dim=64, layers=2, heads=4, kv_heads=1, max_len=512),
)  # fmt: skip
"""Training knows no reality, as where others were fooled; with it beside, see `watched`."""

EPISODES = 3600
"""Of the logs, by the mixture of players that `python -m rlready.worlds.fiction logs` has: most act without looking."""

MAIN = ("healthy", "tolerant", "elsewhere")
BESIDE = ("elsewhere, a world lasts",)
MAKE: dict[str, Callable[[Gym], Gym]] = {
    "healthy": lambda gym: gym,
    "tolerant": Tolerant.of,
    "elsewhere": Elsewhere.of,
    "tolerant, the right call wanted": lambda gym: Tolerant.of(gym, verdict="right call"),
    "elsewhere, a world lasts": lambda gym: Elsewhere.of(gym, lasting=True),
}
"""A gym by its name, from the healthy one. Those of `BESIDE` have fewer seeds."""


def make_gym(folder: Path, episodes: int, seed: int) -> Gym:
    """A healthy gym from scripted play of mixed quality; made once."""
    out = folder / "gym"
    if not (out / "gym.json").exists():
        write_logs(play_logs(WORLD, episodes=episodes, seed=seed), folder / "desk.jsonl")
        fit([folder / "desk.jsonl"], out, FitOptions(curve=False), seed=seed, progress="quiet")
    return Gym.load(out)


def real_side(gym: Gym) -> RealSide:
    """The real desk: its test tickets are held out, those that the gym trains on are for practice."""
    known = set(gym.splits["train"])
    return RealSide(Desk, test_tasks, tasks.filter(lambda t: t.id in known), gym.domain.ending.cap + 8)


# ---------------------------------------------------------------------- gate and report


def told(name: str, healthy: Gym, real: RealSide, *, held: int = 200) -> dict[str, Any]:
    """What gate and report say of a gym.

    Args:
        name: of `MAKE`.
        healthy: the gym that it is made from.
        real: for the form of first observations, and for replays of dreams.
        held: recorded steps that are measured on.

    Returns:
        "passed", "failed" (checks by name with their failures), "stopped" (what training without force says, or
        None), "report" (its lines on the gate and on sameness, and the figures of its closed loop).
    """
    gym = MAKE[name](healthy)
    gate, spent = check_gate(gym, real)
    stopped = None
    try:
        gate.raise_for_failure()
    except UserError as error:
        stopped = str(error)
    known = {t.id: t for t in (*real.practice, *real.held_out)}
    report = run_sync(
        measure_gym(
            gym, name=name, real=real.env, real_tasks=known, gate=gate, curve=False, most_steps=held, replays=8,
            sessions=[MAKE[name](healthy).env_factory(evaluation=True)],
        )
    )  # fmt: skip
    same, closed, loop = report.sameness, report.closed, report.loops[0]
    assert same is not None and closed is not None
    return {
        "passed": gate.passed,
        "failed": {c.name: {"failures": list(c.failures), "why": c.why} for c in gate.checks if not c.passed},
        "stopped": stopped,
        "named": named(gate, to_markdown(report)),
        "real transitions": spent + closed.real_transitions,
        "same actions": {"scripts": same.scripts, "different": same.different, "variance": same.reward_variance},
        "errors found": loop.errors.recall,
        "flattered": closed.flattered,
        "optimism": closed.optimism,
        "replies that are the real ones": closed.replies,
    }


def named(gate: GateReport, page: str) -> list[str]:
    """The failed checks whose failures stand in a report's page, each with all its sentences."""
    flat = " ".join(page.replace("&lt;", "<").split())
    return [
        c.name
        for c in gate.checks
        if not c.passed
        and f"- {c.name}: FAILED" in page
        and all(" ".join(failure.split()) in flat for failure in c.failures)
    ]


# ---------------------------------------------------------------------- training by force


class Watched(Desk):
    """The real desk with an eye on what is done: (action, reply) pairs, a list an episode."""

    seen: list[list[tuple[str, str]]]

    def __init__(self) -> None:
        """An episode of its own."""
        super().__init__()
        self.mine: list[tuple[str, str]] = []
        self.seen.append(self.mine)

    async def step(self, action: str) -> Step:
        """Play on and keep what was said."""
        step = await super().step(action)
        last = step.observation.messages[-1]
        self.mine.append((action, "" if last.role == "assistant" else last.text))
        return step


def habits(episodes: Sequence[Sequence[tuple[str, str]]], gym: Gym) -> dict[str, float]:
    """How an agent acts on real tickets.

    Args:
        episodes: (action, reply) pairs of each.
        gym: its parser and its reading tools.

    Returns:
        "looks first": share of episodes that begin with a look; per episode: "actions", "writes" that were asked for,
        "refused" actions.
    """
    n = len(episodes)
    tools = [[gym.domain.parse(action)[0].tool for action, _ in episode] for episode in episodes]
    refused = [sum(reply.startswith(("Error", '{"error"')) for _, reply in episode) for episode in episodes]
    return {
        "looks first": sum(each[:1] != [""] and each[0] in gym.state.reads for each in tools if each) / n,
        "actions": sum(len(each) for each in tools) / n,
        "writes": sum(tool in WRITES for each in tools for tool in each) / n,
        "refused": sum(refused) / n,
    }


WRITES = ("refund", "replace", "cancel")


_SIDES = ("clone", "trained", "sampled_clone", "sampled")


@dataclass(frozen=True)
class Trained:
    """One run: an agent that was cloned with a seed and trained in a gym.

    Attributes:
        gym: name of the gym.
        seed: of everything.
        clone, trained: on the real held-out tickets, greedily.
        sampled_clone, sampled: the same, sampled at temperature 1.
        dream: success in this very gym, before and after.
        forced: checks that were overridden.
        halted: why training stopped early, or None.
        habits: of the trained agent, sampled.
        transitions: dreamt in training.
        seconds: it took.
    """

    gym: str
    seed: int
    clone: Evaluation
    trained: Evaluation
    sampled_clone: Evaluation
    sampled: Evaluation
    dream: dict[str, float]
    forced: list[str]
    halted: str | None
    habits: dict[str, float]
    transitions: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {k: getattr(self, k).to_json() for k in _SIDES}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trained:
        """Inverse of `to_json`."""
        sides = {k: Evaluation.from_json(record[k]) for k in _SIDES}
        return cls(**{**record, **sides})


def cloned(gym: Gym, config: DreamTrainConfig, seed: int, folder: Path) -> Path:
    """The folder of a seed's clone: filtered cloning on the logs' successes, made once."""
    out = folder / f"clone-{seed}"
    if not out.exists():
        with Run.create(f"clone-{seed}", config, seed, root=folder / "runs", progress="quiet") as run:
            policy, _ = policy_of("tiny", gym, config, seed, run.dir)
            clone(gym, policy, run, successes=True, epochs=config.clone_epochs, batch_tokens=config.clone_batch_tokens)
            policy.save(out)  # type: ignore[attr-defined]  # a tiny policy
    return out


def checked(policy: Policy, config: DreamTrainConfig, gym: Gym, seed: int) -> tuple[Evaluation, Evaluation, Any]:
    """On all held-out tickets of the real desk: greedy, sampled, and the habits of the latter."""
    found, seen = [], list[list[tuple[str, str]]]()
    for temperature in (0.0, config.temperature):
        eye = type("Eye", (Watched,), {"seen": (seen := [])})
        params = SamplingParams(
            temperature=temperature, max_tokens=config.max_tokens, stop_ids=policy.renderer.stop_ids
        )
        found.append(
            run_sync(evaluate(policy, test_tasks, eye, params=params, seed=derive(seed, "real check")))
        )  # fmt: skip
    return found[0], found[1], habits(seen, gym)


def train_one(name: str, healthy: Gym, config: DreamTrainConfig, seed: int, folder: Path) -> Trained:
    """Clone (once a seed), train in a gym past its gate and without reality, then check; kept in `folder`."""
    path = folder / f"{name}-{seed}.json"
    if path.exists():
        return Trained.from_json(json.loads(path.read_text(encoding="utf-8")))
    began = time.perf_counter()
    agent = load_policy(cloned(healthy, config, seed, folder))
    clone_greedy, clone_sampled, _ = checked(agent, config, healthy, seed)
    place = folder / "runs" / f"{name}-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    with Run.create(place.name, config, seed, root=place.parent, progress="quiet") as run:
        out = train_in_dream(
            MAKE[name](healthy), agent, GRPO(minibatches=2, seed=seed), run, config, force=True, cloned=True
        )
        dreamt = run.spent("dream")
    greedy, sampled, acts = checked(agent, config, healthy, seed)
    found = Trained(
        name, seed, clone_greedy, greedy, clone_sampled, sampled, out.dream, out.forced, out.halted, acts, dreamt,
        time.perf_counter() - began,
    )  # fmt: skip
    path.write_text(json.dumps(found.to_json()) + "\n", encoding="utf-8")
    return found


def watched(name: str, healthy: Gym, config: DreamTrainConfig, folder: Path) -> dict[str, Any]:
    """The same once more with reality beside, as `rlready dream train --real` does it: is training halted?"""
    path = folder / f"{name}, watched.json"
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    agent = load_policy(cloned(healthy, config, 0, folder))
    place = folder / "runs" / f"{name}-watched"
    shutil.rmtree(place, ignore_errors=True)
    config = replace(config, check_every=10, save_every=10)
    with Run.create(place.name, config, 0, root=place.parent, progress="quiet") as run:
        out = train_in_dream(
            MAKE[name](healthy), agent, GRPO(minibatches=2, seed=0), run, config, real=real_side(healthy), force=True,
            cloned=True,
        )  # fmt: skip
    assert out.difference is not None
    found = {"halted": out.halted, "against cloning, greedy": out.difference.to_json(), "spent": out.budget}
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


# ---------------------------------------------------------------------- what comes out


def merged(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of several seeds on the same tasks as one: a task's outcomes are those of all seeds."""
    outcomes: dict[str, list[int]] = {}
    for each in evaluations:
        for task, found in each.outcomes.items():
            outcomes.setdefault(task, []).extend(found)
    n = sum(len(v) for v in outcomes.values())
    success = sum(sum(v) for v in outcomes.values()) / n
    return Evaluation(success, (float("nan"), float("nan")), success, n, 0, outcomes=outcomes)


def against(own: Sequence[Trained], healthy: Sequence[Trained]) -> dict[str, Any]:
    """Real success and paired differences with filtered cloning and with the healthy dream, greedy and sampled.

    Over several seeds a ticket's outcomes go together, and intervals are bootstraps over tickets.
    """
    out: dict[str, Any] = {}
    for way, before, after in (("greedy", "clone", "trained"), ("sampled", "sampled_clone", "sampled")):
        clones, trained, rival = (
            merged([getattr(run, side) for run in runs])
            for runs, side in ((own, before), (own, after), (healthy, after))
        )
        out[way] = {
            "clone": clones.success,
            "trained": trained.success,
            "against cloning": paired(trained, clones).to_json(),
            "against healthy": paired(trained, rival).to_json(),
        }
    return out


def compared(runs: dict[str, list[Trained]]) -> dict[str, Any]:
    """Per gym: every seed by itself, and all seeds together."""
    out: dict[str, Any] = {}
    for name, own in runs.items():
        by_seed = {run.seed: run for run in runs["healthy"]}
        healthy = [by_seed[run.seed] for run in own]
        for run, sound in zip(own, healthy, strict=True):
            same = all(getattr(run, k).outcomes == getattr(sound, k).outcomes for k in ("clone", "sampled_clone"))
            if not same:
                raise SystemExit(f"{name}, seed {run.seed}: it did not start from the clone that the healthy run had.")
        out[name] = {
            "seeds": [
                against([run], [sound])
                | {"seed": run.seed, "dream": run.dream, "forced": run.forced, "halted": run.halted}
                | {"habits": run.habits, "transitions": run.transitions, "seconds": run.seconds}
                for run, sound in zip(own, healthy, strict=True)
            ],
            "all seeds": against(own, healthy)
            | {
                "dream": {k: statistics.mean(run.dream[k] for run in own) for k in own[0].dream},
                "habits": {k: statistics.mean(run.habits[k] for run in own) for k in own[0].habits},
            },
        }
    return out


def commit() -> str:
    """The commit that was measured, with a plus where files differ from it."""
    try:
        words = ["git", "-C", str(Path(__file__).parent)]
        head = subprocess.run([*words, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*words, "status", "--short", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + "+" * bool(dirty.stdout.strip())


def said(run: Trained) -> str:
    """A run in one line, for those who watch."""
    acts = ", ".join(f"{name} {value:.2f}" for name, value in run.habits.items())
    return (
        f"{run.gym}, seed {run.seed}: dream {run.dream['clone']:.1%} -> {run.dream['trained']:.1%}; real, greedy "
        f"{run.clone.success:.1%} -> {run.trained.success:.1%} ({paired(run.trained, run.clone)}); sampled "
        f"{run.sampled_clone.success:.1%} -> {run.sampled.success:.1%} ({paired(run.sampled, run.sampled_clone)}); "
        f"{run.halted or 'not halted'}; {acts}; {run.seconds:.0f} s"
    )


def measure(
    folder: Path, names: Sequence[str], seeds: int, beside: int, config: DreamTrainConfig, episodes: int
) -> dict[str, Any]:
    """Everything, as it is written to the results; gyms of `BESIDE` are trained in with the first `beside` seeds."""
    began = time.perf_counter()
    healthy = make_gym(folder, episodes, 0)
    real = real_side(healthy)
    says: dict[str, Any] = {}
    for name in names:
        says[name] = told(name, healthy, real)
        print(name, "passed" if says[name]["passed"] else f"stopped: {', '.join(says[name]['failed'])}", flush=True)
    runs: dict[str, list[Trained]] = {name: [] for name in names}
    for seed in range(seeds):
        for name in names:
            if name in BESIDE and seed >= beside:
                continue
            run = train_one(name, healthy, config, seed, folder)
            runs[name].append(run)
            print(said(run), flush=True)
    looked = {name: watched(name, healthy, config, folder) for name in names if name in MAIN}
    library = healthy.library.episodes.values()
    return {
        "settings": asdict(config),
        "logs": {
            "episodes": episodes,
            "learned from": len(healthy.library),
            "right": statistics.mean(float(e.success) for e in library),
            "tickets": {name: len(ids) for name, ids in healthy.splits.items()},
        },
        "reward source": healthy.reward_source,
        "held out": len(real.held_out),
        "says": says,
        "gyms": compared(runs),
        "watched": looked,
        "versions": {"rlready": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "seconds": time.perf_counter() - began,
        "seconds of training": sum(run.seconds for own in runs.values() for run in own),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="keep gym, clones and finished runs here, and go on from them")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default %(default)s)")
    parser.add_argument("--beside", type=int, default=1, help="seeds for the gyms beside (default %(default)s)")
    parser.add_argument("--only", choices=list(MAKE), action="append", help="these gyms beside the healthy one")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of scripted play in the logs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in MAKE if name == "healthy" or not args.only or name in args.only]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = measure(folder, names, args.seeds, args.beside, SETTINGS, args.episodes)
    for name, found in result["gyms"].items():
        print(name, json.dumps(found["all seeds"], indent=1))
    if not args.only:
        write("broken_dreams", result)


if __name__ == "__main__":
    main()
