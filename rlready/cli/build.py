"""From what is written on the command line to objects: a task set from a file, an environment, a tiny policy."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from rlready.algorithms import ALGORITHMS, Algorithm
from rlready.envs.base import Env, EnvFactory
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError, did_you_mean
from rlready.policy.base import OptimizerConfig
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import TextTokenizer, bpe_tokenizer, word_tokenizer
from rlready.tasks.base import TaskSet

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}
_FEWEST_TO_SPLIT, _MOST_WORDS = 20, 2000


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
        eval_every: steps between evaluations on dev; 0 evaluates at the end only.
        save_every: steps between checkpoints.
        tokenizer: "words" (every word of the tasks is one token), "bpe" (can write anything), or "auto": words where
            there are at most 2,000.
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
    eval_every: int = 20
    save_every: int = 20
    tokenizer: Literal["auto", "words", "bpe"] = "auto"
    vocab_size: int = 1024
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-3))
    tiny: TinyConfig = field(default_factory=lambda: TinyConfig(dim=64, layers=2, heads=4, kv_heads=1))


def config_type(algorithm: str) -> type[Any]:
    """`TrainConfig` with the fields of a known algorithm under its name."""
    name = algorithm.lower()
    kind = ALGORITHMS[name]
    extra: list[tuple[str, Any, Any]] = [(name, kind, field(default_factory=kind))]
    return make_dataclass("TrainConfig", extra, bases=(TrainConfig,), frozen=True)


@dataclass
class Subject:
    """What a policy is trained on.

    Attributes:
        name: for the run's folder.
        splits: "train", "dev" and "test"; the same tasks three times where they are too few to cut.
        env: makes environments.
        cut: whether the splits are disjoint.
    """

    name: str
    splits: Mapping[str, TaskSet]
    env: EnvFactory
    cut: bool

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
            f"{target} is a {type(found).__name__}; a TaskSet, or a mapping of split names to them, is wanted."
        )
    if not len(splits["train"]):
        raise UserError(f"{target} holds no tasks.")
    return Subject(name, splits, environment(env, splits["train"]), cut)


def environment(target: str | None, tasks: TaskSet) -> EnvFactory:
    """The environment named by `my_env.py:Thermostat`, or a single question and answer.

    Where every task has a list under "choices", answers are limited to it.

    Raises:
        UserError: no such file or name, or it is not an environment.
    """
    if target is None:
        limited = all(isinstance(t.data.get("choices"), (list, tuple)) and t.data["choices"] for t in tasks)
        return lambda: ChatEnv(choices="choices" if limited else None)
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
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and place.startswith(error.name):
                raise UserError(
                    f"There is no module {place}. Give a file and a name, such as my_task.py:tasks."
                ) from error
            raise
    if not path.exists():
        raise UserError(f"There is no file {path}. Give a file and a name, such as my_task.py:tasks.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}, column {error.offset}: {error.msg}.") from error
    return module


def check_algorithm(name: str) -> None:
    """Refuse what learns from demonstrations, since training here is on the policy's own episodes.

    Raises:
        UserError: no such algorithm, or one without a policy stream.
    """
    kind = ALGORITHMS.get(name.lower())
    if kind is None:
        raise did_you_mean("algorithm", name, ALGORITHMS, see="rlready algorithms")
    if "policy" not in kind().streams:
        others = ", ".join(n for n, k in ALGORITHMS.items() if "policy" in k().streams)
        raise UserError(f"{name} learns from demonstrations, and rlready train has none. Use one of {others}.")


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


def tokenizer(
    subject: Subject, kind: Literal["auto", "words", "bpe"] = "auto", vocab_size: int = 1024
) -> TextTokenizer:
    """A tokenizer of the tasks' text: prompts and all strings of their data, so that answers can be written."""
    texts = [text for tasks in subject.everything for task in tasks for text in _texts(task.prompt, task.data)]
    if kind == "auto":
        words = {word for text in texts for word in text.split()}
        kind = "words" if len(words) <= _MOST_WORDS else "bpe"
    if kind == "words":
        return word_tokenizer(texts, ("<s>", "<turn>", "<end>"))
    return bpe_tokenizer(texts, vocab_size)


def renderer(subject: Subject, kind: Literal["auto", "words", "bpe"] = "auto", vocab_size: int = 1024) -> ChatRenderer:
    """The compact dialect over `tokenizer`, every turn closed by an end token."""
    return ChatRenderer(tokenizer(subject, kind, vocab_size), bos="<s>", turn="<turn>", end="<end>")


def tiny_policy(subject: Subject, config: TrainConfig, seed: int) -> TinyPolicy:
    """A tiny transformer from scratch, with a tokenizer of the tasks' text."""
    render = renderer(subject, config.tokenizer, config.vocab_size)
    shape = replace(config.tiny, vocab_size=len(render.tokenizer))
    return TinyPolicy.create(render, shape, seed=seed, optimizer=config.optimizer)


def algorithm_of(config: Any, name: str) -> Algorithm:
    """The algorithm that a configuration made by `config_type` holds."""
    found = getattr(config, name.lower())
    assert isinstance(found, Algorithm)
    return found


def _texts(prompt: Iterable[Any], data: Any) -> Iterable[str]:
    yield from (message.text for message in prompt)
    stack = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, (int, float)):
            yield str(value)
