"""Playing in a gym: one world a group, the same actions the same episode, what is refused leaves no trace."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dream.base import Reply
from rlready.dream.format import Unparsable
from rlready.dream.gymenv import asked
from rlready.envs.base import Step
from rlready.errors import EnvError
from rlready.types import Message, Task
from tests.dream.gyms import CLOSE, fresh, gym_of, play, played, recorded, replies, transcript
from tests.dream.measure.desk import DOMAIN, LIST, Scripted, cancel, doc, get

WRONG = [
    '<tool_call>{"name": "get_order", "arguments": {</tool_call>',
    '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "get_order", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "get_order", "arguments": {"order_id": 3}}</tool_call>',
    '<tool_call>{"name": "cancel_order", "arguments": {"order_id": "W0", "now": true}}</tool_call>',
    "",
    "   ",
    "<think>nothing at all</think>",
]
GOOD = [LIST, *(f(o) for f in (get, cancel) for o in ("W0", "W1", "W2", "W99")), CLOSE]
actions = st.lists(st.sampled_from([*GOOD, *WRONG, get("W1") + get("W2"), cancel("W0") + CLOSE]), max_size=8)


SHARED, FRESH = gym_of(), gym_of()


# ---------------------------------------------------------------------- one world


def noisy(moment, action):
    """A simulator that draws a status from the moment's noise, as a sampled model does."""
    status = ("open", "sent")[moment.noise(action.text) % 2]
    return doc((action.arguments or {}).get("order_id", "W0"), status, moment.noise("price") % 90)


@pytest.mark.parametrize("made", [lambda: fresh(Scripted(noisy)), gym_of], ids=["imagined", "recorded"])
def test_members_who_do_different_things_first_hear_the_same_facts(made):
    """Across fresh sessions, too: a gym built anew is the same world."""
    asked = get("W3")
    before = [[], [LIST], [get("W1")], [WRONG[1]], [get("W2"), LIST, WRONG[0], get("W5")]]
    heard = set()
    for first in before:
        heard.add(replies(played(made(), [*first, asked], task="t3", seed=5))[-1])
    assert len(heard) == 1


def test_other_seeds_are_other_worlds():
    gym = fresh(Scripted(noisy))
    assert len({replies(played(gym, [get("W3")], task="t3", seed=seed))[-1] for seed in range(20)}) > 10


def test_a_changed_world_is_asked_with_its_history():
    seen = Scripted(noisy)
    played(fresh(seen), [get("W0"), cancel("W0"), get("W0")])
    first, write, again = (moment for moment, _ in seen.seen[:3])
    assert first.past == () and first.state == {}
    assert [a.text for a, _ in write.past] == [get("W0")]
    assert [a.text for a, _ in again.past] == [get("W0"), cancel("W0")]


def test_a_failed_write_changes_nothing():
    seen = Scripted(lambda m, a: Reply("Error: no", failed=True) if a.tool == "cancel_order" else noisy(m, a))
    said = replies(played(fresh(seen), [get("W1"), cancel("W0"), get("W2")]))
    assert said[0] != said[1] and seen.seen[2][0].past == ()


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(0, 3), st.integers(0, 14))
def test_same_actions_same_episode(script, seed, number):
    """With retrieval, within one gym and in a fresh one."""
    first = transcript(played(SHARED, script, task=f"t{number}", seed=seed))
    assert first == transcript(played(SHARED, script, task=f"t{number}", seed=seed))
    assert first == transcript(played(FRESH, script, task=f"t{number}", seed=seed))


@settings(max_examples=60, deadline=None)
@given(actions, st.sampled_from(WRONG), st.integers(0, 8), st.integers(0, 14))
def test_what_is_refused_leaves_no_trace(script, wrong, at, number):
    """Slipped in anywhere, a wrong action is told an error, and all other replies are what they were."""
    script = [a for a in script if a != CLOSE][:7]
    at = min(at, len(script))
    plain = played(SHARED, [*script, CLOSE], task=f"t{number}")
    slipped = played(SHARED, [*script[:at], wrong, *script[at:], CLOSE], task=f"t{number}")
    if len(plain) <= at or plain[-1].truncated or slipped[-1].truncated:
        return
    said = replies(slipped)
    assert slipped[at].info["origin"] == "check" and slipped[at].info["failed"] and said[at]
    assert [*said[:at], *said[at + 1 :]] == replies(plain)
    assert slipped[-1].reward == plain[-1].reward and slipped[-1].info == plain[-1].info


def test_what_is_refused_earns_nothing_by_itself():
    won = Scripted(noisy, judge=lambda m: 1.0)
    steps = played(fresh(won), WRONG[:4])
    assert [s.reward for s in steps] == [0, 0, 0, 0] and not steps[-1].terminated
    assert won.seen == []  # the simulator never hears of it


# ---------------------------------------------------------------------- turns and ends


def test_several_calls_in_one_turn_are_answered_one_by_one():
    gym = gym_of()
    (both,) = played(gym, [get("W0") + "\n" + WRONG[1] + get("W4")])
    one, two = played(gym, [get("W0"), get("W4")])
    new = both.observation.messages[3:]
    assert [(m.role, m.tool_call_id) for m in new] == [("tool", "call_1_0"), ("tool", "call_1_1"), ("tool", "call_1_2")]
    assert (new[0].text, new[2].text) == tuple(replies([one, two]))
    assert "fly" in new[1].text
    assert both.info["failed"] is False  # of the last


def test_calls_after_the_end_of_an_episode_are_not_played():
    ends = Scripted(lambda m, a: Reply("over", done=a.tool == "cancel_order"), judge=lambda m: 1.0)
    (step,) = played(fresh(ends), [get("W0") + cancel("W0") + get("W1")])
    assert step.terminated and step.reward == 1.0
    assert [a.text for _, a in ends.seen[:2]] == [get("W0"), cancel("W0")]
    assert [m.text for m in step.observation.messages[3:]] == ["over", "over"]


def test_words_close_and_nothing_goes_on():
    async def go():
        env = gym_of().env()
        task = gym_of().task("t1", "Cancel order W1 if it is open.")
        await env.reset(task, 0)
        end = await env.step(CLOSE)
        with pytest.raises(EnvError, match="call reset first"):
            await env.step(CLOSE)
        await env.reset(task, 0)  # and another episode can begin
        return end, await env.step(get("W1"))

    end, again = asyncio.run(go())
    assert end.terminated and not end.truncated and end.observation.messages[-1] == Message("assistant", CLOSE)
    assert not again.terminated


def test_the_cap_counts_actions_not_turns():
    cap = DOMAIN.ending.cap
    gym = gym_of()
    alone = played(gym, [get("W0")] * 30)
    assert len(alone) == cap and alone[-1].truncated and not alone[-1].terminated and alone[-1].reward == 0
    pairs = played(gym, [get("W0") * 2] * 30)
    assert len(pairs) == cap / 2 and pairs[-1].truncated
    wrong = played(gym, WRONG[1:2] * 30)
    assert len(wrong) == cap and wrong[-1].truncated


def test_the_last_allowed_action_may_close():
    steps = played(gym_of(), [get("W0")] * (DOMAIN.ending.cap - 1) + [CLOSE])
    assert steps[-1].terminated and not steps[-1].truncated


def remembers(moment, action):
    """An order is cancelled once it was cancelled."""
    gone = any(a.tool == "cancel_order" for a, _ in moment.past) or action.tool == "cancel_order"
    return doc("W0", "cancelled" if gone else "open")


def test_fork_goes_two_ways():
    async def go():
        gym = gym_of(Scripted(remembers), reward_source="criteria")
        env = gym.env()
        with pytest.raises(EnvError, match="before reset"):
            await env.fork()
        await env.reset(gym.task("t0", "Cancel order W0 if it is open."), 0)
        await env.step(get("W0"))
        other = await env.fork()
        await other.step(cancel("W0"))
        looked, changed = await env.step(get("W0")), await other.step(get("W0"))
        return looked, changed, await env.step(CLOSE), await other.step(CLOSE)

    looked, changed, end, other = asyncio.run(go())
    assert "open" in looked.observation.messages[-1].text and "cancelled" in changed.observation.messages[-1].text
    assert (end.reward, other.reward) == (0.0, 1.0)


def test_close_releases_the_world_and_needs_no_episode():
    seen = Scripted(noisy)
    gym = fresh(seen)
    asyncio.run(gym.env().close())
    assert seen.released == []
    played(gym, [get("W0")])
    assert seen.released == [seen.seen[0][0].world]


def test_a_task_without_words_is_refused():
    with pytest.raises(EnvError, match="no instruction"):
        asyncio.run(gym_of().env().reset(Task((Message("system", "rules"),), {}, id="mute"), 0))


def test_the_instruction_is_in_the_data_or_in_the_prompt():
    tasks = [Task.of("ask"), Task((Message("system", "s"), Message.user("a"), Message.user("b")), {"instruction": ""})]
    assert [asked(t) for t in (*tasks, gym_of().task("x", "words"))] == ["ask", "a\nb", "words"]


def test_limited_gyms_offer_their_actions():
    gym = gym_of()
    assert gym.limited is False
    gym.domain = replace(DOMAIN, actions=(LIST, CLOSE))
    gym.limited = True
    assert played(gym, [LIST])[0].observation.actions == (LIST, CLOSE)


# ---------------------------------------------------------------------- confidence and accidents


def unsure(moment, action):
    return Reply("hm", confidence=0.2 if action.arguments == {"order_id": "W9"} else 0.9)


def test_low_confidence_ends_or_masks():
    script = [get("W0"), get("W9"), get("W0")]
    masked = played(fresh(Scripted(unsure), min_confidence=0.5), script)
    assert len(masked) == 2 and masked[-1].truncated and "fell to 0.20" in masked[-1].info["failure"]
    ended = played(fresh(Scripted(unsure), min_confidence=0.5, low_confidence="end"), script)
    assert len(ended) == 2 and ended[-1].truncated and "failure" not in ended[-1].info
    whole = played(fresh(Scripted(unsure), min_confidence=0.5), script, evaluation=True)
    assert len(whole) == 3 and whole[1].info["confidence"] == 0.2
    assert len(played(fresh(Scripted(unsure), min_confidence=0.2), script)) == 3  # not below


def test_the_least_sure_call_of_a_turn_counts():
    (step,) = played(fresh(Scripted(unsure), min_confidence=0.5), [get("W9") + get("W0")])
    assert step.info["confidence"] == 0.2 and "failure" in step.info


def test_recordings_and_code_are_sure():
    assert played(gym_of(min_confidence=1.0), [get("W0"), WRONG[0], CLOSE])[-1].terminated


def test_confidence_is_calibrated_where_it_was_measured():
    gym = fresh(Scripted(unsure))
    gym.calibration = lambda raw: raw / 2  # type: ignore[assignment]
    assert played(gym, [get("W0")])[0].info["confidence"] == 0.45


def test_what_cannot_be_read_voids_the_episode():
    def broken(moment, action):
        if action.text == get("W1"):
            raise Unparsable("no verdict at the end")
        return "fine"

    steps = played(fresh(Scripted(broken)), [get("W0"), get("W1"), get("W0")])
    assert len(steps) == 2
    assert get("W1") in steps[1].info["failure"] and "no verdict at the end" in steps[1].info["failure"]
    assert steps[1].observation.messages[-1] == Message("assistant", get("W1"))

    def mute(moment):
        raise Unparsable("neither right nor wrong")

    (end,) = played(fresh(Scripted(noisy, judge=mute)), [CLOSE])
    assert end.terminated and end.reward == 0 and "neither right nor wrong" in end.info["failure"]


# ---------------------------------------------------------------------- rewards


def test_criteria_where_doing_nothing_is_right():
    gym = gym_of(reward_source="criteria")
    reward = {
        (task, name): played(gym, script, task=task)[-1].reward
        for task in ("t0", "t1")
        for name, script in {
            "nothing": [CLOSE],
            "looked": [get("W0"), get("W1"), CLOSE],
            "cancelled": [cancel("W0"), CLOSE],
            "refused": [cancel("W1"), CLOSE],
            "both": [cancel("W0"), cancel("W2"), CLOSE],
        }.items()
    }
    # W0 is open and must be cancelled; W1 was sent: nothing is to be done, and an attempt that fails does nothing
    assert reward["t0", "nothing"] == reward["t0", "looked"] == reward["t0", "both"] == 0
    assert reward["t0", "cancelled"] == 1
    assert reward["t1", "nothing"] == reward["t1", "looked"] == reward["t1", "refused"] == 1
    assert reward["t1", "cancelled"] == 0


def test_without_criteria_an_episode_is_void():
    (end,) = played(gym_of(reward_source="criteria"), [CLOSE], task="t400")
    assert end.reward == 0 and "no criteria for task t400" in end.info["failure"]


def test_a_verifier_is_left_to_the_task_set():
    judge = Scripted(noisy, judge=lambda m: 1 / 0)
    (end,) = played(fresh(judge, reward_source="verifier"), [CLOSE])
    assert end.reward == 0 and end.terminated and "failure" not in end.info


def test_criteria_and_simulator_must_agree():
    sure = Scripted(noisy, judge=lambda m: 1.0)
    gym = gym_of(sure, reward_source="both")
    good = played(gym, [cancel("W0"), CLOSE], task="t0")[-1]
    assert good.reward == 1 and "failure" not in good.info
    bad = played(gym, [CLOSE], task="t0")[-1]
    assert "criteria say False and the simulator says True" in bad.info["failure"]
    alone = played(gym, [CLOSE], task="t400")[-1]  # nothing to compare with
    assert alone.reward == 1 and "failure" not in alone.info


def test_the_draw_belongs_to_the_world():
    """Within a group a better judged episode never loses; over worlds the share is the probability."""
    odds = {"W0": 0.8, "W1": 0.5, "W2": 0.2}

    def judge(moment):
        made = [a.arguments["order_id"] for a, _ in moment.past if a.tool == "cancel_order"]
        return odds[made[0]] if made else 0.0

    gym = fresh(Scripted(lambda m, a: "done", judge=judge))

    async def group(seed: int) -> list[Step]:
        return [(await play(gym, [cancel(o), CLOSE], seed=seed))[-1] for o in odds]

    won = dict.fromkeys(odds, 0.0)
    for seed in range(300):
        ends = asyncio.run(group(seed))
        rewards = [e.reward for e in ends]
        assert rewards == sorted(rewards, reverse=True)
        assert [e.info["judged"] for e in ends] == [0.8, 0.5, 0.2]
        for order, reward in zip(odds, rewards, strict=True):
            won[order] += reward / 300
    assert all(abs(won[o] - p) < 0.09 for o, p in odds.items())  # 3 standard errors


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**6))
def test_better_judged_never_loses(p, q, seed):
    low, high = sorted((p, q))
    gyms = [fresh(Scripted(noisy, judge=lambda m, x=x: x)) for x in (low, high)]
    worse, better = (played(g, [CLOSE], seed=seed)[-1].reward for g in gyms)
    assert worse <= better


def test_the_judge_hears_what_could_have_been_looked_up():
    heard = []

    def judge(moment):
        heard.append([(a.text, r.text) for a, r in moment.facts])
        return 1.0

    gym = gym_of(Scripted(noisy, judge=judge))
    played(gym, [CLOSE], task="t0")
    played(gym, [get("W5"), CLOSE], task="t0")
    assert heard[0] == heard[1] and (get("W0"), doc("W0", "open", 10)) in heard[0]  # the anchor's, whoever looked
    played(gym, [CLOSE], task="t99")
    played(gym, [get("W99"), cancel("W99"), CLOSE], task="t99")
    imagined = [dict(h) for h in heard[2:]]
    assert imagined[0] == imagined[1] and get("W99") in imagined[0]  # asked of the world itself


def test_step_rewards_are_summed_over_the_calls_of_a_turn():
    gym = fresh(Scripted(lambda m, a: Reply("ok", reward=0.25), judge=lambda m: 1 / 0))
    gym.domain = replace(DOMAIN, step_rewards=True)
    step, end = played(gym, [get("W0") + get("W1"), CLOSE])
    assert step.reward == 0.5 and end.reward == 0 and end.terminated


def test_recorded_episodes_are_replayed_as_they_were():
    gym = gym_of()
    for e in recorded():
        if len(e) > 1:
            said = replies(played(gym, e.actions, task=e.task_id))
            assert [json.loads(r) if r else r for r in said] == [json.loads(r) if r else r for r in e.replies]
