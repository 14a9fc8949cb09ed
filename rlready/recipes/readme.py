"""Writes the parts of README.md that are measured or listed: `python -m rlready.recipes.readme`.

A test fails where README.md is older than the papers or the results it shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlready.claims import judged, read_results
from rlready.recipes.registry import Paper, paper, papers

README = Path(__file__).parents[2] / "README.md"
_ARMS = ("cloning", "filtered cloning", "real GRPO, small budget", "real GRPO", "dream GRPO", "sim-to-real")


def papers_table() -> str:
    """The table of papers, folded, with how many run."""
    running = sum(p.status == "runs" for p in papers())
    lines = [
        "<details>",
        f"<summary>All {len(papers())} papers; {running} with a recipe that runs, the others planned</summary>",
        "",
        "| | paper | what it gives | status |",
        "|---:|---|---|---|",
    ]
    lines += [
        f"| {p.number} | [{p.name}](https://arxiv.org/abs/{p.arxiv}) ({p.year}) | {p.summary} | {p.status} |"
        for p in papers()
    ]
    return "\n".join([*lines, "", "</details>"])


def run_section() -> str:
    """The picture and the table of the flagship's recorded run; empty where none was recorded."""
    flagship = paper("dreamgym")
    found = [r for r in read_results(flagship.folder) if r["preset"] == "small"]
    if not found:
        return ""
    result = found[0]
    folder = flagship.folder.relative_to(README.parent) / "results"
    n = len(result["seeds"])
    return "\n".join(
        [
            f"![Success of each agent on held-out real tasks]({folder}/small-agents.png)",
            "",
            f"Mean over {n} seeds (± standard deviation), each {_range(result, 'minutes', '{:.0f}')} minutes on a "
            f"shared machine ({result['machine']}); the picture is seed {result['seeds'][0]['seed']}.",
            "",
            *_table(result),
            "",
            "Greedy; sampled at a temperature tuned on dev tasks; sampled at 1. *Held-out pairs*: tasks with a pair of "
            "faults that no training task contains. [How to read it](docs/dreamgym.md). Claims are means over seeds, "
            "in shares: 0.1 is 10 points.",
            "",
            *_claims(flagship, result),
        ]
    )


def _table(result: dict[str, Any]) -> list[str]:
    lines = [
        "| agent | held-out fault sets: greedy | tuned T | T=1 | held-out pairs: greedy | real RL transitions |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for arm in _ARMS:
        cells = [_mean(result, f"test/{arm}/{mode}") for mode in ("greedy", "tuned", "sampled")]
        cells.append(_mean(result, f"hard/{arm}/greedy"))
        lines.append(f"| {arm} | {' | '.join(cells)} | {result['mean'][f'real/{arm}']:,.0f} |")
    return lines


def _claims(p: Paper, result: dict[str, Any]) -> list[str]:
    lines = ["| claim | wanted | measured | verdict |", "|---|---:|---:|---|"]
    for c in judged(p.claims, [result]):
        measured = "-" if c["measured"] is None else f"{c['measured']:.3g}"
        spread = "" if c["spread"] is None else f" ± {c['spread']:.2g}"
        lines.append(f"| {c['statement']} | {c['op']} {c['threshold']:g} | {measured}{spread} | {c['verdict']} |")
    return lines


def _mean(result: dict[str, Any], name: str) -> str:
    spread = result["spread"].get(name)
    text = f"{100 * result['mean'][name]:.1f}%"
    return text if spread is None else f"{text} ± {100 * spread:.1f}"


def _range(result: dict[str, Any], name: str, form: str) -> str:
    values = [s[name] for s in result["seeds"]]
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def render(text: str) -> str:
    """README.md with its generated parts made anew.

    Args:
        text: the present text, with the marks `<!-- name:begin -->` and `<!-- name:end -->`.
    """
    for name, body in (("run", run_section()), ("papers", papers_table())):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{body}\n{end}{after}"
    return text


if __name__ == "__main__":
    README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")
