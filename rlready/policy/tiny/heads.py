"""Log-probabilities and entropies of tokens without a [tokens x vocabulary] tensor in the graph.

Logits are made a chunk at a time, in the forward pass and again in the backward pass, where their gradient is known
in closed form. With z the logits after temperature and support, p = softmax(z), H the entropy:

    d log p(a) / dz = onehot(a) - p            d H / dz = -p * (log p + H)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlready.types import IntArray

_CHUNK_ELEMENTS = 1 << 19


@dataclass(slots=True)
class Supports:
    """Which ids each token could have been drawn from.

    Attributes:
        index: for each of M tokens an index into `sets`, or -1 where the whole vocabulary was open, [M] int64.
        sets: distinct id arrays.
    """

    index: Tensor
    sets: Sequence[IntArray]

    def mask(self, begin: int, end: int, vocab_size: int) -> Tensor | None:
        """Ids that were closed to tokens begin..end-1, [end - begin, V] bool; None where nothing was."""
        index = self.index[begin:end]
        used, inverse = torch.unique(index, return_inverse=True)
        if not len(used) or int(used[-1]) < 0:
            return None
        closed = torch.ones(len(used), vocab_size, dtype=torch.bool)
        for row, which in enumerate(used.tolist()):
            closed[row, slice(None) if which < 0 else torch.from_numpy(self.sets[which])] = False
        return closed.index_select(0, inverse)


@dataclass(slots=True)
class _Problem:
    """What a distribution over tokens is made of, but for hidden states and output matrix."""

    targets: Tensor
    temperature: Tensor | None
    supports: Supports | None
    entropy: bool

    def chunks(self, hidden: Tensor, output: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits after temperature and support, chunk by chunk, [c, V] each."""
        vocab = output.shape[0]
        size = max(256, _CHUNK_ELEMENTS // vocab)
        for begin in range(0, len(hidden), size):
            at = slice(begin, min(begin + size, len(hidden)))
            logits = torch.mm(hidden[at], output.t())
            if self.temperature is not None:
                logits.div_(self.temperature[at].unsqueeze(-1))
            if self.supports is not None:
                closed = self.supports.mask(at.start, at.stop, vocab)
                if closed is not None:
                    if closed.gather(-1, self.targets[at].unsqueeze(-1)).any():
                        raise ValueError(
                            "A row holds a token outside the support that it says it was drawn from: tokens and "
                            "`support_of` do not belong together."
                        )
                    logits.masked_fill_(closed, -torch.inf)
            yield at, logits


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, output: Tensor, problem: _Problem) -> tuple[Tensor, Tensor]:
        logprobs, log_z = hidden.new_empty(len(hidden)), hidden.new_empty(len(hidden))
        entropy = hidden.new_zeros(len(hidden))
        for at, logits in problem.chunks(hidden, output):
            total = torch.logsumexp(logits, dim=-1)
            log_z[at] = total
            logprobs[at] = logits.gather(-1, problem.targets[at].unsqueeze(-1)).squeeze(-1) - total
            if problem.entropy:
                probs = logits.sub_(total.unsqueeze(-1)).exp_()
                entropy[at] = torch.special.entr(probs).sum(-1)
        ctx.save_for_backward(hidden, output, log_z, entropy)
        ctx.problem = problem
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, output, log_z, entropy = ctx.saved_tensors
        by_logprob, by_entropy = grads
        problem: _Problem = ctx.problem
        grad_hidden, grad_output = torch.empty_like(hidden), torch.zeros_like(output)
        for at, logits in problem.chunks(hidden, output):
            logits.sub_(log_z[at].unsqueeze(-1))
            probs = logits.exp()
            grad = probs * -by_logprob[at].unsqueeze(-1)
            grad.scatter_add_(-1, problem.targets[at].unsqueeze(-1), by_logprob[at].unsqueeze(-1))
            if problem.entropy:
                slope = logits.masked_fill_(probs == 0, 0.0).add_(entropy[at].unsqueeze(-1)).mul_(probs)
                grad.sub_(slope.mul_(by_entropy[at].unsqueeze(-1)))
            if problem.temperature is not None:
                grad.div_(problem.temperature[at].unsqueeze(-1))
            torch.mm(grad, output, out=grad_hidden[at])
            grad_output.addmm_(grad.t(), hidden[at])
        return grad_hidden, grad_output, None


def token_logprobs(
    hidden: Tensor,
    output: Tensor,
    targets: Tensor,
    *,
    temperature: Tensor | None = None,
    supports: Supports | None = None,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of given tokens, and the entropy of their distributions.

    Args:
        hidden: the states that predict them, [M, D].
        output: output matrix, [V, D].
        targets: the tokens, [M] int64.
        temperature: of each token's distribution, [M]; None is 1 everywhere.
        supports: which ids were open; None is all.
        entropy: also return the entropies, in nats.

    Returns:
        Log-probs [M] and entropies [M] or None, differentiable with respect to `hidden` and `output`.

    Raises:
        ValueError: a token is outside its support.
    """
    problem = _Problem(targets, temperature, supports, entropy)
    logprobs, entropies = _Chunked.apply(hidden, output, problem)  # type: ignore[no-untyped-call]
    return logprobs, entropies if entropy else None
