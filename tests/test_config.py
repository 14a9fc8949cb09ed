"""Configuration: defaults, file, overrides; and what it says when something is wrong."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.config import first_difference, load, parse_override, read_toml, to_dict, to_toml
from rlready.errors import UserError


class Mood(StrEnum):
    CALM = "calm"
    WILD = "wild"


@dataclass(frozen=True)
class Grpo:
    clip_high: float = 0.2
    group_size: int = 8
    average: Literal["token", "sequence"] = "token"
    dual: float | None = None

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ValueError("group_size must be at least 1.")


@dataclass(frozen=True)
class Config:
    steps: int = 10
    name: str = "x"
    loud: bool = False
    out: Path = Path("runs")
    betas: tuple[float, float] = (0.9, 0.95)
    tags: list[str] = field(default_factory=list)
    mix: dict[str, float] = field(default_factory=dict)
    mood: Mood = Mood.CALM
    grpo: Grpo = field(default_factory=Grpo)


def test_sources_win_in_order(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('steps = 20\nname = "file"\n[grpo]\nclip_high = 0.3\ngroup_size = 4\n')
    config = load(Config, file, ["grpo.clip_high=1", "name=hf:SmolLM2"])
    assert config == Config(steps=20, name="hf:SmolLM2", grpo=Grpo(clip_high=1.0, group_size=4))
    assert type(config.grpo.clip_high) is float
    base = Config(steps=7, loud=True)
    assert load(Config, base=base, table={"steps": 8}, overrides=["tags=['a']"]) == Config(8, loud=True, tags=["a"])


@dataclass(frozen=True)
class Bounds:
    low: int = 0
    high: int = 1

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("low must be below high.")


@dataclass(frozen=True)
class Whole:
    pair: Bounds = field(default_factory=Bounds)


def test_overrides_are_taken_together() -> None:
    """Keys of one table do not push each other out, the later of two wins, and fields are checked as a whole."""
    assert load(Config, overrides=["mix.a=1", "mix.b=2", "mix.a=3"]).mix == {"a": 3.0, "b": 2.0}
    assert load(Config, overrides=["mix.a=1", "mix={b=2}"]).mix == {"b": 2.0}
    assert load(Config, overrides=["grpo.group_size=0", "grpo.clip_high=0.5", "grpo.group_size=2"]).grpo.group_size == 2

    assert load(Whole, overrides=["pair.low=5", "pair.high=9"]).pair == Bounds(5, 9)
    with pytest.raises(UserError, match="low must be below high"):
        load(Whole, overrides=["pair.low=5", "pair.high=4"])


def test_values_become_what_the_fields_are() -> None:
    config = load(
        Config,
        overrides=[
            "betas=[0, 1]",
            "out=a/b",
            "mood=wild",
            "mix={a = 1, b = 0.5}",
            "loud=true",
            "grpo.dual=3",
            "grpo.average=sequence",
        ],
    )
    assert config.betas == (0.0, 1.0) and config.out == Path("a/b") and config.mood is Mood.WILD
    assert config.mix == {"a": 1.0, "b": 0.5} and config.loud is True and config.grpo.dual == 3.0
    assert load(Config, overrides=["grpo.dual=none"]).grpo.dual is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stepz=3", 'Unknown key "stepz". Did you mean steps?'),
        ("grpo.clip_hihg=3", 'Unknown key "grpo.clip_hihg". Did you mean grpo.clip_high'),
        ("steps=many", 'steps must be a whole number, but is "many".'),
        ("steps=1.5", "steps must be a whole number, but is 1.5."),
        ("steps=true", "steps must be a whole number, but is true."),
        ("loud=1", "loud must be true or false, but is 1."),
        ("name=3", "name must be text, but is 3."),
        ("grpo.clip_high=high", 'grpo.clip_high must be a number, but is "high".'),
        ("grpo.average=turn", 'grpo.average must be one of token, sequence, but is "turn".'),
        ("mood=odd", 'mood must be one of calm, wild, but is "odd".'),
        ("betas=[1]", "betas must have 2 values, but has 1."),
        ("betas=[1, 'x']", 'betas[1] must be a number, but is "x".'),
        ("mix={a = 'b'}", 'mix.a must be a number, but is "b".'),
        ("tags=a", 'tags must be a list, but is "a".'),
        ("grpo=3", "grpo is a table of settings; set one of them, such as grpo.clip_high=..."),
        ("grpo.group_size=0", "grpo: group_size must be at least 1."),
        ("steps", '"steps" is not an override. Write key=value, such as grpo.clip_high=0.3.'),
        ("=3", '"=3" is not an override.'),
    ],
)
def test_wrong_overrides_are_named(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load(Config, overrides=[override])
    assert str(caught.value).startswith(said)


def test_file_errors_name_the_place(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("steps = 1\n\nname = oops\n")
    with pytest.raises(UserError, match=r"c\.toml, line 3, column 8: Invalid value\."):
        load(Config, file)
    file.write_text('steps = 1\nname = "x')
    with pytest.raises(UserError, match=r"c\.toml, line 2, column 10: "):
        load(Config, file)
    file.write_text("[grpo]\nclip_lo = 1\n")
    with pytest.raises(UserError, match=r'c\.toml: Unknown key "grpo\.clip_lo"\. Did you mean grpo\.clip_high'):
        load(Config, file)
    file.write_bytes(b"name = '\xff'")
    with pytest.raises(UserError, match="is not UTF-8"):
        read_toml(file)
    with pytest.raises(UserError, match="There is no file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(UserError, match="is a folder"):
        read_toml(tmp_path)


def test_resolved_configuration_reads_back() -> None:
    config = load(Config, overrides=["mood=wild", "tags=['a', 'b']", "mix={'odd key' = 2}", "grpo.clip_high=1e-7"])
    text = to_toml(config)
    assert load(Config, table=tomllib.loads(text)) == config
    assert "[grpo]\nclip_high = 1e-07" in text


scalars = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())
tables = st.recursive(
    st.dictionaries(st.text(), st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4),
    lambda inner: st.dictionaries(st.text(), st.one_of(scalars, inner), max_size=3),
    max_leaves=6,
)


@given(tables)
def test_whatever_is_written_reads_back_to_the_same(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table == to_dict(table)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_bits(x: float) -> None:
    assert tomllib.loads(to_toml({"x": x}))["x"].hex() == x.hex()


def test_overrides_and_differences() -> None:
    assert parse_override("a.b = [1, 2]") == (["a", "b"], [1, 2])
    assert parse_override("a=b=c") == (["a"], "b=c")
    assert first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ("a.c", 2, 3)
    assert first_difference({"a": 1}, {"a": 1, "z": 0}) == ("z", None, 0)
    assert first_difference({"a": 1}, {"a": 1}) is None
