"""A small random Llama with a word-level tokenizer and a chat template, written as a folder; nothing is downloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from rlready.policy.base import Sample, SampleRequest

torch.set_num_threads(1)
pytest.importorskip("transformers")
pytest.importorskip("peft")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>_/|.,:;?!\n {}\"'[]()-+*=$#\\"))
WORDS = "system user assistant tool red green blue what is it the sky says one two three".split()  # noqa: SIM905


def folder(
    path: Path, *, template: str | None = CHATML, seed: int = 0, sharp: float = 20.0, context: int = 512
) -> Path:
    """A model's folder. `sharp` scales the output so that distributions are far from flat."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {t: i for i, t in enumerate(["<unk>", "<|im_start|>", "<|im_end|>", "</s>", *LETTERS, *WORDS])}
    assert len(vocab) == 4 + len(LETTERS) + len(WORDS)  # a word that is there twice would leave an id without a word
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words = "|".join(sorted(WORDS, key=len, reverse=True))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(rf"(?:{words})(?![a-z0-9])|[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="</s>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
    tokenizer.chat_template = template
    config = LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, tie_word_embeddings=False, eos_token_id=3,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharp)
        model.model.embed_tokens.weight.mul_(20)
        for _, p in model.model.layers.named_parameters():
            if p.ndim > 1:
                p.mul_(6)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def run(sampler: object, requests: Sequence[SampleRequest]) -> list[Sample]:
    return asyncio.run(sampler.sample(requests))  # type: ignore[attr-defined]
