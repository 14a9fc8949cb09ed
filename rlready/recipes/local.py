"""What the full presets read from this machine: a Hugging Face checkpoint, and files of problems with their answers.

    rlready run vineppo --preset full model=PATH data=FILE

A file has one JSON object a line with a problem and its answer; the columns' names are settings. Without files of their
own, dev and test problems are held out by hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, Policy, require_learner
from rlready.policy.hf import HFPolicy, LoraSettings
from rlready.rewards import verify_math
from rlready.run import Run
from rlready.run_report import Table
from rlready.scoring import RewardFn
from rlready.tasks.base import TaskSet
from rlready.types import Task, Verdict

GIB = 2**30
PLAIN = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n"
    "{% elif m.role == 'assistant' %}Solution:\n{{ m.content }}{{ eos_token }}\n\n"
    "{% else %}Problem:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Solution:\n{% endif %}"
)
"""The chat template for base models, which have none. Ours."""


@dataclass(frozen=True)
class Local:
    """Where model and data are, and how the model is loaded.

    Attributes:
        model: folder of a Hugging Face checkpoint or of an adapter, or a GGUF file.
        data: JSONL file of problems to train on.
        test: JSONL files of held-out problems; the first one is the headline. None: `held_out` of the data.
        problem, answer: their columns.
        held_out: share of the data that is held out as dev, and as much again as test where there are no test files.
        sampler: what draws the answers; "hf" is the one that there is.
        lora: rank of an adapter to train; 0 trains all weights, for which the learning rates are meant.
        dtype, device: of the model, as `HFPolicy.load` has them.
        template: file with a Jinja chat template in place of the tokenizer's own.
        max_batch: most answers decoded together.
        micro_tokens: padded tokens per micro-batch of the learner; None: what keeps the logits below 256 MB.
        exact: decode each answer alone, so that it is the same to the last bit whatever else is drawn.
        deadline: seconds in which an answer must be there and graded.
    """

    model: str = ""
    data: str = ""
    test: tuple[str, ...] = ()
    problem: str = "problem"
    answer: str = "answer"
    held_out: float = 0.05
    sampler: Literal["hf", "process", "vllm"] = "hf"
    lora: int = 0
    dtype: str = "auto"
    device: str | None = None
    template: str | None = None
    max_batch: int = 64
    micro_tokens: int | None = None
    exact: bool = False
    deadline: float = 3600.0


def check(config: Local, slug: str) -> None:
    """Refuse what is missing, before anything is loaded.

    Args:
        config: what was given.
        slug: of the recipe, for messages.

    Raises:
        UserError: no model or data, a path that is not there, or a sampler that this release does not have.
    """
    how = f"{slug}, preset full: "
    if not config.model:
        raise UserError(
            f"{how}no model is given. Add model=PATH, the folder of a Hugging Face checkpoint (--plan says what it "
            "takes)."
        )
    if not Path(config.model).exists():
        raise UserError(f"{how}there is no {config.model}; model= is the folder of a checkpoint on this machine.")
    if not config.data:
        raise UserError(
            f"{how}no data is given. Add data=FILE, a JSONL file whose records have the columns {config.problem} and "
            f"{config.answer} (or say problem=... and answer=...)."
        )
    files = [config.data, *config.test, *([config.template] if config.template else [])]
    for file in files:
        if not Path(file).is_file():
            raise UserError(f"{how}there is no file {file}.")
    if not 0 < config.held_out < 0.5:
        raise UserError(f"{how}held_out is {config.held_out:g}; it must be above 0 and below 0.5.")
    if config.sampler == "vllm":
        raise UserError(f"{how}sampler=vllm is not in this release; sampler=hf runs the same code, more slowly.")
    if config.sampler == "process":
        raise UserError(
            f"{how}a Hugging Face model samples in this process and takes new weights between batches, not in flight; "
            "leave sampler=hf."
        )


def policy_of(run: Run, config: Local, optimizer: OptimizerConfig) -> HFPolicy:
    """The model as a policy."""
    own = None if config.template is None else Path(config.template).read_text(encoding="utf-8")
    return HFPolicy.load(
        config.model, lora=LoraSettings(rank=config.lora, alpha=2.0 * config.lora) if config.lora else None,
        dtype=config.dtype, device=config.device, seed=run.seed, optimizer=optimizer, exact=config.exact,
        max_batch=config.max_batch, micro_tokens=config.micro_tokens, chat_template=own, otherwise=PLAIN,
    )  # fmt: skip


def splits_of(
    run: Run, config: Local, score: RewardFn, *, system: str | None = None, columns: Sequence[str] = ()
) -> dict[str, TaskSet]:
    """The problems: "train", "dev", "test", then further test files by the names of their files.

    A problem of a test file is left out of the data, as is one whose answer cannot be read as mathematics, of any file;
    the run says how many.

    Args:
        run: is told; its seed cuts.
        config: names the files.
        score: the reward.
        system: a message before every problem.
        columns: further ones that every record of the data must have.

    Raises:
        UserError: a file's records cannot be used, or nothing is left to train on or to measure.
    """

    def read(file: str, more: Sequence[str] = ()) -> TaskSet:
        kept = [config.answer, *more]
        found = TaskSet.from_jsonl(
            file, score, prompt=config.problem, required=kept, columns=kept, system=system, drop_duplicates=True
        )
        good = found.filter(lambda task: _readable(task, config.answer))
        _say(run, len(found) - len(good), f"records of {file} have an answer that cannot be read as mathematics")
        return good

    data, files = read(config.data, columns), [read(file) for file in config.test]
    asked = {_asked(task) for tasks in files for task in tasks}
    fresh = data.filter(lambda task: _asked(task) not in asked)
    _say(run, len(data) - len(fresh), f"records of {config.data} are problems of the test files")
    shares = {"dev": config.held_out, "test": 0.0 if files else config.held_out}
    out = fresh.split({"train": 1 - sum(shares.values()), **shares}, key=_asked)
    if files:
        out["test"] = files[0]
        for file, tasks in zip(config.test[1:], files[1:], strict=True):
            out[_free(Path(file).stem, out)] = tasks
    none_empty(out, config, len(fresh))
    return out


def none_empty(splits: Mapping[str, TaskSet], config: Local, read: int) -> None:
    """See to it that every split has something.

    Raises:
        UserError: one has nothing; says how many problems were `read`, and the ways out.
    """
    for name, tasks in splits.items():
        if not len(tasks):
            raise UserError(
                f"{config.data}: of {read} problems none falls to {name}; give more, raise held_out (now "
                f"{config.held_out:g}), or name test files."
            )


@dataclass(frozen=True)
class Start:
    """A policy's weights, to begin from again: arms learn one after the other in the same module."""

    policy: Policy
    state: Mapping[str, Any]

    @classmethod
    def of(cls, policy: Policy, optimizer: OptimizerConfig) -> Start:
        """As the policy is now, kept in main memory."""
        learner = require_learner(policy)
        learner.configure(optimizer)  # no moments of what came before are kept
        state = learner.state_dict()
        return cls(policy, state | {"model": {name: tensor.cpu() for name, tensor in state["model"].items()}})

    def again(self, optimizer: OptimizerConfig) -> None:
        """Put the weights back, with a fresh optimizer."""
        learner = require_learner(self.policy)
        learner.load_state_dict(self.state)
        learner.configure(optimizer)
        self.policy.sync()


def memory(models: Mapping[str, float]) -> Table:
    """What training takes on this release's one device, GiB, without keys and values and activations.

    All weights: single precision weights, gradients and two moments, a frozen reference, and the sampler's copy while
    an update is made, 24 bytes a weight. An adapter: half precision weights, 2 bytes.

    Args:
        models: billions of parameters by name.
    """
    return Table(
        "In this release, on one device: GiB of GPU memory, keys, values and activations besides",
        ("model", "all weights", "adapter (lora=16)", "one GPU of"),
        [
            (name, f"{24e9 * b / GIB:.0f}", f"{2e9 * b / GIB:.0f}", _gpu(24e9 * b / GIB, 2e9 * b / GIB))
            for name, b in models.items()
        ],
    )


def _gpu(whole: float, adapter: float) -> str:
    """The smallest usual GPU with a third of room besides."""
    for size in (24, 40, 80, 141):
        if whole * 4 / 3 <= size:
            return f"{size} GB"
    size = next((s for s in (24, 40, 80, 141) if adapter * 4 / 3 <= s), 0)
    return f"{size} GB, with lora" if size else "none"


def needs_cluster() -> str:
    """A sentence for plans: what the paper's scale takes beyond this release."""
    return (
        "This release runs the preset on one device with a Hugging Face sampler (model=PATH data=FILE). The paper's "
        "machines serve by vLLM and train in parallel, which it does not have; the numbers of samples above say what "
        "one device would have to draw."
    )


def _readable(task: Task, column: str) -> bool:
    return verify_math("0", task.data[column], response=False).verdict is not Verdict.GRADER_FAILED


def _asked(task: Task) -> str:
    return "\n".join(m.text for m in task.prompt if m.role == "user").strip()


def _say(run: Run, n: int, what: str) -> None:
    if n:
        run.say(f"{n} {what}, and were left out.")


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """A name that is not taken."""
    if name not in taken:
        return name
    return next(f"{name} {i}" for i in range(2, len(taken) + 3) if f"{name} {i}" not in taken)
