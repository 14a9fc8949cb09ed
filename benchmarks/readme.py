"""Writes the measured parts of benchmarks/README.md from results/*.json: `python benchmarks/readme.py`.

A test fails where the page says something else than the results.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Result = dict[str, Any]


def read(name: str) -> Result:
    """A recorded result."""
    found: Result = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is words and whose others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(x: float) -> str:
    """A share."""
    return f"{100 * x:.1f}%"


def vs_trl(r: Result) -> str:
    """Ratio, learning curves, settings."""
    ratio, curves, n = r["ratio"], r["curves"], len(r["pairs"])
    seconds = {side: sorted(pair["seconds"][side] for pair in r["pairs"])[n // 2] for side in ("rlready", "trl")}
    rows = [
        ["seconds a step, median", f"{seconds['rlready']:.2f}", f"{seconds['trl']:.2f}"],
        ["reward of the first step", *(f"{curves['first reward'][s]:.3f}" for s in seconds)],
        ["reward of the last five steps", *(f"{curves['last reward'][s]:.3f}" for s in seconds)],
        ["tokens a completion", *(f"{curves['tokens'][s]:.1f}" for s in seconds)],
        ["best setting", *(r["best"][s].split(", ", 1)[1] for s in seconds)],
    ]
    verdict = "within" if curves["within noise"] else "**beyond**"
    held = "holds" if ratio["median"] >= 4 else "**does not hold**"
    return "\n\n".join(
        [
            f"**TRL's step takes {ratio['median']:.1f} times as long** (median of {n} pairs, {ratio['min']:.1f} to "
            f"{ratio['max']:.1f}; by processor time {r['ratio of processor time']:.1f}; by neighbouring steps "
            f"{r['ratio of neighbouring steps']:.1f}). Wanted: 4; it {held}. While reward climbs the ratio is "
            f"{r['ratio while learning']:.1f}, afterwards {r['ratio once learnt']:.1f}: rlready does not run groups "
            "that are all right or all wrong, for they add nothing to the update.",
            table(["", "rlready", f"TRL {r['versions']['trl']}"], rows),
            f"Mean reward over all steps differs by {curves['gap']:+.3f}, with a standard error of "
            f"{curves['standard error']:.3f} between seeds: {verdict} noise (two standard errors).",
        ]
    )


def dpo_vs_trl(r: Result) -> str:
    """Ratio, agreement of the losses, settings, by model."""
    out = []
    for name, m in r["models"].items():
        ratio, runs = m["ratio"], m["runs"]
        seconds = {s: sorted(run["seconds"][s] for run in runs)[len(runs) // 2] for s in ("rlready", "trl")}
        losses = {when: [runs[0]["losses"][when][s] for s in seconds] for when in ("first", "last")}
        rows = [
            ["seconds a step, median", *(f"{seconds[s]:.3f}" for s in seconds)],
            ["loss of the first step", *(f"{loss:.6f}" for loss in losses["first"])],
            ["loss of the last step", *(f"{loss:.6f}" for loss in losses["last"])],
            ["best setting", *(m["best"][s].split(", ", 1)[1] for s in seconds)],
        ]
        held = "holds" if ratio["median"] >= 4 else "**does not hold**"
        out += [
            f"**{name} parameters: TRL's step takes {ratio['median']:.1f} times as long** (median of {len(runs)} "
            f"pairs, {ratio['min']:.1f} to {ratio['max']:.1f}; by processor time {m['ratio of processor time']:.1f}; "
            f"by neighbouring steps {m['ratio of neighbouring steps']:.1f}). Wanted: 4; it {held}. The losses of the "
            f"two differ by at most {m['greatest difference of losses']:.1g} in any step: they do the same work.",
            table([name, "rlready", f"TRL {r['versions']['trl']}"], rows),
        ]
    return "\n\n".join(out)


def curves_vs_trl(r: Result) -> str:
    """Whether learning curves agree, by method, and by fifths of the runs."""
    out = []
    for method, m in r["methods"].items():
        head = [f"{method.upper()}, {m['size']}", *(f"fifth {i + 1}" for i in range(5)), "all"]
        rows = [
            [label, *(f"{part[side]:.3f}" for part in m["fifths"]), "-"]
            for side, label in (("rlready", "rlready"), ("trl", f"TRL {m['trl']}"))
        ]
        rows.append(
            [
                "difference",
                *(f"{part['gap']:+.3f} ± {part['standard error']:.3f}" for part in m["fifths"]),
                f"{m['gap']:+.3f} ± {m['standard error']:.3f}",
            ]
        )
        verdict = "within" if m["within noise"] else "**beyond**"
        out += [
            table(head, rows),
            f"{method.upper()}, {len(m['pairs'])} seeds: mean reward over all steps differs by {m['gap']:+.3f} with a "
            f"standard error of {m['standard error']:.3f}: {verdict} noise (two standard errors).",
        ]
    return "\n\n".join(out)


def lag(r: Result) -> str:
    """Rewards by lag and rule, and the first signs."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    def spread(values: list[float]) -> str:
        m = mean(values)
        sd = (sum((x - m) ** 2 for x in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else 0.0
        return f"{100 * m:.0f} ± {100 * sd:.0f}"

    rows, first = [], []
    for name, e in r["by"].items():
        collapsed = sum(at is not None for at in e["collapsed"])
        rows.append([name, spread(e["reward"]), spread(e["last"]), spread(e["after"]), f"{collapsed} of {e['seeds']}"])
        # A longer answer is what the task is about, in every run.
        signs = [(min(at), sign, len(at)) for sign, at in e["signs"].items() if sign != "length_growth"]
        said = ", ".join(f"{sign} ({n} of {e['seeds']}, from update {at})" for at, sign, n in sorted(signs)) or "none"
        first.append(f"- {name}: {said}")
    return "\n\n".join(
        [
            table(["", "reward over the run, %", "last five updates", "after, sampled", "collapsed"], rows),
            "Signs that began, in the order in which they did:\n\n" + "\n".join(first),
        ]
    )


def rollout_engine(r: Result) -> str:
    """Shares of the two workloads."""
    both = [r["completions"], r["completions, larger model"], r["episodes"]]
    rows = [
        [words, *(percent(each[name]) for each in both)]
        for words, name in (
            ("engine's time beyond forward passes", "engine"),
            ("framework: rollout beyond forward passes, environments, graders", "framework"),
            ("rollout beyond forward passes, environments included", "all but forward passes"),
            ("environments and graders", "environments and graders"),
            ("around the engine (coroutines, turns, seeds, rendering)", "around the engine"),
            ("event loop waiting", "waiting"),
        )
    ]
    rows.append(["tokens a turn", *(f"{each['tokens'] / each['turns']:.1f}" for each in both)])
    e = r["episodes"]

    def held(name: str, which: int) -> str:
        return "hold" if both[which][name] <= 0.15 else "**do not hold**"

    around = [1e6 * each["around the engine"] * each["seconds"] / each["turns"] for each in both]
    return "\n\n".join(
        [
            table(["", "completions", "completions, 4.5M", "one-token turns"], rows),
            f"Wanted: at most 15%. Within the engine: completions {held('engine', 0)}, one-token turns "
            f"{held('engine', 2)}. Over the whole rollout: completions {held('framework', 0)} "
            f"({percent(both[1]['framework'])} with the larger model), one-token turns {held('framework', 2)}.",
            f"Asynchrony and bookkeeping around the engine cost {around[0]:.0f} microseconds an episode of one turn, "
            f"and {around[2]:.0f} microseconds a turn of the longer episodes.",
            f"Prefix reuse: without it the same episodes prefill {e['prefill tokens without reuse']:,.0f} tokens "
            f"instead of {e['prefill tokens']:,.0f} and take {e['time without reuse']:.1f} times as long.",
        ]
    )


def dream_speed(r: Result) -> str:
    """Rates by concurrency, and shares of a step."""
    counts = sorted(int(name.split()[1]) for name in r["rates"] if name.startswith("dream"))
    rates = [
        [
            str(n),
            *(f"{r['rates'][f'{side}, {n} at once']['steps per second']:,.0f}" for side in ("dream", "real")),
            percent(r["rates"][f"dream, {n} at once"]["forward passes"]),
        ]
        for n in counts
    ]
    first, last = (r["rates"][f"dream, {n} at once"]["steps per second"] for n in (counts[0], counts[-1]))
    real = r["rates"][f"real, {counts[-1]} at once"]["steps per second"]
    parts = ("rollout", "environment", "update", "framework", "waiting")
    step = [[part, *(percent(r["step"][side][part]) for side in ("real", "dream"))] for part in parts]
    step.append(["seconds", *(f"{r['step'][side]['seconds']:.2f}" for side in ("real", "dream"))])
    step.append(["transitions", *(f"{r['step'][side]['transitions']:,.0f}" for side in ("real", "dream"))])
    return "\n\n".join(
        [
            table(["episodes at once", "dreamt steps/s", "real steps/s", "dream: in forward passes"], rates),
            f"{counts[-1]} episodes at once dream {last / first:.0f} times as fast as one at a time; a step writes "
            f"{r['rates'][f'dream, {counts[-1]} at once']['tokens per step']:.0f} tokens. The real simulator is "
            f"{real / last:.0f} times as fast as the dream at its best.",
            table(["share of a GRPO step", "in reality", "in the dream"], step),
        ]
    )


def log_readers(r: Result) -> str:
    """Megabytes a second and memory by file."""
    names = sorted((name for name in r if name != "about"), key=lambda name: (r[name]["MB"] > 1000, name))
    rows = [
        [words, *(f"{value(r[name]):,.0f}" for name in names)]
        for words, value in (
            ("MB a second of processor time", lambda e: e["MB"] / e["processor seconds"]),
            ("MB a second by the clock", lambda e: e["MB"] / e["seconds"]),
            ("messages a second of processor time", lambda e: e["messages"] / e["processor seconds"]),
            ("growth of memory while reading, MB", lambda e: e["memory growth in MB"]),
            ("recordings", lambda e: e["recordings"]),
        )
    ]
    held = "holds" if all(r[n]["MB"] / r[n]["processor seconds"] >= 50 for n in names) else "**does not hold**"
    return "\n\n".join([table(["", *names], rows), f"Wanted: 50 MB a second on one core; by processor time it {held}."])


def broken_dreams(r: Result) -> str:
    """What gate and report say, and what reality says where the gate was forced."""
    gyms, says = r["gyms"], r["says"]

    def points(pair: Result) -> str:
        low, high = (100 * x for x in pair["interval"])
        return f"{100 * pair['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"

    def by_seed(name: str, rival: str) -> str:
        return " / ".join(f"{100 * seed['sampled'][rival]['difference']:+.1f}" for seed in gyms[name]["seeds"])

    def verdict(name: str, rival: str) -> str:
        low, high = gyms[name]["all seeds"]["sampled"][rival]["interval"]
        return "gains on" if low > 0 else "**loses against**" if high < 0 else "does not differ from"

    gate = [
        [
            name,
            "passed" if said["passed"] else f"stopped: {', '.join(said['failed'])}",
            ", ".join(said["named"]) or "-",
            f"{said['same actions']['different']} of {said['same actions']['scripts']}",
            percent(said["errors found"]),
        ]
        for name, said in says.items()
    ]
    why = [
        f"- {name}, {check}: {found['failures'][0].replace('<', '&lt;')}"
        for name, said in says.items()
        for check, found in said["failed"].items()
        if check == {"tolerant": "invalid actions"}.get(name.split(",")[0], "determinism")
    ]
    every = [(name, found["all seeds"]) for name, found in gyms.items()]
    both = [
        [
            name,
            *(percent(each["dream"][when]) for when in ("clone", "trained")),
            *(percent(each["greedy"][when]) for when in ("clone", "trained")),
            *(percent(each["sampled"][when]) for when in ("clone", "trained")),
        ]
        for name, each in every
    ]
    pairs = [
        [
            name,
            points(each["greedy"]["against cloning"]),
            points(each["sampled"]["against cloning"]),
            by_seed(name, "against cloning"),
            *(
                ["-"] * 3
                if name == "healthy"
                else [
                    points(each["greedy"]["against healthy"]),
                    points(each["sampled"]["against healthy"]),
                    by_seed(name, "against healthy"),
                ]
            ),
        ]
        for name, each in every
    ]
    halted = [f"- {name}: {seen['halted'] or 'not halted'}" for name, seen in r["watched"].items()]
    keys = ("looks first", "actions", "writes", "refused")
    habits = [[name, *(f"{each['habits'][key]:.2f}" for key in keys)] for name, each in every]
    sums = [
        f"{name.capitalize()}: it {verdict(name, 'against cloning')} filtered cloning"
        + ("." if name == "healthy" else f" and {verdict(name, 'against healthy')} the healthy dream.")
        for name in gyms
    ]
    return "\n\n".join(
        [
            table(["gym", "gate", "the report names", "scripts that differ", "errors found"], gate),
            "The first sentence of the check that is meant for it:\n\n" + "\n".join(why),
            f"By force, {len(gyms['healthy']['seeds'])} seeds, {r['held out']} held-out tickets of the real desk. "
            "Success before and after:",
            table(
                ["trained in", "dream", "after", "real, greedy", "after", "real, sampled", "after"],
                both,
            ),
            "Paired differences in reality, in points, and (sampled) seed by seed:",
            table(
                [
                    "trained in", "against cloning, greedy", "sampled", "by seed",
                    "against healthy, greedy", "sampled", "by seed",
                ],
                pairs,
            ),
            "Sampled, over all seeds. " + " ".join(sums),
            "What the trained agents do on the real tickets, sampled, an episode:",
            table(["trained in", *keys], habits),
            "With reality beside, measured every ten steps as `--real` does it (seed 0):\n\n" + "\n".join(halted),
        ]
    )  # fmt: skip


def dream_serve(r: Result) -> str:
    """Rates of both sides and their ratio, by what is played."""
    played = r["played"]
    rows = [
        [
            name,
            *(f"{e['steps per second'][side]:,.0f}" for side in ("in process", "served")),
            percent(e["share"]),
            percent(e["share by processor time"]),
            *(f"{e['processor microseconds a step'][side]:,.0f}" for side in ("in process", "server", "client")),
        ]
        for name, e in played.items()
    ]
    head = [
        "",
        "steps/s in process",
        "served",
        "share",
        "by processor time",
        "us a step in process",
        "server",
        "client",
    ]
    tiny, bare = played["tiny"], played["no-op"]
    held = "holds" if tiny["share"] >= 0.7 else "**does not hold**"
    return "\n\n".join(
        [
            table(head, rows),
            f"Wanted: 70% with the embedded transformer as the simulator; by the clock it {held} "
            f"({percent(tiny['shares'][0])} to {percent(tiny['shares'][1])} over the rounds). Serving by itself costs "
            f"the server {bare['processor microseconds a step']['server']:.0f} microseconds of processor time a step.",
        ]
    )


def math_graders(r: Result) -> str:
    """Grades a second, accuracy, and the public figures beside."""
    sides = list(r["mix"])[:2]
    public, cases = r["public_of_110"], r["cases"]
    ratio, blocks, memory = r["mix"]["times_as_fast"], r["mix"]["times_as_fast_by_block"], r["memory"]
    count = r["mix"]["rlready"]["of"]

    def row(words: str, of: str, key: str) -> list[str]:
        return [words, *(f"{r[of][side][key]:,.0f}" for side in sides), "-", "-"]

    rows = [
        row("grades a second", "mix", "grades_a_second"),
        row(f"mix: verdicts as they are known to be, of {count:,}", "mix", "agree"),
        row(f"public cases, of the {cases['rlready']['of']} here", "cases", "agree"),
        row("of these wrongly accepted", "cases", "wrongly_accepted"),
        ["all 110 cases, as their users published it", "-", *(str(public[s]) for s in ("math-verify", "verl", "TRL"))],
    ]
    as_right = r["mix"]["rlready"]["agree"] >= r["mix"]["math-verify"]["agree"]
    held = "it holds" if ratio >= 10 and as_right else "it **does not hold**"
    low, high = min(memory["resident_kb"]), max(memory["resident_kb"])
    return "\n\n".join(
        [
            table(["", "rlready", f"math-verify {r['math-verify']}", "verl", "TRL"], rows),
            f"**{ratio:.0f} times as many grades a second** (by blocks of 100: quartiles {blocks[0]:.0f}, "
            f"{blocks[1]:.0f}, {blocks[2]:.0f}). Wanted: 10 times, at no less accuracy; {held}. Over "
            f"{memory['grades']:,} grades the process stays between {low / 1024:.0f} and {high / 1024:.0f} MB.",
        ]
    )


def teds(r: Result) -> str:
    """Processor time a pair of tables by kind, and how far the values are apart."""
    kinds, wanted = r["kinds"], r["wanted"]
    rows = [
        [
            kind,
            f"{found['mean TEDS']:.3f}",
            f"{found['milliseconds']['rlready']:.1f}",
            f"{found['milliseconds'][found['best of apted']]:.0f}",
            f"{found['ratio']:.0f}",
        ]
        for kind, found in kinds.items()
    ]
    least = min(found["ratio"] for found in kinds.values())
    held = "holds" if least >= wanted else "**does not hold**"
    equal = "holds" if r["largest difference"] <= 1e-9 else "**does not hold**"
    compared = r["setting"]["pairs of small tables"] + len(kinds) * r["setting"]["pairs a kind"]
    return "\n\n".join(
        [
            table(["", "TEDS, mean", "rlready, ms", f"apted {r['versions']['apted']}, ms", "ratio"], rows),
            f"**At least {least:.1f} times as fast.** Wanted: {wanted:.0f} times; it {held}. Over {compared:,} pairs "
            f"of tables the values differ by at most {r['largest difference']:.0e}. Wanted: 1e-9; it {equal}.",
        ]
    )


def code_pool(r: Result) -> str:
    """Ratios by language and setting."""
    rows, least = [], float("inf")
    for name, settings in r["languages"].items():
        for label, one in settings.items():
            ms, ratio = one["milliseconds a program"], one["ratio"]
            least = min(least, ratio["median"])
            spread = f"{ratio['median']:.1f} ({ratio['min']:.1f} to {ratio['max']:.1f})"
            rows.append([f"{name}, {label}", f"{ms['pool']:.0f}", f"{ms['fresh']:.0f}", spread])
    held = "holds" if least >= 5 else "**does not hold**"
    return "\n\n".join(
        [
            table(["", "rlready, ms a program", "a fresh process a test, ms", "ratio"], rows),
            f"**At least {least:.1f} times as fast** (medians of {r['rounds']} paired rounds on {r['cores']} cores). "
            f"Wanted: 5 times; it {held}.",
        ]
    )


SECTIONS: dict[str, Callable[[Result], str]] = {
    "vs_trl": vs_trl, "dpo_vs_trl": dpo_vs_trl, "curves_vs_trl": curves_vs_trl, "lag": lag,
    "rollout_engine": rollout_engine, "dream_speed": dream_speed,
    "log_readers": log_readers, "dream_serve": dream_serve,
    "broken_dreams": broken_dreams,
    "math_graders": math_graders,
    "teds": teds,
    "code_pool": code_pool,
}  # fmt: skip


def fill(page: str) -> str:
    """The page with every measured part as the results have it."""
    for name, write in SECTIONS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"benchmarks/README.md has no part between {begin.strip()} and {end}.")
        measured = (HERE / "results" / f"{name}.json").exists()
        page = f"{before}{begin}{write(read(name)) if measured else 'Not measured yet.'}\n{end}{after}"
    return page


def main() -> None:
    """Rewrite the page."""
    path = HERE / "README.md"
    path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
