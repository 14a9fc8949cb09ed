"""What the simulator itself knows of the open problems: an upper bound for comparison, not for the honest run."""

from __future__ import annotations

from rlready.errors import EnvError
from rlready.worlds.tau2.actions import BILL
from rlready.worlds.tau2.belief import FACTS, PENDING, facts_of, is_problem
from rlready.worlds.tau2.env import Tau2Env


def privileged(env: Tau2Env) -> list[str]:
    """The problems open in the simulator now, in the words and order of `hindsight.PROBLEMS`.

    They are none (but for `pend`) exactly where the benchmark's own check passes. Whether a suspended line was noticed
    cannot be read while something else cuts the connection; it then counts as noticed.

    Args:
        env: an environment with a running or just closed episode.

    Raises:
        EnvError: there is no episode.
    """
    if env.episode is None:
        raise EnvError("privileged() needs an environment with an episode; call reset first.")
    ticket = env.ticket
    company, phone = env.episode.env.tools.db, env.episode.env.user_tools.db
    device, around = phone.device, phone.surroundings
    mode = device.network_mode_preference.value.removesuffix("_5g_preferred").removesuffix("_only")
    mode = "5g" if device.network_mode_preference.value.endswith("preferred") else mode
    permissions = device.app_statuses["messaging"].permissions
    unserved = device.network_connection_status.value != "connected"
    blocked = {
        "airplane": device.airplane_mode,
        "sim": device.sim_card_missing,
        "simlock": device.sim_card_status.value != "active",
        "apn": device.active_apn_settings.apn_name.value != "internet",
    }
    problems = {
        **blocked,
        "line": unserved and (not around.line_active or not any(blocked.values())),
        "bill": any(b.bill_id == BILL and b.status.value != "Paid" for b in company.bills),
        "data": not device.data_enabled,
        "roam": around.is_abroad and not device.roaming_enabled,
        "lroam": around.is_abroad and not around.roaming_allowed,
        "usage": around.mobile_data_usage_exceeded or "assert_data_refueling_amount" in env.episode.failing(),
        "mode": is_problem("mode", mode, ticket),
        "wcall": device.wifi_calling_enabled and device.wifi_calling_mms_over_wifi,
        "mmsc": device.active_apn_settings.mmsc_url is None,
        "sms": not permissions.sms,
        "storage": not permissions.storage,
        "saver": device.data_saver_mode,
        "vpn": device.vpn_connected and device.vpn_details.server_performance.value == "poor",
    }
    relevant = {*facts_of(ticket), "line"}
    found = [f"m{mode}" if f == "mode" else f for f in FACTS if f in relevant and problems[f]]
    return found + ([PENDING] if device.active_apn_settings.reset_at_reboot else [])
