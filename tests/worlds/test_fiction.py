"""Fictional worlds: drawn rules, seeded tables, the verifier, scripted players, logs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.aio import run_sync
from rlready.envs.base import Step
from rlready.envs.check import check_env
from rlready.errors import EnvError, UserError
from rlready.toolcalls import parse_calls
from rlready.types import Task
from rlready.worlds.fiction import CLOSING, MIXED, FictionEnv, FictionWorld, play_logs, write_logs
from rlready.worlds.fiction.__main__ import main
from rlready.worlds.fiction.desk import WORLD, Desk, dev_tasks, tasks, test_tasks
from rlready.worlds.fiction.rules import NOTHING, Fact, draw_rules
from rlready.worlds.fiction.setting import call

SHOP = FictionWorld(3, "shop", sizes={"train": 60, "dev": 10, "test": 20})


def play(env: FictionEnv, task: Task, *actions: str, seed: int = 0) -> list[Step]:
    async def go() -> list[Step]:
        await env.reset(task, seed)
        return [await env.step(action) for action in actions]

    return run_sync(go())


def replies(steps: list[Step]) -> list[str]:
    return [step.observation.messages[-1].text for step in steps]


def find(gold: str, kind: str | None = None) -> Task:
    return next(t for t in tasks if t.meta["gold"] == gold and kind in (None, t.meta["kind"]))


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_drawn_rules_decide_every_case_once_and_none_is_right_too_often(seed: int) -> None:
    rules = FictionWorld(seed, sizes={"train": 1}).setting.rules
    for kind in rules.kinds:
        shares = rules.chances(kind)
        assert sum(shares.values()) == pytest.approx(1) and max(shares.values()) <= 0.34 and NOTHING in shares
        assert set(shares) == set(rules.possible(kind)) and len(shares) >= 4
        for status in ("placed", "shipped", "delivered"):
            for stock in ("some", "none"):
                facts = {"status": status, "stock": stock}
                assert sum(rule.fits(kind, facts) for rule in rules.rules) == 1
                assert rules.resolution(kind, facts) != "replace" or stock == "some"


def test_rules_that_cannot_be_drawn_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r'no rules for "k".*Allow more'):
        draw_rules(0, ["k"], [Fact("status", {"a": 1.0}, "a")], {"a": ("x", NOTHING)})


def test_the_right_resolution_by_hand() -> None:
    """Tables read off by hand for one ticket: status and stock choose the rule, the rule names the write."""
    task = find("replace")
    tables = WORLD.setting.tables(task.data["tables"])
    order = tables["orders"][task.data["ticket"]["order"]]
    stock = tables["items"][order["item"]]["stock"]
    rule = next(
        r for r in WORLD.setting.rules.rules if r.fits(task.meta["kind"], {"status": order["status"], "stock": stock})
    )
    assert rule.then == "replace"
    name = order["order"]
    right = play(Desk(), task, call("replace", order=name), CLOSING)
    assert json.loads(right[0].observation.messages[-1].text) == {**order, "status": "replaced"}
    assert [s.reward for s in right] == [0.0, 1.0] and right[-1].terminated and right[-1].info["right"]
    for wrong in ("refund", "cancel"):
        assert play(Desk(), task, call(wrong, order=name), CLOSING)[-1].reward == 0.0
    assert play(Desk(), task, CLOSING)[-1].reward == 0.0


def test_doing_nothing_is_right_where_the_rules_say_so_and_a_needless_write_is_not() -> None:
    task = find(NOTHING)
    order = task.data["ticket"]["order"]
    assert play(Desk(), task, CLOSING)[-1].reward == 1.0
    assert play(Desk(), task, call("get_order", order=order), CLOSING)[-1].reward == 1.0
    assert play(Desk(), task, call("refund", order=order), CLOSING)[-1].reward == 0.0


def test_the_right_write_beside_a_wrong_one_is_not_paid() -> None:
    task = find("refund")
    tables = WORLD.setting.tables(task.data["tables"])
    mine = task.data["ticket"]["order"]
    other = next(o for o in tables["orders"] if o != mine)
    steps = play(Desk(), task, call("refund", order=mine), call("refund", order=other), CLOSING)
    assert steps[-1].reward == 0.0 and not steps[-1].info["right"]


def test_right_tables_that_were_not_closed_in_time_are_not_paid() -> None:
    task = find("cancel")
    write = call("cancel", order=task.data["ticket"]["order"])
    steps = play(Desk(), task, write, *[call("get_item", item="lamp")] * 5)
    assert steps[-1].truncated and not steps[-1].terminated and steps[-1].reward == 0.0 and steps[-1].info["right"]


def test_errors_come_in_their_kinds_and_change_nothing() -> None:
    task = find(NOTHING)
    tables = WORLD.setting.tables(task.data["tables"])
    absent = next(f"order_{i}" for i in range(1, 7) if f"order_{i}" not in tables["orders"])
    env = Desk()
    steps = play(
        env,
        task,
        call("get_order", order=absent),
        call("refund", order=absent),
        call("get_item", item="sofa"),
        call("refund", item="mug"),
        call("get_stock", item="rug"),
    )
    said = replies(steps)
    assert [json.loads(r)["error"] for r in said[:3]] == ["unknown_order", "unknown_order", "unknown_item"]
    assert said[3].startswith("Error: refund has no argument") and said[4].startswith("Error: there is no tool")
    assert env.tables == tables
    assert steps[-1].info["tool_rejected"] == 1 and steps[-1].info["tool_unknown"] == 1
    order = task.data["ticket"]["order"]
    twice = play(env, task, call("refund", order=order), call("replace", order=order))
    assert json.loads(replies(twice)[1]) == {"error": "not_allowed"}
    assert env.tables["orders"][order]["status"] == "refunded"


@given(st.integers(0, 399), st.lists(st.integers(0, len(WORLD.actions) - 2), max_size=5), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_same_actions_give_the_same_episode_and_stay_in_the_vocabulary(
    number: int, chosen: list[int], seed: int
) -> None:
    actions = [*(WORLD.actions[i] for i in chosen), CLOSING]
    first, second = (play(Desk(), tasks[number], *actions, seed=s) for s in (seed, seed + 1))
    assert [s.observation.messages for s in first] == [s.observation.messages for s in second]
    assert [s.reward for s in first] == [s.reward for s in second]
    words = {w for m in first[-1].observation.messages for w in m.text.split()}
    assert words <= set(WORLD.vocabulary)


def test_a_fork_goes_its_own_way() -> None:
    task = find("refund")
    order = task.data["ticket"]["order"]

    async def go() -> tuple[float, float]:
        env = Desk()
        await env.reset(task, 0)
        await env.step(call("get_order", order=order))
        other = await env.fork()
        await other.step(call("cancel", order=order))
        await env.step(call("refund", order=order))
        return (await env.step(CLOSING)).reward, (await other.step(CLOSING)).reward

    assert run_sync(go()) == (1.0, 0.0)
    with pytest.raises(EnvError, match="fork"):
        run_sync(Desk().fork())


def test_the_environments_keep_the_contract() -> None:
    for world in (WORLD, SHOP):
        report = check_env(world.env, world.splits["train"], episodes=6)
        assert report.ok, str(report)


def test_a_task_of_elsewhere_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"no ticket of the fictional world desk.*splits"):
        run_sync(Desk().reset(Task.of("hello"), 0))


def test_splits_share_no_ticket_and_no_records() -> None:
    for world in (WORLD, SHOP):
        ids, shops = Counter[str](), Counter[str]()
        for split in world.splits.values():
            ids.update(t.id for t in split)
            shops.update(
                {json.dumps(world.setting.tables(s), sort_keys=True) for s in {t.data["tables"] for t in split}}
            )
        assert max(ids.values()) == 1 and max(shops.values()) == 1
    assert [len(s) for s in (tasks, dev_tasks, test_tasks)] == [1200, 100, 200]
    names = [{t.data["ticket"]["customer"] for t in SHOP.splits[s]} for s in ("train", "test")]
    assert len(names[0] & names[1]) <= 2  # invented anew for each shop


def test_every_resolution_is_right_about_equally_often_at_the_desk() -> None:
    gold = Counter(t.meta["gold"] for t in tasks)
    assert set(gold) == {NOTHING, "refund", "replace", "cancel"} and min(gold.values()) >= 40
    assert max(gold.values()) <= 0.37 * len(tasks)


def test_another_seed_is_another_family() -> None:
    other = FictionWorld(1)
    assert other.setting.rules != WORLD.setting.rules
    assert not {t.data["tables"] for t in other.splits["train"]} & {t.data["tables"] for t in tasks}
    assert FictionWorld(1).splits["test"].tasks == other.splits["test"].tasks


@pytest.mark.parametrize("world", [WORLD, SHOP], ids=["desk", "shop"])
def test_careful_play_is_always_right_and_blind_play_seldom(world: FictionWorld) -> None:
    def share(script: str) -> float:
        return sum(r.reward or 0.0 for r in play_logs(world, {script: 1.0}, episodes, seed=1)) / episodes

    episodes = 400 if world is WORLD else 100

    careful, sloppy, blind, chance = (share(s) for s in ("careful", "sloppy", "blind", "random"))
    assert careful == 1.0
    assert 0.15 <= blind <= 0.37
    assert blind < sloppy < 0.95 and chance < 0.40


def test_a_shop_has_the_rows_that_were_asked_for_and_pages_them() -> None:
    tables = SHOP.setting.tables(SHOP.splits["train"][0].data["tables"])
    assert 380 <= sum(len(table) for table in tables.values()) <= 420
    with pytest.raises(UserError, match="60 to 2000 rows, not 5"):
        FictionWorld(0, "shop", rows=5)
    env, task = SHOP.env(), SHOP.splits["train"][0]
    family = task.data["ticket"]["customer"].split()[-1]
    named = sorted(r["customer"] for r in tables["customers"].values() if family in r["name"])
    pages = -(-len(named) // 5)
    said = [
        json.loads(r)
        for r in replies(play(env, task, *(call("find_customer", name=family, page=p + 1) for p in range(pages + 1))))
    ]
    assert sorted(row["customer"] for page in said for row in page["customers"]) == named
    assert {page["pages"] for page in said} == {pages} and said[-1]["customers"] == []


def test_a_shop_pays_exact_amounts_only() -> None:
    task = next(t for t in SHOP.splits["train"] if t.meta["gold"] == "refund")
    tables = SHOP.setting.tables(task.data["tables"])
    order = tables["orders"][task.data["ticket"]["order"]]
    worth = order["quantity"] * tables["items"][order["item"]]["price"]
    name = order["order"]
    assert play(SHOP.env(), task, call("refund", order=name, amount=worth), CLOSING)[-1].reward == 1.0
    assert play(SHOP.env(), task, call("refund", order=name, amount=worth - 1), CLOSING)[-1].reward == 0.0
    steps = play(
        SHOP.env(),
        task,
        call("refund", order=name, amount=worth + 1),
        call("refund", order=name, amount=worth),
        CLOSING,
    )
    assert json.loads(steps[0].observation.messages[-1].text) == {"error": "not_allowed"} and steps[-1].reward == 1.0


def test_logs_are_a_function_of_the_seed_and_marked(tmp_path: Path) -> None:
    first, second, other = (play_logs(WORLD, MIXED, 300, seed=s) for s in (4, 4, 5))
    assert first == second != other
    assert {r.source for r in first} == {"random", "agent"}
    assert all((r.source == "random") == (r.meta["script"] == "random") for r in first)
    with pytest.raises(UserError, match='Unknown script "blnd"'):
        play_logs(WORLD, {"blnd": 1.0}, 3)
    with pytest.raises(UserError, match='Unknown split "tset"'):
        play_logs(WORLD, MIXED, 3, split="tset")


def test_a_log_line_is_a_conversation_in_the_openai_form_that_replays(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "desk.jsonl"
    recordings = play_logs(WORLD, MIXED, 200, seed=2)
    assert write_logs(recordings, path) == 200
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    by_id = {t.id: t for t in tasks}
    failures = 0
    for line, recording in zip(lines, recordings, strict=True):
        open_calls: list[str] = []
        actions: list[str] = []
        for message in line["messages"][2:]:
            if message["role"] == "tool":
                assert message["tool_call_id"] == open_calls.pop(0)
            elif "tool_calls" in message:
                (made,) = message["tool_calls"]
                open_calls.append(made["id"])
                actions.append(call(made["function"]["name"], **json.loads(made["function"]["arguments"])))
            else:
                actions.append(message["content"])
        assert not open_calls
        steps = play(Desk(), by_id[line["task_id"]], *actions)
        assert steps[-1].reward == line["reward"] and steps[-1].terminated == line["done"]
        shown = [m for m in steps[-1].observation.messages if m.role == "tool"]
        assert [m.text for m in shown] == [m["content"] for m in line["messages"] if m["role"] == "tool"]
        failed = {m.tool_call_id for m in shown if "rror" in m.text.split(":")[0]}
        assert failed == recording.failed
        failures += len(failed)
        assert [t["function"]["name"] for t in line["tools"]] == [
            "get_order",
            "get_item",
            "refund",
            "replace",
            "cancel",
        ]
    assert failures > 20


def test_actions_are_what_the_parser_reads(tmp_path: Path) -> None:
    for action in WORLD.actions[:-1]:
        (read,) = parse_calls(action)
        assert read.arguments is not None and call(read.name, **read.arguments) == action
    assert parse_calls(WORLD.actions[-1]) == [] and 20 <= len(WORLD.actions) <= 60


def test_the_command_writes_logs_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.jsonl"
    assert main(["logs", str(out), "--episodes", "40", "--seed", "1", "--mix", "careful=1"]) == 0
    assert "40 episodes of 40 tickets, 100% of them right" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == 40
    assert main(["logs", str(out), "--mix", "carefull=1"]) == 2
    assert "Did you mean careful" in capsys.readouterr().err
    assert main(["logs", str(out), "--mix", "careful=x"]) == 2
    assert "--mix" in capsys.readouterr().err


def test_a_dreams_first_observation_of_a_ticket_is_the_desks_own(tmp_path: Path) -> None:
    """What `dream fit` learns of the logs poses a ticket, and reads actions, as the desk does."""
    from rlready.dream.domain import Domain
    from rlready.experience.logs import episode_of, read_logs, system_of

    write_logs(play_logs(WORLD, MIXED, 1000), tmp_path / "desk.jsonl")
    read = list(read_logs(tmp_path / "desk.jsonl"))
    rules = system_of(read[0])
    domain = Domain.learn([episode_of(r, rules=rules)[0] for r in read], rules=rules, tools=read[0].tools)
    posed = run_sync(Desk().reset(test_tasks[0], 0))
    assert domain.prompt(test_tasks[0].prompt[1].text) == posed.messages
    assert set(domain.actions or ()) == set(WORLD.actions) and domain.ending.words_close
    assert {r.source for r in read} == {"random", "agent"} and read[0].task_id == tasks[0].id
