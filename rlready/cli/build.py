"""From what is written on the command line to objects: a task set from a file, an environment, a tiny policy."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

from rlready.algorithms import ALGORITHMS, SFT, Algorithm
from rlready.envs.base import Env, EnvFactory
from rlready.errors import UserError, did_you_mean
from rlready.policy.base import OptimizerConfig
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tiny.save import fresh_folder
from rlready.policy.tokenize import TextTokenizer
from rlready.start import build_tokenizer, chat, listen, texts_of, tiny_policy
from rlready.tasks.base import TaskSet, score_by_env
from rlready.train import check_group, check_lag

if TYPE_CHECKING:
    from rlready.checkpoint import Stateful

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}
_FEWEST_TO_SPLIT = 20
_LEAST = {"steps": 1, "groups": 1, "group_size": 1, "max_tokens": 1, "max_steps": 1, "eval_every": 0, "save_every": 0,
          "max_lag": 0}  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `rlready train`; the algorithm's own stand beside, under its name.

    Attributes:
        steps: updates.
        groups: tasks per update.
        group_size: episodes per task.
        temperature: of sampling.
        max_tokens: longest answer, in tokens.
        max_steps: most actions per episode; only where an environment has many.
        deadline: seconds per episode: boot, steps and grading.
        max_failures: share of episodes whose environment or grader may fail before training stops.
        eval_every: steps between evaluations on dev; 0 evaluates before the first step and after the last only.
        save_every: steps between checkpoints; 0 writes one before the first step and one after the last only.
        max_lag: updates by which what is learnt from may be older than the policy: so far ahead rollouts may run.
        sampler: "inline", or "process": the policy samples in a process of its own, while it learns in this one.
        tokenizer: "words" (every word of the tasks is one token), "bpe" (can write anything), or "auto": words where
            there are at most 2,000 and no environment that may say others.
        vocab_size: of the "bpe" tokenizer.
        optimizer: learning rate and all that.
        tiny: shape of the tiny transformer.
    """

    steps: int = 100
    groups: int = 16
    group_size: int = 8
    temperature: float = 1.0
    max_tokens: int = 32
    max_steps: int = 50
    deadline: float = 60.0
    max_failures: float = 0.05
    eval_every: int = 20
    save_every: int = 20
    max_lag: int = 0
    sampler: Literal["inline", "process"] = "inline"
    tokenizer: Literal["auto", "words", "bpe"] = "auto"
    vocab_size: int = 1024
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-3))
    tiny: TinyConfig = field(default_factory=lambda: TinyConfig(dim=64, layers=2, heads=4, kv_heads=1))

    def __post_init__(self) -> None:
        """Check what cannot work.

        Raises:
            UserError: a number is out of range; names the key.
        """
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature is {self.temperature:g}; it must be above 0, since training learns from episodes that "
                "differ. (rlready eval decodes greedily.)"
            )
        if not self.deadline > 0:
            raise UserError(f"deadline is {self.deadline:g} seconds; it must be above 0.")
        if not 0 <= self.max_failures <= 1:
            raise UserError(f"max_failures is {self.max_failures:g}; it is a share, between 0 and 1.")
        if not 0 <= self.optimizer.lr < math.inf:
            raise UserError(f"optimizer.lr is {self.optimizer.lr:g}; it must be a number that is not negative.")


def config_type(algorithm: str) -> type[Any]:
    """`TrainConfig` with the fields of a known algorithm under its name, see `table_of`."""
    kind = ALGORITHMS[algorithm.lower()]
    extra: list[tuple[str, Any, Any]] = [(table_of(algorithm), kind, field(default_factory=kind))]
    return make_dataclass("TrainConfig", extra, bases=(TrainConfig,), frozen=True)


def table_of(algorithm: str) -> str:
    """The name of an algorithm's table in a configuration: its own, but "reinforcepp" for "reinforce++"."""
    return algorithm.lower().replace("+", "p")


def spelled(algorithm: str, overrides: Sequence[str]) -> list[str]:
    """`key=value` with the algorithm's name in keys turned into that of its table."""
    name = algorithm.lower()
    return [table_of(name) + o[len(name) :] if o.lower().startswith(f"{name}.") else o for o in overrides]


def settings_of(
    algorithm: str, config: Path | None = None, overrides: Sequence[str] = (), table: Mapping[str, Any] | None = None
) -> Any:
    """`rlready.config.load` for a known algorithm, whose name may be written in keys as it is.

    Raises:
        UserError: as `load`.
    """
    from rlready.config import load

    return load(config_type(algorithm), config, spelled(algorithm, overrides), table=table)


@dataclass
class Subject:
    """What a policy is trained on.

    Attributes:
        name: for the run's folder.
        splits: "train", "dev" and "test"; the same tasks three times where they are too few to cut.
        env: makes environments.
        cut: whether the splits are disjoint.
        played: whether the environment is one of the user's own, and not a question and its answer.
    """

    name: str
    splits: Mapping[str, TaskSet]
    env: EnvFactory
    cut: bool
    played: bool = False

    @property
    def everything(self) -> list[TaskSet]:
        """The distinct sets."""
        return list(self.splits.values()) if self.cut else [self.splits["train"]]


def subject(target: str, env: str | None = None) -> Subject:
    """Load `my_task.py:tasks`: a `TaskSet`, a mapping of split names to task sets, or a function that makes either.

    Raises:
        UserError: no such file or name, or it is something else.
    """
    found = load_object(target, default="tasks")
    if callable(found):
        with blamed(target.partition(":")[0]):
            found = found()
    name = Path(target.partition(":")[0]).stem
    if isinstance(found, TaskSet):
        cut = len(found) >= _FEWEST_TO_SPLIT
        splits = found.split(SHARES) if cut else dict.fromkeys(SHARES, found)
        if cut and not all(len(s) for s in splits.values()):
            cut, splits = False, dict.fromkeys(SHARES, found)
    elif isinstance(found, Mapping) and all(isinstance(v, TaskSet) for v in found.values()):
        if "train" not in found:
            raise UserError(f'{target} has splits {", ".join(map(str, found))}, but none called "train".')
        cut, splits = len(found) > 1, {n: found.get(n, found.get("test", found["train"])) for n in SHARES} | dict(found)
    else:
        raise UserError(
            f"{target} is of type {type(found).__name__}; a TaskSet, or a mapping of split names to them, is wanted."
        )
    if not len(splits["train"]):
        raise UserError(f"{target} holds no tasks.")
    if env is None and any(s.scorer is score_by_env for s in splits.values()):
        raise UserError(
            f"The tasks of {target} have no score, and without --env nothing else gives a reward. Pass score=... to "
            'the task set, such as score=rlready.rewards.math("answer"), or name an environment by --env.'
        )
    return Subject(name, splits, environment(env, splits["train"]), cut, played=env is not None)


def environment(target: str | None, tasks: TaskSet) -> EnvFactory:
    """The environment named by `my_env.py:Thermostat`, or a single question and answer.

    Where every task has a list under "choices", answers are limited to it.

    Raises:
        UserError: no such file or name, or it is not an environment.
    """
    if target is None:
        return chat(tasks)
    found = load_object(target, default="env")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, Env)):
        raise UserError(
            f"{target} is no environment: a subclass of rlready.Env, or a function that makes one, is wanted."
        )

    def make() -> Env:
        made = found()
        if not isinstance(made, Env):
            raise UserError(f"{target} made a {type(made).__name__}, not an Env.")
        return made

    make.__name__ = target.partition(":")[2] or "env"
    return make


def load_object(target: str, *, default: str) -> Any:
    """The object named by `file.py:name` or `package.module:name`.

    Raises:
        UserError: no such file or name, or the file is not Python; what else its code raises is raised.
    """
    place, _, name = target.partition(":")
    module = _load_module(place)
    name = name or default
    if not hasattr(module, name):
        names = [n for n, v in vars(module).items() if not n.startswith("_") and not isinstance(v, ModuleType)]
        raise UserError(f"{place}: {did_you_mean('name', name, names)}")
    return getattr(module, name)


def _load_module(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py":
        from rlready.recipes.registry import papers

        if place in {p.slug for p in papers()}:
            raise UserError(f"{place} is a recipe; start it with: rlready run {place}")
        if path.suffix in (".jsonl", ".json", ".parquet", ".csv") and path.exists():
            reader = "from_parquet" if path.suffix == ".parquet" else "from_jsonl"
            raise UserError(
                f"{place} is data. Say what to do with it in a file my_task.py, such as tasks = rlready.TaskSet."
                f'{reader}("{place}", prompt="question", score=rlready.rewards.math("answer")), '
                "and give my_task.py:tasks."
            )
        if not re.fullmatch(r"\w+(\.\w+)*", place):
            raise UserError(f'"{place}" is no Python file or module. Give a file and a name, such as my_task.py:tasks.')
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and place.startswith(error.name):
                raise UserError(
                    f"There is no module {place}. Give a file and a name, such as my_task.py:tasks."
                ) from error
            raise
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give a file and a name, such as my_task.py:tasks.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with blamed(place):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def blamed(place: str) -> Iterator[None]:
    """Say in one sentence what a user's own file raised, and in which of its lines.

    Raises:
        UserError: it raised something, or is not Python.
    """
    try:
        yield
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}, column {error.offset}: {error.msg}.") from error
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if Path(f.filename).resolve() == Path(place).resolve()]
        if not own:
            raise
        text = traceback.format_exception_only(error)[-1].strip().rstrip(".")
        last = frames[-1]
        deeper = "" if last is own[-1] else f" ({Path(last.filename).name}, line {last.lineno})"
        raise UserError(f"{place}, line {own[-1].lineno}: {text}{deeper}.") from error


def check_algorithm(name: str) -> None:
    """Refuse a name that is not one.

    Raises:
        UserError: no such algorithm; names the nearest.
    """
    if name.lower() not in ALGORITHMS:
        raise did_you_mean("algorithm", name, ALGORITHMS, see="rlready algorithms")


def check_model(model: str) -> None:
    """Refuse what cannot be trained yet.

    Raises:
        UserError: any model but "tiny".
    """
    if model != "tiny":
        raise UserError(
            f'"{model}" cannot be trained yet: models other than tiny come with the hf extra in a later release. '
            "Use --model tiny."
        )


def check_settings(config: TrainConfig, algorithm: str) -> None:
    """Refuse settings under which an algorithm learns nothing, or from what is too old.

    Raises:
        UserError: an algorithm that compares the episodes of a group has groups of one; max_lag is above what the
            algorithm tolerates; cloning would be of all that the policy says.
    """
    chosen = algorithm_of(config, algorithm)
    if isinstance(chosen, SFT) and not chosen.only_right:
        raise UserError(
            f"{algorithm} would clone all answers, right or wrong; set {algorithm}.only_right=true, or use "
            "another algorithm: rlready algorithms."
        )
    check_lag(chosen, config.max_lag)
    check_group(chosen, config.group_size)


def check_lengths(subject: Subject, policy: TinyPolicy, max_tokens: int) -> None:
    """Refuse prompts that leave no room for an answer, before the first step and not in the middle of a run.

    Raises:
        UserError: a prompt is too long; names the task.
    """
    if subject.played:
        return
    most = policy.config.max_len - max_tokens
    for tasks in subject.everything:
        for task in tasks:
            length = len(policy.renderer.render(task.prompt))
            if length > most:
                raise UserError(
                    f"The prompt of task {task.id} ({tasks.name}) has {length} tokens; with answers of {max_tokens} "
                    f"the model's {policy.config.max_len} leave room for {max(most, 0)}. Set "
                    f"tiny.max_len={length + max_tokens}, or leave such tasks out."
                )


def tokenizer(
    subject: Subject, kind: Literal["auto", "words", "bpe"] = "auto", vocab_size: int = 1024, seed: int = 0
) -> TextTokenizer:
    """A tokenizer of what tasks hold and, after a few episodes of random play, of what the environment says."""
    texts = [text for tasks in subject.everything for text in texts_of(tasks)]
    if subject.played:
        texts += listen(subject.splits["train"], subject.env, seed=seed)
    return build_tokenizer(texts, "bpe" if kind == "auto" and subject.played else kind, vocab_size)


def policy_of(subject: Subject, config: TrainConfig, seed: int, folder: Path) -> TinyPolicy:
    """The tiny policy of a run, from scratch: its tokenizer is the one in `folder`, or a new one that is kept there.

    So a run that is resumed or evaluated reads its ids as it learned them, whatever became of the tasks.
    """
    place = folder / "tokenizer"
    if place.exists():
        words = TextTokenizer.load(place)
    else:
        words = tokenizer(subject, config.tokenizer, config.vocab_size, seed)
        with fresh_folder(place) as work:
            words.save(work, bos="<s>", eos="<end>")
    return tiny_policy(
        subject.splits["train"], tokenizer=words, shape=config.tiny, optimizer=config.optimizer, seed=seed
    )


def same_target(a: str, b: str) -> bool:
    """Whether two of `file.py:name` mean the same, wherever the command was started."""
    (file_a, _, name_a), (file_b, _, name_b) = a.partition(":"), b.partition(":")
    return Path(file_a).name == Path(file_b).name and name_a == name_b


def algorithm_of(config: Any, name: str) -> Algorithm:
    """The algorithm that a configuration made by `config_type` holds."""
    found = getattr(config, table_of(name))
    assert isinstance(found, Algorithm)
    return found


@dataclass
class Restored:
    """A run made by `rlready train`, ready to be looked at: its tasks, and its policy at the last checkpoint.

    Attributes:
        name, folder: the run's.
        step: the checkpoint's.
        settings: those of the run.
        subject: what it was trained on.
        policy: as it was at that step.
        algorithm_name, algorithm: what trained it, not bound to anything.
    """

    name: str
    folder: Path
    step: int
    settings: Any
    subject: Subject
    policy: TinyPolicy
    algorithm_name: str
    algorithm: Algorithm


def restore(name: str, root: str) -> Restored:
    """Read a run made by `rlready train`.

    Raises:
        UserError: there is no such run, it was made by a recipe, or it has no checkpoint yet.
    """
    from rlready.checkpoint import load_checkpoint
    from rlready.policy.base import require_learner
    from rlready.run_read import load_run

    loaded = load_run(name, root)
    if "tasks" not in loaded.header:
        raise UserError(
            f"Run {loaded.name} was made by a recipe, which measures itself: rlready runs show {loaded.name}."
        )
    folders = sorted(loaded.dir.glob("checkpoints/run/step-*"))
    if not folders:
        raise UserError(f"Run {loaded.name} has no checkpoint yet.")
    by = str(loaded.header["algorithm"])
    settings = settings_of(by, table=loaded.config)
    found = subject(loaded.header["tasks"], loaded.header.get("env"))
    policy = policy_of(found, settings, int(loaded.header["seed"]), loaded.dir)
    algorithm = algorithm_of(settings, by)
    parts = {"learner": cast("Stateful", require_learner(policy)), "algorithm": algorithm}
    record = load_checkpoint(folders[-1], parts)
    policy.sync()
    return Restored(loaded.name, loaded.dir, int(record["step"]), settings, found, policy, by, algorithm)
