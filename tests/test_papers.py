"""The papers' files, their search, and the claims and results that belong to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlready import claims as claims_module
from rlready.claims import Claim, judged, read_results, write_results
from rlready.errors import UserError
from rlready.recipes import registry
from rlready.recipes.registry import Paper, paper, papers, search

SLUGS = [
    "dreamgym", "vision-g1", "bridge", "pearl", "ar3d-r1", "table2latex", "reprohrl", "bmgq", "agnostics", "vineppo",
    "earl", "fd-rl", "steering-vectors", "controlled-literacy", "rag-rl", "read-to-play", "visualsphinx", "spring",
    "memagent", "delethink", "magistral", "sfr-deepresearch", "reasoning-distraction", "biomed-r1", "office-language",
    "irl-alignment", "at2po", "ibc", "zo-ranksgd", "hib", "perfdojo", "reasyn", "deep-summarization",
]  # fmt: skip

CLAIM = Claim("gain", "Dream beats cloning by 10 points.", "gain", 0.1, paper="twice as good")


def test_all_33_in_order() -> None:
    assert [p.number for p in papers()] == list(range(1, 34))
    assert [p.slug for p in papers()] == SLUGS
    assert len({p.arxiv for p in papers()}) == len({p.title for p in papers()}) == 33


@pytest.mark.parametrize("p", papers(), ids=lambda p: p.slug)
def test_each_paper_is_well_formed(p: Paper) -> None:
    month = p.arxiv.split(".")[0]
    assert p.year == 2000 + int(month[:2]) and 1 <= int(month[2:]) <= 12 and len(p.arxiv) == 10
    assert p.summary.endswith(".") and 40 < len(p.summary) <= 120 and p.summary[0].isupper()
    assert p.folder.name.isidentifier() and (p.status == "runs") == ("small" in p.presets)
    assert all({"name", "value", "source"} == set(h) and h["source"] for h in p.hyperparameters)
    assert len({c.id for c in p.claims}) == len(p.claims)


def test_dreamgym_gives_the_source_of_every_number() -> None:
    p = paper("dreamgym")
    assert len(p.hyperparameters) >= 15
    assert all(h["source"].startswith(("paper", "ours", "recalled")) for h in p.hyperparameters)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("puzzles", "visualsphinx"), ("a table as an image", "table2latex"), ("2510.06557", "delethink"),
        ("robot resets", "ibc"), ("CREDIT of every step", "vineppo"), ("simulator from logs", "dreamgym"),
        ("molecule", "reasyn"), ("steering vectors", "steering-vectors"), ("summarising", "deep-summarization"),
    ],
)  # fmt: skip
def test_search_finds_by_words(query: str, first: str) -> None:
    assert search(query)[0].slug == first


def test_search_finds_nothing_for_nonsense() -> None:
    assert search("xyzzy") == [] and search("!?") == []


def test_a_paper_by_slug_number_or_arxiv_id() -> None:
    assert paper("7").slug == paper("2308.08737").slug == paper("reprohrl").slug == "reprohrl"
    with pytest.raises(UserError, match=r'Unknown recipe "dreamgim"[.] Did you mean dreamgym'):
        paper("dreamgim")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(registry, "FOLDER", tmp_path / "rlready" / "recipes")
    papers.cache_clear()
    yield tmp_path / "rlready" / "recipes"
    papers.cache_clear()


def write_paper(house: Path, text: str = "", slug: str = "toy-one") -> Path:
    folder = house / slug.replace("-", "_")
    folder.mkdir(parents=True)
    head = f'number = 1\nslug = "{slug}"\nname = "Toy"\ntitle = "Toys"\nyear = 2020\narxiv = "2001.00001"\n'
    (folder / "paper.toml").write_text(head + 'summary = "A toy."\n' + text)
    return folder


def test_status_comes_from_the_code(house: Path) -> None:
    folder = write_paper(house)
    assert paper("toy-one").status == "planned"
    (folder / "recipe.py").write_text("import nothing_of_the_kind\n\ndef smoke(run): ...\n")
    assert paper("toy-one").status == "planned" and paper("toy-one").presets == ("smoke",)
    (folder / "recipe.py").write_text("import nothing_of_the_kind\n\ndef small(run): ...\n")
    assert paper("toy-one").status == "runs"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yeer = 3\n", 'paper.toml: Unknown key "yeer". Did you mean year?'),
        ('[[claims]]\nid = "a"\nstatement = "b"\nmetric = "c"\n', 'claim a: "threshold" is missing.'),
        ('[[claims]]\nid = "a"\nstatment = "b"\n', 'claim a: Unknown key "statment". Did you mean statement?'),
        ('[[claims]]\nid = "a"\nthreshold = "b"\n', "\"threshold\" must be a number, but is 'b'."),
        ('[[claims]]\nid="a"\nstatement="b"\nmetric="c"\nthreshold=1\nop="="\n', '"op" must be one of >=, >, <=, <.'),
        ("oops\n", "line 8, column 5"),
    ],
)
def test_a_wrong_paper_file_is_named(house: Path, text: str, said: str) -> None:
    write_paper(house, text)
    with pytest.raises(UserError) as caught:
        papers()
    assert said in str(caught.value) and "toy_one/paper.toml" in str(caught.value)


# -- claims --


def test_judge_by_hand() -> None:
    seeds = [{"gain": 0.1}, {"gain": 0.2}, {"gain": 0.3}]
    row = CLAIM.judge(seeds)
    assert row["measured"] == pytest.approx(0.2) and row["spread"] == pytest.approx(0.1) and row["verdict"] == "holds"
    assert CLAIM.judge([{"gain": 0.05}])["verdict"] == "fails" and CLAIM.judge([{"gain": 0.05}])["spread"] is None
    assert CLAIM.judge([{"gain": 0.1}])["verdict"] == "holds"
    assert Claim("x", "y", "gain", 0.1, op="<").judge([{"gain": 0.1}])["verdict"] == "fails"


@pytest.mark.parametrize("seeds", [[], [{"other": 1.0}], [{"gain": 0.9}, {}], [{"gain": 0.9}, {"gain": float("nan")}]])
def test_what_was_not_measured_on_every_seed_is_not_measured(seeds: list[dict[str, float]]) -> None:
    row = CLAIM.judge(seeds)
    assert row["verdict"] == "not measured" and row["measured"] is None


def write(folder: Path, preset: str, *gains: float, claim: Claim = CLAIM) -> dict[str, Any]:
    seeds = [{"seed": i, "gain": g} for i, g in enumerate(gains)]
    path = folder / "results" / f"{preset}.json"
    return write_results(path, recipe="toy", preset=preset, seeds=seeds, claims=[claim], duration_s=12.34)


def test_results_are_written_read_and_ranked(tmp_path: Path) -> None:
    assert judged([CLAIM], read_results(tmp_path))[0]["verdict"] == "not measured"
    write(tmp_path, "smoke", 0.9)
    written = write(tmp_path, "small", 0.0, 0.1)
    (result, _) = (r for r in read_results(tmp_path))
    assert json.loads(json.dumps(written)) == result and result["preset"] == "small"
    assert result["mean"] == {"gain": 0.05} and result["spread"]["gain"] == pytest.approx(0.0707, abs=1e-4)
    for key in ("duration_s", "versions", "commit", "when", "machine"):
        assert result[key] or key == "commit"
    (row,) = judged([CLAIM], read_results(tmp_path))
    assert (row["verdict"], row["preset"], row["seeds"]) == ("fails", "small", 2), "the larger preset decides"
    assert row["measured"] == 0.05 and row["when"] == result["when"]


def test_an_edited_claim_is_not_measured_any_more(tmp_path: Path) -> None:
    write(tmp_path, "small", 0.2)
    softer = Claim(CLAIM.id, CLAIM.statement, CLAIM.metric, 0.05, paper="another figure, same claim")
    assert judged([CLAIM], read_results(tmp_path))[0]["verdict"] == "holds"
    assert judged([softer], read_results(tmp_path))[0]["verdict"] == "not measured"


def test_a_damaged_results_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "small", 0.2)
    path = tmp_path / "results" / "small.json"
    path.write_text('{"recipe": "toy",\n oops}')
    with pytest.raises(UserError, match=r"small\.json, line 2, column 2"):
        read_results(tmp_path)
    path.write_text('{"recipe": "toy"}')
    with pytest.raises(UserError, match=r"small\.json lacks preset, seeds, claims, when"):
        read_results(tmp_path)


def test_commit_outside_of_a_checkout_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "__file__", str(tmp_path / "claims.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert claims_module.source_commit() == ""
