"""Files of a run: whole or not there, whatever is cut; states that survive exactly."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.checkpoint import load_state, save_state
from rlready.errors import UserError
from rlready.run_files import JsonlFile, read_jsonl, write_atomic
from tests.small_run import Adder, Crash, make


def test_atomic_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_jsonl_splits_on_newline_only_and_names_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path)
    odd = {"text": "a\u2028b\u0085c\x0bd", "n": np.float32(0.5), "bad": float("nan")}
    file.append(odd, {"text": "next"})
    file.close()
    assert read_jsonl(path) == [{"text": odd["text"], "n": 0.5, "bad": None}, {"text": "next"}]
    path.write_bytes(b'{"a": 1}\n{"a": oops}\n{"a": 2}\n')
    with pytest.raises(UserError, match=r"x\.jsonl, line 2, column 7: Expecting value"):
        read_jsonl(path)


@given(cut=st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_is_read_and_continued(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    file = JsonlFile(path)
    file.append(*({"i": i, "text": "é" * i} for i in range(12)))
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert [r["i"] for r in read_jsonl(path)] == list(range(kept))
    file = JsonlFile(path)
    file.append({"i": 99})
    file.close()
    assert [r["i"] for r in read_jsonl(path)] == [*range(kept), 99]


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(), st.binary(max_size=8)
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(state=states)
@settings(max_examples=60, deadline=None)
def test_state_survives_exactly(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    folder = tmp_path_factory.mktemp("state")
    save_state(folder, "part", state)
    back = load_state(folder, "part")
    assert back == state and type(back) is type(state)


def test_state_with_arrays_tensors_and_generators(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    state = {
        1: torch.arange(3, dtype=torch.bfloat16),
        "u64": np.array([2**63, 1], dtype=np.uint64),
        "empty": np.zeros((0, 2), dtype=np.float32),
        "flag": np.bool_(True),
        "rng": generator.bit_generator.state,
    }
    save_state(tmp_path, "part", state)
    back = load_state(tmp_path, "part")
    assert torch.equal(back[1], state[1]) and back[1].dtype == torch.bfloat16
    assert back["u64"].tolist() == [2**63, 1] and back["empty"].shape == (0, 2) and back["flag"] is True
    other = np.random.default_rng(0)
    other.bit_generator.state = back["rng"]
    assert other.random() == generator.random()


def test_state_refuses_objects_when_saving_and_when_loading(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"part\.optimizer\.hook is a object"):
        save_state(tmp_path, "part", {"optimizer": {"hook": object()}})
    torch.save({"run": Crash("boo")}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="not plain data, so it is not loaded"):
        load_state(tmp_path, "evil")


def test_a_part_writes_its_folder(tmp_path: Path) -> None:
    class Saves(Adder):
        def save_pretrained(self, path: Path) -> None:
            (path / "config.json").write_text('{"model_type": "tiny"}')

    with make(tmp_path) as run:
        folder = run.save(1, {"learner": Adder()}, model=Saves())
    assert json.loads((folder / "model" / "config.json").read_text()) == {"model_type": "tiny"}
    assert "model/config.json" in json.loads((folder / "record.json").read_text())["files"]
