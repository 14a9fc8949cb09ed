"""Hindsight: logs derived by hand, and the simulator's inside as the judge."""

import dataclasses
import random

import pytest

from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode, from_trajectory
from rlready.worlds.tau2 import DEMONSTRATIONS, PROBLEMS, Hindsight, Tau2Env, privileged, telecom
from rlready.worlds.tau2.belief import Belief, facts_of
from tests.worlds.scripted import logs as scripted_logs
from tests.worlds.scripted import trajectories

WORLD = telecom()


def log(ticket, *steps, success=False):
    """A log from "action -> reply words" lines; "done" closes it."""
    pairs = [tuple(p.strip() for p in f"{s} ->".split("->")[:2]) for s in steps]
    actions, replies = zip(*pairs, strict=True)
    return LoggedEpisode("?", ticket, actions, replies, success, actions[-1] == "done")


def starts(ticket, *steps):
    belief = Belief(ticket)
    for step in steps:
        action, _, reply = step.partition("->")
        belief.step(action.strip(), reply.strip())
    return belief.start


# ---- what replies reveal, by hand

BAR = "sig_excellent 5g data_on"
CONNECTED = {"airplane": False, "sim": False, "simlock": False, "apn": False, "mode": "5g"}


@pytest.mark.parametrize(
    ("ticket", "steps", "expected"),
    [
        # A check shows the start.
        ("t_mms home", ["get_usage -> used_over refueled_0"], {"usage": True}),
        ("t_mms home", ["get_usage -> used_ok refueled_0"], {"usage": False}),
        ("t_mms home", ["check_perms -> p_storage p_phone"], {"sms": True, "storage": False}),
        ("t_mms home", ["check_sim_status -> sim_missing"], {"sim": True}),
        ("t_mms home", ["check_apn_settings -> apn_ok mmsc_none"], {"apn": False, "mmsc": True}),
        ("t_mms home", ["check_network_mode_preference -> mode_2g_only"], {"mode": "2g"}),
        # A switch tells by where it went; checked later it still tells, through the number of toggles.
        ("t_mms home", ["toggle_wifi_calling -> wcall_off"], {"wcall": True}),
        ("t_mms home", ["toggle_data -> mdata_off bar_airplane"], {"data": False, "airplane": True}),
        # After a fix, a check says nothing of the start...
        ("t_mms home", ["grant_sms -> granted", "check_perms -> p_sms p_storage"], {"storage": False}),
        ("t_mms home", ["refuel_2 -> ok", "get_usage -> used_ok refueled_2"], {}),
        # ... but allowance that is used up after a refill was used up before.
        ("t_mms home", ["refuel_1 -> ok", "get_usage -> used_over refueled_1"], {"usage": True}),
        # Fixes that answer "already", and refusals.
        ("t_mms abroad", ["enable_roaming -> ok"], {"lroam": True}),
        ("t_mms abroad", ["enable_roaming -> already"], {"lroam": False}),
        ("t_mms abroad", ["disable_roaming -> ok"], {"lroam": False}),
        ("t_service no_service", ["resume_line -> error not_suspended"], {"line": False}),
        ("t_service no_service", ["resume_line -> ok"], {"line": True}),
        ("t_service no_service", ["ask_payment -> error not_found"], {"bill": False}),
        ("t_data home no_service", ["disconnect_vpn -> vpn_none sig_none data_off"], {"vpn": False, "airplane": False}),
        ("t_data home no_service", ["disconnect_vpn -> vpn_off bar_airplane"], {"vpn": True, "airplane": True}),
        # "Data disabled" without a network says nothing of the switch; with one it does.
        ("t_mms home", ["check_status_bar -> sig_none data_off"], {"airplane": False}),
        ("t_mms home", ["check_status_bar -> sig_poor 2g data_off"], {**CONNECTED, "mode": "2g", "data": True}),
        # A connection after putting the card back says nothing of the card before.
        (
            "t_mms home",
            [f"reseat_sim_card -> reseated {BAR}"],
            {"airplane": False, "simlock": False, "apn": False, "mode": "5g", "data": False},
        ),
        # Flight mode cuts the VPN, so a bar without VPN says nothing any more.
        ("t_data home no_service", ["toggle_airplane_mode -> air_on bar_airplane"], {"airplane": False}),
        # Working picture messages clear everything at once.
        (
            "t_mms home",
            ["can_mms -> mms_yes"],
            dict.fromkeys(facts_of("t_mms home"), False) | {"mode": "5g"},  # or 3G, or 4G: not 2G
        ),
        # So does an excellent connection; a poor one at least works.
        (
            "t_data abroad no_service",
            ["speed_test -> speed_excellent"],
            dict.fromkeys(facts_of("t_data abroad no_service"), False) | {"mode": "5g"},
        ),
        (
            "t_data home no_service",
            ["speed_test -> speed_poor"],
            dict.fromkeys(["airplane", "sim", "simlock", "data", "usage"], False),
        ),
        ("t_mms home", ["fly -> error unknown_action", "can_mms -> mms_no"], {}),
    ],
)
def test_what_replies_reveal_of_the_start(ticket, steps, expected):
    assert starts(ticket, *steps) == expected


# ---- traces, by hand

NO_LOGS = Hindsight().fit([log("t_mms home", "done")])


def annotate(episode, seed=0, hindsight=NO_LOGS):
    return hindsight.annotate(episode, random.Random(seed))


def test_a_success_settles_what_was_not_fixed_and_the_trace_shrinks_with_each_fix():
    a = annotate(
        log(
            "t_mms home",
            f"toggle_wifi_calling -> wcall_off {BAR}",
            f"grant_sms -> granted {BAR}",
            "check_perms -> p_sms p_storage",
            "get_usage -> used_over refueled_0",
            "refuel_2 -> ok",
            f"reset_apn_settings -> at_reboot {BAR}",
            f"reboot_device -> apn_reset restarted {BAR}",
            "done",
            success=True,
        ),
        seed=3,
    )
    assert a.explained
    # The log leaves two things open, both fixed without looking: the permission, and the picture message centre.
    assert set(facts_of("t_mms home")) - set(a.revealed) == {"sms", "mmsc"}
    assert {f for f, wrong in a.revealed.items() if wrong} == {"wcall", "usage"}
    drawn = [f for f in ("mmsc", "sms") if f in a.card]
    assert a.card == [f for f in PROBLEMS if f in {"usage", "wcall", *drawn}]
    rest = ["mmsc"] if "mmsc" in a.card else []
    assert a.traces[0] == ["usage", *[f for f in a.card if f in ("mmsc", "sms")]]
    assert a.traces[1] == a.traces[2] == a.traces[3] == ["usage", *rest]
    assert a.traces[4] == rest and a.traces[5] == [*rest, "pend"] and a.traces[6:] == [[], []]


def test_a_failure_needs_an_open_problem():
    seen = [
        "check_network_status -> air_off sim_active svc_connected sig_excellent tech_5g data_on roam_off",
        "get_usage -> used_ok refueled_0",
        "check_wifi_calling_status -> wcall_off",
        "check_perms -> p_sms p_storage",
    ]
    for seed in range(20):
        a = annotate(log("t_mms home", *seen, "done"), seed)
        assert a.explained and a.card == ["mmsc"] and a.traces == [["mmsc"]] * 5  # the only thing it did not look at
    a = annotate(log("t_mms home", *seen, "check_apn_settings -> apn_ok mmsc_ok", "done"))
    assert not a.explained and a.card == []  # such a failure cannot be explained, and is not explained away


def test_what_the_agent_breaks_is_open_and_what_is_harmless_is_not():
    def last(ticket, *steps):
        return annotate(log(ticket, *steps, "done"), 1).traces[-1]

    works = "can_mms -> mms_yes"
    assert last("t_mms home", works, "toggle_data -> mdata_off sig_excellent 5g data_off") == ["data"]
    assert last("t_mms home", works, f"toggle_wifi_calling -> wcall_on {BAR}") == []  # never held messages up before
    assert last("t_mms home", works, "set_3g_only -> ok sig_fair 3g data_on") == []  # enough for picture messages
    assert last("t_mms home", works, "set_2g_only -> ok sig_poor 2g data_on") == ["m2g"]
    assert last("t_mms home", works, "suspend_line -> ok") == []  # unnoticed until the next search
    assert last("t_mms home", works, "suspend_line -> ok", "reboot_device -> restarted sig_none data_off") == ["line"]
    over = ["get_usage -> used_over refueled_0"]
    rest = [
        "check_network_status -> air_off sim_active svc_connected sig_excellent tech_5g data_on roam_off",
        "check_wifi_calling_status -> wcall_off",
        "check_perms -> p_sms p_storage",
        "check_apn_settings -> apn_ok mmsc_ok",
    ]
    assert last("t_mms home", *rest, *over, "refuel_1 -> ok") == ["usage"]  # the ticket says 2 GB
    assert last("t_mms home", *rest, *over, "refuel_2 -> ok", "refuel_1 -> ok") == ["usage"]
    assert last("t_mms home", *rest, *over, "refuel_1 -> ok", "refuel_1 -> ok") == []
    suspended = [
        "check_network_status -> air_off sim_active svc_no_service sig_none tech_none data_on roam_off",
        "get_line -> line_suspended line_roam_on contract_ok",
        "get_bills -> bill_overdue",
        "check_apn_settings -> apn_ok mmsc_ok",
    ]
    service = "t_service no_service"
    assert last(service, *suspended, "resume_line -> ok") == ["line", "bill"]  # not noticed yet either
    assert last(service, *suspended, "resume_line -> ok", f"reboot_device -> restarted {BAR}") == ["bill"]
    paid = ["ask_payment -> ok", "make_payment -> paid"]
    assert last(service, *suspended, *paid, "resume_line -> ok", f"reboot_device -> restarted {BAR}") == []


def test_frequencies_are_shares_per_ticket_and_lean_on_the_other_tickets_where_there_are_few_logs():
    over, fine = "get_usage -> used_over refueled_0", "get_usage -> used_ok refueled_0"
    hindsight = Hindsight().fit(
        [log("t_mms home", over)] * 30
        + [log("t_mms home", fine)] * 10
        + [log("t_mms abroad", fine)] * 40
        + [log("t_mms home", "can_mms -> mms_no")] * 100  # shows nothing of it, so does not count
    )
    overall = (30 + 0.5) / (80 + 1)
    assert hindsight.frequency("t_mms home", "usage") == pytest.approx((30 + 2 * overall) / 42)
    assert hindsight.frequency("t_mms abroad", "usage") == pytest.approx(2 * overall / 42)
    assert hindsight.frequency("t_data home no_service", "usage") == pytest.approx(overall)
    assert hindsight.frequency("t_mms home", "sms") == 0.5
    cards = [annotate(log("t_mms home", "can_mms -> mms_no"), seed, hindsight).card for seed in range(400)]
    assert 0.65 < sum("usage" in card for card in cards) / 400 < 0.81
    with pytest.raises(UserError, match="without episodes"):
        Hindsight().fit([])


def test_nothing_but_the_words_of_the_log_is_read():
    logs = scripted_logs(WORLD.scripts, WORLD.splits["train"].head(40), WORLD.env, mix=DEMONSTRATIONS)
    hindsight = Hindsight().fit(logs)
    for i, episode in enumerate(logs):
        other = dataclasses.replace(episode, task_id="another", source="x", version=7, seed=9)
        assert annotate(episode, i, hindsight) == annotate(other, i, hindsight)


# ---- against the simulator's inside


class Watched(Tau2Env):
    async def reset(self, task, seed):
        observation = await super().reset(task, seed)
        self.inside = [privileged(self)]
        return observation

    async def step(self, action):
        step = await super().step(action)
        self.inside.append(privileged(self))
        return step


def _played(scripts, tasks, mix=None):
    envs = []

    def make():
        envs.append(Watched())
        return envs[-1]

    played = trajectories(scripts, tasks, make, mix=mix)
    return [(from_trajectory(t, source="script"), env.inside) for t, env in zip(played, envs, strict=True)]


@pytest.fixture(scope="module")
def judged():
    """The agent's kind of logs, and random play, each with what the simulator held."""
    train = WORLD.splits["train"]
    return _played(WORLD.scripts, train.head(500), DEMONSTRATIONS) + _played(WORLD.scripts["random"], train.head(300))


def test_what_is_revealed_is_right_much_is_revealed_and_verdicts_are_explained(judged):
    hindsight = Hindsight().fit(e for e, _ in judged)
    right = revealed = facts = explained = right_traces = steps = 0
    for i, (episode, inside) in enumerate(judged):
        a = annotate(episode, i, hindsight)
        assert len(a.traces) == len(episode) and {*a.card, *(w for t in a.traces for w in t)} <= set(PROBLEMS)
        wrong = {"mode" if w in ("m2g", "m3g", "m4g") else w for w in inside[0]}
        facts += len(facts_of(episode.instruction))
        revealed += len(a.revealed)
        right += sum((f in wrong) == v for f, v in a.revealed.items())
        explained += a.explained
        if a.card == inside[0]:  # with the right card, every later list must be right too
            steps += len(a.traces)
            for trace, truth in zip(a.traces, inside[1:], strict=True):  # (see `privileged` for the line)
                right_traces += [w for w in trace if w != "line"] == [w for w in truth if w != "line"]
    assert right / revealed > 0.999
    assert revealed / facts > 0.6
    assert explained / len(judged) > 0.999
    assert steps > 1500 and right_traces == steps


def test_the_frequencies_found_are_those_of_the_tasks(judged):
    hindsight = Hindsight().fit(e for e, _ in judged)
    ticket = "t_mms abroad"
    tasks = [inside[0] for e, inside in judged if e.instruction == ticket]
    for fact in ("airplane", "sim", "data", "usage", "wcall", "mmsc", "sms", "storage", "roam", "lroam"):
        truth = sum(fact in card for card in tasks) / len(tasks)
        assert abs(hindsight.frequency(ticket, fact) - truth) < 0.12, fact
