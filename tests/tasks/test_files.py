"""Task sets from files: what is read, and what each bad file is told."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready import Task, TaskSet, Trajectory, rewards
from rlready.errors import UserError
from rlready.tasks.files import read_jsonl, to_messages


def write(path: Path, *records: Any) -> Path:
    path.write_bytes(b"\n".join(r if isinstance(r, bytes) else json.dumps(r).encode() for r in records) + b"\n")
    return path


def test_jsonl_columns_prompt_and_ids(tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        {"question": "2+2?", "answer": "4", "source": "a"},
        b"",
        {"question": "3+3?", "answer": "6", "source": "b"},
    )
    tasks = TaskSet.from_jsonl(file, prompt="question", score=rewards.math("answer"), meta=["source"])
    assert [t.prompt[0].text for t in tasks] == ["2+2?", "3+3?"]
    assert [dict(t.data) for t in tasks] == [{"answer": "4"}, {"answer": "6"}]
    assert [t.meta["source"] for t in tasks] == ["a", "b"]
    assert tasks.name == "q"
    again = TaskSet.from_jsonl(file, prompt="question", meta=["source"], system="Be brief.")
    assert [m.role for m in again[0].prompt] == ["system", "user"]
    assert again[0].id != tasks[0].id  # another prompt is another task


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_only_newlines_cut_records(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "q.jsonl"
    text = f"one{separator}two"
    raw = json.dumps({"prompt": text, "n": 1}, ensure_ascii=ord(separator) < 32)
    file.write_bytes((raw + "\r\n" + raw.replace('"n": 1', '"n": 2') + "\n").encode())
    tasks = TaskSet.from_jsonl(file)
    assert [t.prompt[0].text for t in tasks] == [text, text]


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_any_text_survives(texts: list[str]) -> None:
    import tempfile

    texts = [t.encode("utf-8", "replace").decode() for t in texts]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "q.jsonl"
        file.write_bytes(b"".join(json.dumps({"t": t}, ensure_ascii=False).encode() + b"\n" for t in texts))
        assert [record["t"] for _, record in read_jsonl(file)] == texts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "x", }', r"line 2, column 17: not valid JSON"),
        (b'["x"]', r"line 2, column 1: a record must be a JSON object, but this is a list"),
        (b'{"prompt": "x\xff"}', r"line 2, column 14: byte 0xff is not UTF-8"),
        (b'{"prompt": "x", "y": NaN}', r"line 2, column 22: NaN is not JSON"),
        (b"[" * 200_000, r"line 2"),
    ],
)
def test_malformed_lines_are_placed(tmp_path: Path, line: bytes, words: str) -> None:
    file = write(tmp_path / "bad.jsonl", {"prompt": "a"}, line)
    with pytest.raises(UserError, match=words) as error:
        TaskSet.from_jsonl(file)
    assert "bad.jsonl" in str(error.value)


def test_missing_keys_are_counted_and_placed(tmp_path: Path) -> None:
    records: list[Any] = [{"question": f"{i}?", "answer": str(i)} for i in range(10)]
    del records[3]["answer"]
    records[7]["answer"] = None
    records[8]["answer"] = "  "
    file = write(tmp_path / "q.jsonl", *records)
    with pytest.raises(UserError) as error:
        TaskSet.from_jsonl(file, prompt="question", score=rewards.math("answer"))
    assert str(error.value) == (
        'q.jsonl: 3 of 10 records have no "answer" (first: line 4). '
        "Fix them, or pass skip_incomplete=True to leave them out."
    )
    kept = TaskSet.from_jsonl(file, prompt="question", score=rewards.math("answer"), skip_incomplete=True)
    assert len(kept) == 7
    assert len(TaskSet.from_jsonl(file, prompt="question")) == 10  # without a reward nothing asks for it


def test_wrong_column_names_offer_the_right_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", {"question": "2+2?", "gold": "4"})
    with pytest.raises(UserError, match=r'has no column "prompt". Its columns: gold, question'):
        TaskSet.from_jsonl(file)
    with pytest.raises(UserError, match=r'has no column "answer"'):
        TaskSet.from_jsonl(file, prompt="question", score=rewards.math("answer"))

    def judge(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        return [1.0]

    with pytest.raises(UserError, match=r'has no column "answer"'):
        TaskSet.from_jsonl(file, prompt="question", score=judge)
    with pytest.raises(UserError, match=r'Unknown argument "skip_incomplet". Did you mean skip_incomplete'):
        TaskSet.from_jsonl(file, prompt="question", skip_incomplet=True)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot read .*nowhere"):
        TaskSet.from_jsonl(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    with pytest.raises(UserError, match="holds no records"):
        TaskSet.from_jsonl(tmp_path / "empty.jsonl")


def test_repeated_records(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", {"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"})
    with pytest.raises(UserError, match=r"1 of 3 records repeat an earlier one .first: line 3 repeats line 1"):
        TaskSet.from_jsonl(file)
    assert len(TaskSet.from_jsonl(file, drop_duplicates=True)) == 2
    distinct = write(tmp_path / "r.jsonl", {"prompt": "a", "key": 1}, {"prompt": "a", "key": 2})
    assert [t.id for t in TaskSet.from_jsonl(distinct, id="key")] == ["1", "2"]


def test_chat_prompts(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image", "image": "a.png"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ]
    task = TaskSet.from_jsonl(write(tmp_path / "c.jsonl", {"prompt": chat}))[0]
    assert [m.role for m in task.prompt] == ["system", "user", "assistant", "tool"]
    assert task.prompt[1].text == "See" and task.prompt[2].tool_calls[0].name == "f"
    assert task.meta["format"] == "chat"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (7, "must be a text or a list of chat messages, but it is 7"),
        ([], "must be a text or a list"),
        ([{"content": "x"}], "message 0 of the prompt must be an object"),
        (
            [{"role": "user", "content": "a"}, {"role": "bot", "content": "x"}],
            "message 1 of the prompt has the role 'bot'",
        ),
        ([{"role": "user", "content": 4}], "has content 4"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "neither text nor image"),
    ],
)
def test_bad_prompts(tmp_path: Path, prompt: Any, words: str) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "fine"}, {"prompt": prompt})
    with pytest.raises(UserError, match=words) as error:
        TaskSet.from_jsonl(file)
    assert "p.jsonl, line 2" in str(error.value)


def test_records_and_prompt_functions() -> None:
    tasks = TaskSet.from_records(
        [{"a": 2, "b": 3, "day": datetime.date(2024, 5, 1)}], prompt=lambda r: f"{r['a']}+{r['b']}?"
    )
    assert tasks[0].prompt[0].text == "2+3?"
    assert tasks[0].data == {"a": 2, "b": 3, "day": "2024-05-01"}
    with pytest.raises(UserError, match=r'record 1: the column "x" holds a object'):
        TaskSet.from_records([{"prompt": "a", "x": object()}])


def test_parquet_and_hf_give_the_same_tasks(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [{"prompt": f"{i}?", "answer": i, "tags": ["x", "y"]} for i in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    tasks = TaskSet.from_parquet(tmp_path / "q.parquet")
    assert len(tasks) == 3000 and tasks[2999].data == {"answer": 2999, "tags": ["x", "y"]}
    datasets = pytest.importorskip("datasets")
    assert [t.id for t in TaskSet.from_hf(datasets.Dataset.from_list(rows))] == [t.id for t in tasks]
    with pytest.raises(UserError, match=r'Unknown split "tests". Did you mean test'):
        TaskSet.from_hf(datasets.DatasetDict(test=datasets.Dataset.from_list(rows)), split="tests")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"Cannot read .*broken.parquet as Parquet"):
        TaskSet.from_parquet(tmp_path / "broken.parquet")


def test_hf_by_name_loads_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = write(tmp_path / "q.jsonl", {"prompt": "a", "answer": "1"})
    tasks = TaskSet.from_hf("json", load={"data_files": str(file), "cache_dir": str(tmp_path / "cache")})
    assert tasks[0].prompt[0].text == "a"
    with pytest.raises(UserError, match='Cannot load the dataset "json"'):
        TaskSet.from_hf("json", load={"data_files": str(tmp_path / "none.jsonl")})


def test_generator_seeds_share_nothing() -> None:
    def add(rng: Any, index: int) -> dict[str, Any]:
        a, b = rng.randrange(10**6), rng.randrange(10**6)
        return {"prompt": f"{a}+{b}?", "answer": a + b}

    one, two = (TaskSet.from_generator(add, 1000, seed) for seed in (42, 43))
    assert not {t.id for t in one} & {t.id for t in two}
    assert [t.id for t in TaskSet.from_generator(add, 1000, 42)] == [t.id for t in one]
    assert [t.id for t in TaskSet.from_generator(add, 10, 42)] == [t.id for t in one.head(10)]
    assert one.name == "add"


def test_generator_in_a_small_space() -> None:
    def digit(rng: Any, index: int) -> Task:
        return Task.of(str(rng.randrange(10)))

    assert len(TaskSet.from_generator(digit, 10, 0)) == 10
    with pytest.raises(UserError, match="gave 10 distinct tasks and then none"):
        TaskSet.from_generator(digit, 11, 0)
    with pytest.raises(UserError, match="is the same task as item"):
        TaskSet.from_generator(digit, 10, 0, duplicates="error")
    train = TaskSet.from_generator(digit, 6, 1)
    test = TaskSet.from_generator(digit, 4, 2, exclude=train)
    assert not {t.id for t in train} & {t.id for t in test}
    with pytest.raises(UserError, match="must return a Task or a mapping"):
        TaskSet.from_generator(lambda rng, index: "text", 1, 0)  # type: ignore[arg-type,return-value]


def test_mix_draws_shares_and_scores_by_origin() -> None:
    import asyncio

    from rlready.tasks import concat, mix

    a = TaskSet([Task.of(f"a{i}") for i in range(50)], lambda task, trajectory: 1.0, name="a")
    b = TaskSet([Task.of(f"b{i}") for i in range(50)], lambda task, trajectory: 0.0, name="b")
    mixed = mix({"a": (a, 3), "b": (b, 1)}, 21, seed=5)
    counts = [sum(t.prompt[0].text.startswith(x) for t in mixed) for x in "ab"]
    assert counts == [16, 5]  # 15.75 and 5.25
    for task in mixed:
        value = asyncio.run(mixed.score(task, Trajectory(task))).value
        assert value == (1.0 if task.prompt[0].text.startswith("a") else 0.0)
    assert [t.id for t in mix({"a": (a, 3), "b": (b, 1)}, 21, seed=5)] == [t.id for t in mixed]
    with pytest.raises(UserError, match='needs 75 tasks of "a", which has 50'):
        mix({"a": (a, 3), "b": (b, 1)}, 100, seed=5)
    with pytest.raises(UserError, match="is in both"):
        concat([a, a])


def test_to_messages_keeps_messages() -> None:
    messages = Task.of("x").prompt
    assert to_messages(messages) == messages
