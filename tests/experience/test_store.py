"""The store keeps every acknowledged record through kill -9 at any point, and refuses what it cannot keep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import ExperienceStore


def episode(n: int, source: str = "offline", text: str = "ok") -> LoggedEpisode:
    return LoggedEpisode(
        f"task{n % 7}", "mend it", ("look", f"fix{n}", "done"), (text, "fine", ""), n % 2 == 0, True, source, n, n
    )


def ids(store: ExperienceStore) -> list[str]:
    return [e.id for e in store]


@pytest.mark.parametrize("disk", [True, False])
def test_round_trip_counts_steps_and_dedupe(tmp_path: Path, disk: bool) -> None:
    store = ExperienceStore(tmp_path / "s" if disk else None)
    a = store.append(episode(0), {"card": ["air"], "traces": [["air"], [], []]})
    b = store.append(episode(1, "synthetic"))
    assert store.append(episode(0)) is None and len(store) == 2 and a in store
    if disk:
        store.close()
        store = ExperienceStore(tmp_path / "s", readonly=True)
    assert ids(store) == [a, b]
    first, second = store
    assert first.episode == episode(0) and first.notes["card"] == ["air"]
    assert second.episode.source == "synthetic"
    assert store.counts() == {
        "offline": {"episodes": 1, "transitions": 3, "successes": 1},
        "synthetic": {"episodes": 1, "transitions": 3, "successes": 0},
    }
    steps = list(store.steps(source="offline"))
    assert [(s.step, s.action, s.reply, s.reward, s.done) for s in steps] == [
        (0, "look", "ok", 0.0, False),
        (1, "fix0", "fine", 0.0, False),
        (2, "done", "", 1.0, True),
    ]
    assert steps[2].history == (("look", "ok"), ("fix0", "fine"))
    assert all(s.reward == 0 for s in store.steps(source="synthetic"))


def test_line_separators_inside_strings_do_not_cut_records(tmp_path: Path) -> None:
    odd = "a\u2028b\u0085c\nd\r\ne"
    with ExperienceStore(tmp_path) as store:
        store.append(episode(0, text=odd), {"note": odd})
        store.append(episode(1))
    with ExperienceStore(tmp_path) as store:
        assert len(store) == 2
        assert next(iter(store)).episode.replies[0] == odd
    lines = (tmp_path / "000001.jsonl").read_bytes().split(b"\n")
    assert all(set(json.loads(line)) == {"crc", "record"} for line in lines[:-1])


def test_cut_at_every_byte_keeps_all_whole_records(tmp_path: Path) -> None:
    with ExperienceStore(tmp_path / "whole") as store:
        names = [store.append(episode(n)) for n in range(3)]
    data = (tmp_path / "whole" / "000001.jsonl").read_bytes()
    manifest = (tmp_path / "whole" / "MANIFEST.json").read_text()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        (folder / "MANIFEST.json").write_text(manifest)
        (folder / "000001.jsonl").write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        with ExperienceStore(folder, readonly=True) as reader:
            assert ids(reader) == names[:whole]
        if cut % 13 == 0:
            with ExperienceStore(folder) as writer:
                new = writer.append(episode(99))
            with ExperienceStore(folder) as again:
                assert ids(again) == [*names[:whole], new]


def test_damage_in_the_middle_names_file_and_line(tmp_path: Path) -> None:
    with ExperienceStore(tmp_path) as store:
        for n in range(3):
            store.append(episode(n))
    path = tmp_path / "000001.jsonl"
    data = bytearray(path.read_bytes())
    data[data.index(b"\n") + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"000001\.jsonl, line 2: .*damaged"):
        ExperienceStore(tmp_path)


def test_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    with ExperienceStore(tmp_path) as store:
        store.append(episode(0))
        with pytest.raises(UserError, match="Another process is writing"):
            ExperienceStore(tmp_path)
        with ExperienceStore(tmp_path, readonly=True) as reader:
            assert len(reader) == 1
            with pytest.raises(UserError, match="read-only"):
                reader.append(episode(1))
    with pytest.raises(UserError, match="is closed"):
        store.append(episode(2))
    with ExperienceStore(tmp_path) as again:
        assert len(again) == 1


def test_a_reader_survives_a_compaction_in_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ExperienceStore(tmp_path, segment_bytes=1000)
    names = [writer.append(episode(n, "synthetic")) for n in range(20)]
    read = Path.read_bytes
    swapped: list[Path] = []

    def slow(path: Path) -> bytes:
        if path.suffix == ".jsonl" and not swapped:
            swapped.append(path)
            writer.evict(3)  # replaces every segment
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", slow)
    with ExperienceStore(tmp_path, readonly=True) as reader:
        assert ids(reader) == names[-3:] and swapped
    monkeypatch.undo()
    writer.close()
    next(tmp_path.glob("*.jsonl")).unlink()
    with pytest.raises(UserError, match="is missing, though its manifest lists it"):
        ExperienceStore(tmp_path)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no experience store"):
        ExperienceStore(tmp_path / "none", readonly=True)
    (tmp_path / "MANIFEST.json").write_text('{"format": 9, "segments": []}')
    with pytest.raises(UserError, match="format 9"):
        ExperienceStore(tmp_path)
    (tmp_path / "MANIFEST.json").write_text("[")
    with pytest.raises(UserError, match="not a manifest"):
        ExperienceStore(tmp_path)
    with pytest.raises(UserError, match="JSON-ready"), ExperienceStore(tmp_path / "other") as store:
        store.append(episode(0), {"x": float("nan")})


def test_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ExperienceStore(tmp_path)
    kept = store.append(episode(0))
    write, calls = os.write, [0]

    def full(fd: int, data: memoryview) -> int:
        calls[0] += 1
        if calls[0] == 1:
            return write(fd, data[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="the disk is full"):
        store.append(episode(1))
    monkeypatch.undo()
    after = store.append(episode(2))
    store.close()
    with ExperienceStore(tmp_path) as again:
        assert ids(again) == [kept, after]


@given(st.lists(st.tuples(st.sampled_from(["offline", "synthetic", "evict"]), st.integers(0, 30)), max_size=40))
@settings(max_examples=40, deadline=None)
def test_disk_and_memory_agree(tmp_path_factory: pytest.TempPathFactory, ops: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("store")
    memory = ExperienceStore()
    disk = ExperienceStore(folder, segment_bytes=1500)
    for op, n in ops:
        if op == "evict":
            assert memory.evict(n % 4) == disk.evict(n % 4)
        else:
            assert memory.append(episode(n, op)) == disk.append(episode(n, op))
    assert ids(memory) == ids(disk)
    assert memory.counts().get("synthetic", {}).get("episodes", 0) == sum(
        e.episode.source == "synthetic" for e in memory
    )
    disk.close()
    with ExperienceStore(folder) as again:
        assert ids(again) == ids(memory)
        assert [e.episode for e in again] == [e.episode for e in memory]


def test_eviction_takes_the_oldest_synthetic_and_compaction_shrinks(tmp_path: Path) -> None:
    with ExperienceStore(tmp_path, segment_bytes=2000) as store:
        offline = [store.append(episode(n)) for n in range(3)]
        made = [store.append(episode(10 + n, "synthetic")) for n in range(20)]
        assert store.evict(2) == made[:18]
        assert ids(store) == [*offline, *made[18:]]
        assert store.dead == 0 and len(list(tmp_path.glob("*.jsonl"))) == 1
        last = store.append(episode(77))
    with ExperienceStore(tmp_path) as again:
        assert ids(again) == [*offline, *made[18:], last]


WRITER = textwrap.dedent(
    """
    import os, signal, sys
    from rlready.experience.episode import LoggedEpisode
    from rlready.experience.store import ExperienceStore

    folder, where, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
    size = int(sys.argv[4])
    calls = 0

    def die_in(module, name, before):
        real = getattr(module, name)
        def wrapped(*a, **k):
            global calls
            calls += 1
            if calls != nth:
                return real(*a, **k)
            if before == "half":
                real(a[0], memoryview(a[1])[: len(a[1]) // 2])
            elif not before:
                real(*a, **k)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(module, name, wrapped)

    store = ExperienceStore(folder, segment_bytes=4000, sync=False)
    print("open", flush=True)
    point = {
        "write-before": ("write", True), "write-half": ("write", "half"), "write-after": ("write", False),
        "replace-before": ("replace", True), "replace-after": ("replace", False), "unlink": ("unlink", True),
        "fsync": ("fsync", True),
    }.get(where)
    if point:
        import pathlib
        if point[0] == "unlink":
            die_in(pathlib.os, "unlink", True)
        else:
            die_in(os, *point)
    for n in range(100000):
        source = "synthetic" if n % 3 else "offline"
        e = LoggedEpisode("t", "mend", ("look", "done"), ("x" * size, ""), True, True, source, 0, n)
        id = store.append(e)
        print("+" + id, flush=True)
        if n % 10 == 9:
            print("?", flush=True)
            print("-" + ",".join(store.evict(3)), flush=True)
    """
)


def survivors(folder: Path, out: str) -> None:
    """What was acknowledged is there; of the rest, at most the one operation in flight."""
    lines = [line for line in out.splitlines() if line]
    acknowledged: list[str] = []
    evicting = False
    for line in lines[1:]:
        if line[0] == "+":
            acknowledged.append(line[1:])
        elif line[0] == "?":
            evicting = True
        elif line[0] == "-":
            evicting = False
            gone = set(line[1:].split(","))
            acknowledged = [i for i in acknowledged if i not in gone]
    with ExperienceStore(folder) as store:
        found = ids(store)
        if evicting:
            synthetic = [e.id for e in store if e.episode.source == "synthetic"]
            if found != acknowledged:  # the tombstone was written: all but the last three dreams are gone
                assert synthetic == [i for i in acknowledged if i in set(synthetic)] and len(synthetic) == 3
                assert set(found) < set(acknowledged)
        else:
            assert found[: len(acknowledged)] == acknowledged and len(found) <= len(acknowledged) + 1
        new = store.append(episode(12345))
    with ExperienceStore(folder) as again:
        assert ids(again) == [*found, new]
        assert not (
            {p.name for p in folder.glob("*.jsonl")}
            - set(json.loads((folder / "MANIFEST.json").read_text())["segments"])
        )


@pytest.mark.parametrize(
    ("where", "nth"),
    [
        ("write-before", 7), ("write-half", 1), ("write-half", 12), ("write-half", 23), ("write-after", 15),
        ("replace-before", 1), ("replace-after", 1), ("replace-before", 3),
        ("unlink", 1), ("unlink", 2), ("fsync", 1), ("fsync", 4),
    ],
)  # fmt: skip
def test_sigkill_at_a_chosen_point(tmp_path: Path, where: str, nth: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path / "s"), where, str(nth), "300"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    survivors(tmp_path / "s", done.stdout)


@pytest.mark.parametrize("delay", [0.003, 0.02, 0.051, 0.11])
def test_sigkill_from_outside_at_any_moment(tmp_path: Path, delay: float) -> None:
    """Long records, so that the kill often lands inside a write."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s"), "never", "0", "400000"], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "open\n"
    time.sleep(delay)
    writer.kill()
    out = writer.stdout.read()
    writer.wait()
    writer.stdout.close()
    survivors(tmp_path / "s", "open\n" + out)
