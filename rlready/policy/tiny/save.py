"""A policy as a Hugging Face folder, and back.

    config.json, model.safetensors      LlamaForCausalLM, read by `transformers` with the same logits
    tokenizer.json, tokenizer_config.json
    value_head.safetensors              ours; other tools leave it alone
    rlready.json                        ours: shape, dialect, version

Names and layouts are converted on the way: joint matrices are split, and the rows of query and key are permuted, since
Hugging Face's RoPE turns the pairs (i, i + half) of a head where ours turns (2i, 2i + 1).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlready.errors import UserError
from rlready.policy.tiny.model import TinyConfig, check_state

FORMAT = 1


def to_llama(config: TinyConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under Hugging Face's names and in its layout; the value head is left out."""
    c = config
    out = {"model.embed_tokens.weight": state["embed_tokens.weight"], "model.norm.weight": state["norm.weight"]}
    if not c.tie:
        out["lm_head.weight"] = state["head.weight"]
    for i in range(c.layers):
        ours, theirs = f"blocks.{i}.", f"model.layers.{i}."
        q, k, v = state[ours + "qkv.weight"].tensor_split((c.dim, c.dim + c.kv_heads * c.head_dim))
        gate, up = state[ours + "gate_up.weight"].chunk(2)
        out |= {
            theirs + "input_layernorm.weight": state[ours + "norm_attention.weight"],
            theirs + "self_attn.q_proj.weight": _halves(q, c.head_dim),
            theirs + "self_attn.k_proj.weight": _halves(k, c.head_dim),
            theirs + "self_attn.v_proj.weight": v,
            theirs + "self_attn.o_proj.weight": state[ours + "out.weight"],
            theirs + "post_attention_layernorm.weight": state[ours + "norm_ffn.weight"],
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": state[ours + "down.weight"],
        }
    return {name: tensor.detach().clone().contiguous() for name, tensor in out.items()}


def from_llama(config: TinyConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `to_llama`.

    Raises:
        KeyError: a weight is missing.
    """
    c = config
    out = {"embed_tokens.weight": theirs["model.embed_tokens.weight"], "norm.weight": theirs["model.norm.weight"]}
    if not c.tie:
        out["head.weight"] = theirs["lm_head.weight"]
    for i in range(c.layers):
        name = f"model.layers.{i}."
        q, k, v = (theirs[f"{name}self_attn.{x}_proj.weight"] for x in "qkv")
        ours = f"blocks.{i}."
        out |= {
            ours + "norm_attention.weight": theirs[name + "input_layernorm.weight"],
            ours + "qkv.weight": torch.cat((_pairs(q, c.head_dim), _pairs(k, c.head_dim), v)),
            ours + "out.weight": theirs[name + "self_attn.o_proj.weight"],
            ours + "norm_ffn.weight": theirs[name + "post_attention_layernorm.weight"],
            ours + "gate_up.weight": torch.cat(
                (theirs[name + "mlp.gate_proj.weight"], theirs[name + "mlp.up_proj.weight"])
            ),
            ours + "down.weight": theirs[name + "mlp.down_proj.weight"],
        }
    return {name: tensor.to(torch.float32) for name, tensor in out.items()}


def _halves(rows: Tensor, width: int) -> Tensor:
    """Rows of each head from the order (2i, 2i + 1) to the order (i, i + half)."""
    return rows.view(-1, width // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _pairs(rows: Tensor, width: int) -> Tensor:
    """Inverse of `_halves`."""
    return rows.view(-1, 2, width // 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def llama_config(config: TinyConfig, bos: int | None, eos: int | None) -> dict[str, Any]:
    """The `config.json` of a checkpoint."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": bos,
        "eos_token_id": eos,
    }


def write_weights(
    folder: Path,
    config: TinyConfig,
    state: Mapping[str, Tensor],
    *,
    bos: int | None,
    eos: int | None,
    extra: dict[str, Any],
) -> None:
    """Write the model's files into an existing folder; `extra` goes into `rlready.json`."""
    save_file(to_llama(config, state), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(llama_config(config, bos, eos), indent=2) + "\n", encoding="utf-8")
    if config.value_head:
        head = {name: state[name].detach().clone().contiguous() for name in ("value.weight", "value.bias")}
        save_file(head, str(folder / "value_head.safetensors"))
    ours = {"format": FORMAT, "model": asdict(config), **extra}
    (folder / "rlready.json").write_text(json.dumps(ours, indent=2) + "\n", encoding="utf-8")


def read_weights(
    folder: Path, expect: TinyConfig | None = None
) -> tuple[TinyConfig, dict[str, Tensor], dict[str, Any]]:
    """Read what `write_weights` wrote.

    Args:
        folder: the checkpoint.
        expect: refuse a model of another shape than this.

    Returns:
        Shape, weights, and the contents of `rlready.json`.

    Raises:
        UserError: the folder is no checkpoint of ours, is damaged, or holds a model of another shape.
    """
    ours = _read_json(folder / "rlready.json")
    known = {f.name for f in fields(TinyConfig)}
    given = ours.get("model")
    if ours.get("format") != FORMAT or not isinstance(given, dict) or set(given) != known:
        raise UserError(f"{folder / 'rlready.json'} was written by another version of rlready, or is damaged.")
    config = TinyConfig(**given)
    if expect is not None and expect != config:
        differ = [f.name for f in fields(TinyConfig) if getattr(expect, f.name) != getattr(config, f.name)]
        raise UserError(
            f"{folder} holds another model: "
            + ", ".join(f"{name} is {getattr(config, name)}, not {getattr(expect, name)}" for name in differ)
            + "."
        )
    try:
        state = from_llama(config, load_file(str(folder / "model.safetensors")))
        if config.value_head:
            state |= load_file(str(folder / "value_head.safetensors"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is no complete checkpoint: {error}.") from error
    except KeyError as error:
        raise UserError(f"{folder} holds another model than its rlready.json says: it lacks {error}.") from error
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder} is damaged: {str(error).splitlines()[0]}.") from error
    check_state(config, state, f"The weights in {folder}")
    return config, state, ours


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} holds no rlready policy: there is no {path.name}.") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}, column {error.colno}: {error.msg}.") from error
    if not isinstance(record, dict):
        raise UserError(f"{path} holds no JSON object.")
    return record


class fresh_folder:
    """Fill a folder beside `target`, then put it in its place: a reader sees the old one or the new one, never half."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.work = target.with_name(f".{target.name}.{os.getpid()}.new")

    def __enter__(self) -> Path:
        """Make the folder that is to be filled."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        return self.work

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Swap it in, or remove it after an error."""
        if kind is not None:
            shutil.rmtree(self.work, ignore_errors=True)
            return
        for path in self.work.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        old = self.target.with_name(f".{self.target.name}.{os.getpid()}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.target.exists():
            os.replace(self.target, old)
        os.replace(self.work, self.target)
        shutil.rmtree(old, ignore_errors=True)
