"""Model and tokenizer from a name, a folder, an adapter's folder, or a GGUF file."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rlready.errors import UserError
from rlready.policy.hf.packages import need_peft, need_transformers

OURS = "rlready.json"


@dataclass(frozen=True)
class LoraSettings:
    """A low-rank adapter (Hu et al. 2021): each chosen matrix W becomes W + (alpha / rank) * B A.

    Attributes:
        rank: of the adapter.
        alpha: its scale.
        dropout: of its input, in training.
        targets: names of the modules, or "all-linear" for all linear layers but the output.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: str | tuple[str, ...] = "all-linear"


@dataclass
class Loaded:
    """What was read.

    Attributes:
        model: a `PreTrainedModel`, or a `PeftModel` with a trainable adapter.
        tokenizer: its tokenizer.
        base: where the base model came from.
        adapted: whether there is an adapter.
        ours: what `HFPolicy.save` noted; empty for folders of others.
    """

    model: Any
    tokenizer: Any
    base: str
    adapted: bool = False
    ours: dict[str, Any] = field(default_factory=dict)


def load(source: str | Path, lora: LoraSettings | None, dtype: str, device: str | None, seed: int) -> Loaded:
    """Read a model, and give it an adapter where one is asked for.

    Args:
        source: name on the hub, folder of a model or an adapter, GGUF file, or folder with one GGUF file.
        lora: a new adapter; None trains all weights, or the adapter that the folder holds.
        dtype: "float32", "bfloat16", "float16", or "auto": that of the file where an adapter learns, single precision
            where all weights do.
        device: as torch names it; None takes the GPU if there is one.
        seed: of the new adapter's weights.

    Raises:
        UserError: a package is missing, there is no such model, or it is not a causal language model.
    """
    folder = Path(source)
    adapter = folder if (folder / "adapter_config.json").is_file() else None
    ours: dict[str, Any] = {}
    if (folder / OURS).is_file():
        ours = json.loads((folder / OURS).read_text(encoding="utf-8"))
    base = str(source)
    if adapter is not None:
        if lora is not None:
            raise UserError(f"{folder} holds an adapter already; leave lora out to go on training it.")
        base = ours.get("base") or json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    adapted = adapter is not None or lora is not None
    model, tokenizer = _base(base, dtype, adapted)
    if adapter is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of names between peft and transformers
            model = need_peft().PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
        if (adapter / "tokenizer_config.json").is_file():
            tokenizer = need_transformers().AutoTokenizer.from_pretrained(str(adapter))
    elif lora is not None:
        model = _adapt(model, lora, base, seed)
    else:
        model.requires_grad_(True)
    return Loaded(model.to(where), tokenizer, base, adapted, ours)


def _base(source: str, dtype: str, adapted: bool) -> tuple[Any, Any]:
    transformers = need_transformers()
    place, file = _gguf(Path(source))
    options = {"gguf_file": file} if file else {}
    unpacked: dict[str, Any] = {}
    if file and hasattr(transformers, "GgufConfig"):  # else transformers always unpacks; packed weights cannot learn
        unpacked = {"quantization_config": transformers.GgufConfig(dequantize=True)}
    wanted: Any = dtype if adapted or dtype != "auto" else "float32"
    if wanted != "auto" and not isinstance(getattr(torch, wanted, None), torch.dtype):
        raise UserError(f'dtype "{dtype}" is none of auto, float32, bfloat16, float16.')
    kind = "auto" if wanted == "auto" else getattr(torch, wanted)
    # Reading a GGUF file draws a progress bar that no setting turns off.
    quiet = redirect_stderr(io.StringIO()) if file else nullcontext()
    try:
        with quiet:
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **options)
            model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=kind, **options, **unpacked)
    except ImportError as error:
        raise UserError(f"{source} needs a package that is not installed: {error}") from error
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"{source} could not be loaded as a causal language model ({first}). Give a model's name on the hub, a "
            "folder with config.json and weights, an adapter's folder, or a GGUF file."
        ) from error
    if file:  # it comes dequantised, but still says that it is quantised
        vars(model).pop("hf_quantizer", None)
        vars(model.config).pop("quantization_config", None)
    return model, tokenizer


def _gguf(path: Path) -> tuple[str, str | None]:
    """Folder and file name of a GGUF model; the path itself and None for others.

    Raises:
        UserError: a folder holds several, or nothing that is a model.
    """
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), path.name
    if not path.is_dir() or (path / "config.json").is_file():
        return str(path), None
    files = sorted(p.name for p in path.glob("*.gguf"))
    if len(files) == 1:
        return str(path), files[0]
    what = f"{len(files)} GGUF files; name one of them" if files else "neither config.json nor a GGUF file"
    raise UserError(f"The folder {path} holds {what}.")


def _adapt(model: Any, lora: LoraSettings, base: str, seed: int) -> Any:
    peft = need_peft()
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names between peft and transformers
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, config)
        except ValueError as error:
            raise UserError(f"No adapter fits {base} with targets {lora.targets}: {error}") from error
