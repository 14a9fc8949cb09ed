"""GRPO per step (rollout and update): rlready against TRL's `GRPOTrainer`, paired.

Same tiny model and weights, tasks, groups, token cap, loss and optimizer settings, same machine. Each side runs in its
own process at its own best thread count (and micro-batch, for TRL), found first; they take turns. Needs the extra
`bench`.

    python benchmarks/vs_trl.py            # writes benchmarks/results/vs_trl.json and vs_trl.png, prints the ratio
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chain
from driver import lockstep
from parts import RESULTS, write
from sides import GROUP, LR, MAX_TOKENS, PROMPTS, Setting, Step

from rlready.policy.tiny import load_policy, save_policy

SIDES = ("rlready", "trl")
WARM_UP = 2
"""Steps left out of the timing: memory is allocated in them."""
LEARNING = 10
"""Reward climbs up to about this step; after it most groups are all right, and rlready does not run those."""


def options() -> list[Setting]:
    """What the best setting of each side is chosen from."""
    ours = [Setting("rlready", n) for n in (1, 2)]
    return ours + [Setting("trl", n, micro) for n in (1, 2) for micro in (PROMPTS * GROUP, PROMPTS * GROUP // 4)]


def median(steps: Sequence[Step], of: Callable[[Step], float]) -> float:
    """Median over a side's steps, the first ones left out."""
    return statistics.median(of(step) for step in steps[WARM_UP:])


def wall(step: Step) -> float:
    """Wall-clock seconds."""
    return step.wall


def cpu(step: Step) -> float:
    """Processor seconds, all threads."""
    return step.cpu


def choose(start: Path, steps: int) -> tuple[dict[str, Setting], dict[str, float]]:
    """The fastest setting of each side by wall clock, and what was measured."""
    settings = options()
    taken = lockstep(start, steps, 99, settings)
    seconds = {str(setting): median(each, wall) for setting, each in zip(settings, taken, strict=True)}
    best = {side: min((s for s in settings if s.side == side), key=lambda s: seconds[str(s)]) for side in SIDES}
    return best, seconds


def compare(start: Path, steps: int, seed: int, best: dict[str, Setting]) -> dict[str, Any]:
    """One pair of runs; times in seconds, ratios TRL / rlready."""
    ours, theirs = lockstep(start, steps, seed, [best["rlready"], best["trl"]])
    steady = list(zip(ours, theirs, strict=True))[WARM_UP:]
    return {
        "seed": seed,
        "ratio": median(theirs, wall) / median(ours, wall),
        "ratio of neighbouring steps": statistics.median(b.wall / a.wall for a, b in steady),
        "ratio of processor time": median(theirs, cpu) / median(ours, cpu),
        "seconds": {"rlready": median(ours, wall), "trl": median(theirs, wall)},
        "steps": {"rlready": [asdict(step) for step in ours], "trl": [asdict(step) for step in theirs]},
    }


def curves(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the learning curves agree: the gap in mean reward over all steps, against the noise between seeds.

    The standard error of the gap is taken from the variance between the runs of one side, pooled over both.
    """

    def mean(side: str, of: str, at: slice) -> float:
        return statistics.fmean(step[of] for p in pairs for step in p["steps"][side][at])

    runs = [[statistics.fmean(step["reward"] for step in p["steps"][side]) for p in pairs] for side in SIDES]
    gap = statistics.fmean(runs[0]) - statistics.fmean(runs[1])
    error = math.sqrt(sum(statistics.variance(each) for each in runs) / len(pairs)) if len(pairs) > 1 else math.nan
    first, last = slice(0, 1), slice(-5, None)
    return {
        "gap": gap,
        "standard error": error,
        "within noise": abs(gap) <= 2 * error,
        "first reward": {side: mean(side, "reward", first) for side in SIDES},
        "last reward": {side: mean(side, "reward", last) for side in SIDES},
        "tokens": {side: mean(side, "tokens", slice(None)) for side in SIDES},
    }


def draw(pairs: Sequence[dict[str, Any]], path: Path) -> None:
    """Reward by step and by seconds of training, one line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for side, colour in (("rlready", "#1b6ca8"), ("trl", "#d1603d")):
        for i, pair in enumerate(pairs):
            steps = pair["steps"][side]
            rewards = [step["reward"] for step in steps]
            spent = [pair["seconds"][side] * (n + 1) for n in range(len(steps))]
            label = {"rlready": "rlready", "trl": "TRL"}[side] if i == 0 else None
            left.plot(range(1, len(steps) + 1), rewards, color=colour, alpha=0.7, label=label)
            right.plot(spent, rewards, color=colour, alpha=0.7)
    left.set(xlabel="step", ylabel="mean reward (sampled at 1)", title="The same learning")
    right.set(xlabel="seconds (median step x steps)", title="The time it takes")
    left.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Warm-start, choose settings, run the pairs, write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25, help="training steps a run")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs, a seed each")
    parser.add_argument("--again", action="store_true", help="run nothing: sum up and draw the recorded steps again")
    parser.add_argument("--start", type=Path, help="folder of the warm-started policy; made there where it is missing")
    args = parser.parse_args()
    if args.again:
        recorded = json.loads((RESULTS / "vs_trl.json").read_text())
        report({name: recorded[name] for name in ("setting", "versions", "start", "tried", "best")}, recorded["pairs"])
        return
    with tempfile.TemporaryDirectory() as folder:
        start = args.start or Path(folder) / "start"
        if not start.exists():
            save_policy(chain.warm_start(seed=0), start)
        before = chain.accuracy(load_policy(start))
        print(f"start: {before}", flush=True)
        best, seconds = choose(start, 8)
        print(f"seconds a step: { ({name: round(s, 3) for name, s in seconds.items()}) }", flush=True)
        pairs = []
        for seed in range(args.pairs):
            pairs.append(compare(start, args.steps, seed, best))
            print({k: v for k, v in pairs[-1].items() if k != "steps"}, flush=True)
    settled = {
        "setting": {"prompts": PROMPTS, "group": GROUP, "max_tokens": MAX_TOKENS, "lr": LR, "steps": args.steps},
        "versions": versions(),
        "start": before,
        "tried": seconds,
        "best": {side: str(setting) for side, setting in best.items()},
    }
    report(settled, pairs)


def report(settled: dict[str, Any], pairs: list[dict[str, Any]]) -> None:
    """Write results and picture, print the ratio."""
    ratios = [pair["ratio"] for pair in pairs]
    out = settled | {
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "ratio while learning": statistics.median(ratio(pair, slice(WARM_UP, LEARNING)) for pair in pairs),
        "ratio once learnt": statistics.median(ratio(pair, slice(LEARNING, None)) for pair in pairs),
        "ratio of processor time": statistics.median(pair["ratio of processor time"] for pair in pairs),
        "ratio of neighbouring steps": statistics.median(pair["ratio of neighbouring steps"] for pair in pairs),
        "curves": curves(pairs),
        "pairs": pairs,
    }
    write("vs_trl", out)
    draw(pairs, RESULTS / "vs_trl.png")
    print(f"TRL's step takes {statistics.median(ratios):.1f}x as long (median of {len(ratios)} pairs).")


def ratio(pair: dict[str, Any], at: slice) -> float:
    """TRL's median seconds by ours over some steps."""
    ours, theirs = (statistics.median(float(step["wall"]) for step in pair["steps"][side][at]) for side in SIDES)
    return theirs / ours


def versions() -> dict[str, str]:
    """Of what was compared."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "trl", "rlready")}


if __name__ == "__main__":
    main()
