"""Every check of the doctor by name: what it finds, why that matters, and what to do. `docs/doctor.md` prints it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlready.findings import Finding, Findings


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        area: which part of a set-up it looks at.
        finds: what it finds.
        why: why that matters.
        mend: what to do.
    """

    area: str
    finds: str
    why: str
    mend: str


_RETOKENISED = "The log-probs belong to other tokens than those trained on, and the KL to the sampler spikes."
_GAP = "Every importance ratio is off before anything was learned, and the clip then acts on noise."

CHECKS: dict[str, Check] = {
    # tokens
    "round trip": Check(
        "tokens", "a text that its ids do not decode to", "The model is shown, or made to say, something else.",
        "Use one tokenizer on both ways, and normalise no text in the renderer."),
    "re-encoded": Check(
        "tokens", "a next prompt that holds other ids than the completion that was sampled", _RETOKENISED,
        "Let extend() append to prompt_ids + completion_ids, and never decode and encode a completion."),
    "prefix": Check(
        "tokens", "a next prompt that does not begin with what the model saw before", "A chat template that rewrites "
        "its head breaks a conversation into separate rows, or trains on contexts that were never seen.",
        "Use a template that only appends, or give the rewritten context a fresh start (no parent)."),
    "duplicated": Check(
        "tokens", "a completion that stands in the next prompt twice", "The model learns to repeat itself.",
        "extend() gets the new messages alone: the assistant's turn is in prompt_ids + completion_ids already."),
    "observation": Check(
        "tokens", "words of a reply that are not in the prompt's ids", "The policy is judged by what it never saw.",
        "Render every new message whole; templates for thinking often drop the head of what follows."),
    "rendering": Check(
        "tokens", "extending a context and rendering it afresh give other ids", "The model is served other contexts "
        "than it was trained on, wherever a context is rendered afresh (a restart, another engine).",
        "Make the template append-only, end tokens included."),
    "thinking": Check(
        "tokens", "thinking text that stays when a context is extended and is stripped when it is rendered",
        "The policy is trained on contexts with its thoughts and served without them, or the other way round.",
        "Strip thoughts on both ways or on neither."),
    "prompts": Check(
        "tokens", "prompts without room, or with the ids of other words", "Such tasks end at once, or cannot be told "
        "apart.", "Raise the model's length, or leave such tasks out."),
    # mask
    "mask": Check(
        "mask", "sampled tokens that are not trained, or trained tokens that were not sampled", "The policy is pushed "
        "to say what the environment says, or learns nothing.",
        "Train exactly the completion ids of the trainable turns; look at the mask below."),
    "mask values": Check(
        "mask", "weights that are no mask: negative, or as the advantages are", "Advantages and mask were swapped; "
        "bad answers are then trained like good ones.", "Pass 0 or 1 per token as the mask, advantages beside it."),
    "trained twice": Check(
        "mask", "a sampled token with weight in two rows", "Shared turns weigh more the more branches follow.",
        'Compile with shared="once", and give every row once.'),
    # log-probabilities
    "no log-probs": Check(
        "log-probs", "sampled tokens without behaviour log-probs, or all of them 0", "The ratio is then pi itself, or "
        "1 by construction, and no correction can work.", "Ask the engine for the log-probs of the sampled tokens."),
    "log-probs": Check(
        "log-probs", "a gap between the sampler's and the learner's log-probs for the same weights", _GAP,
        "Compare ids, positions, precision and adapters of both sides; train only when they agree."),
    "temperature": Check(
        "log-probs", "temperature applied on one side only", _GAP,
        "Divide the logits by the temperature before the log-softmax in the sampler and in the learner."),
    "truncation": Check(
        "log-probs", "top-k, top-p or a mask of choices renormalised on one side only", _GAP,
        "Keep the set of ids that could be drawn (Turn.support), and renormalise over it on both sides."),
    "alignment": Check(
        "log-probs", "log-probs shifted by a token", _GAP, "logprobs[t] must be log p(token t | tokens before t)."),
    "stale": Check(
        "log-probs", "rollouts older than the algorithm tolerates", "An uncorrected lag turns the policy away from "
        "what its samples say; collapse comes within tens of steps.",
        "Bound max_lag, or correct it (anchor and mismatch of the policy-gradient family)."),
    "sync": Check(
        "log-probs", "a sampler that does not act with the learner's weights after an update", "Rollouts come from the "
        "base model for ever: the reward does not move, and the ratio drifts.",
        "Load the trained weights (adapter merged) into the sampler after each step, and drop its caches."),
    "ratio": Check(
        "log-probs", "an importance ratio other than 1 before the first step", "On the policy's own samples it must be "
        "1; anything else is a mistake in ids, temperature, masks or in the ratio's formula.",
        "Compare the log-probs that the loss reads with the learner's own."),
    # loss
    "update": Check(
        "loss", "an update that raises", "Training would stop here.", "Mend what it says."),
    "advantage sign": Check(
        "loss", "a step that makes a good trajectory less likely", "The policy is trained to fail.",
        "A policy loss is -A log pi: look for a lost or doubled minus."),
    "policy gradient": Check(
        "loss", "an expected gradient that is not the policy gradient", "The update follows something else than the "
        "reward.", "Compare the loss with -A pi/pi_old, term by term."),
    "KL sign": Check(
        "loss", "a KL term that pushes away from the reference", "The policy runs from the reference, the faster the "
        "further it is.", "The loss adds +kl x KL(pi || reference); a reward subtracts it."),
    "KL ignored": Check(
        "loss", "a KL term without any gradient", "The coefficient does nothing, whatever it is set to.",
        "Compute the policy's side with gradients on, and read the coefficient."),
    "KL gradient": Check(
        "loss", "a KL term whose expected gradient is not the KL's", "Differentiating an estimate of KL alone leaves "
        "out that the policy chose the sample (its score term): k1 then has no pull, k3 another one.",
        'Weigh the estimate with pi/pi_old, or use kl_gradient="exact".'),
    "masked nan": Check(
        "loss", "a NaN outside the mask that reaches the loss", "0 x NaN is NaN: one such token ends the run.",
        "Select by the mask (torch.where) before multiplying with it."),
    "padding": Check(
        "loss", "log-probs or a loss that change with the padding", "A row is then worth more or less by the company "
        "it is in; positions may be shifted.", "Count tokens by the mask, not by the tensor's length, and give "
        "left-padded rows their own position ids and attention mask."),
    "accumulation": Check(
        "loss", "a gradient that changes with the number of micro-batches", "The memory at hand decides what is "
        "learned: short micro-batches weigh more.", "Divide by a denominator taken over the whole update."),
    "sequence ratio": Check(
        "loss", "a sequence ratio that grows with the length", "Summed log-ratios explode with the length, and "
        "every long answer is clipped.", "Average the log-ratio over the tokens of the sequence."),
    "gradient": Check(
        "loss", "a learner whose gradient is not the slope of its log-probs", "Every update goes elsewhere.",
        "Compare backward with finite differences, layer by layer."),
    # credit
    "credit": Check(
        "credit", "advantages that go against the rewards, or are missing or not finite", "The policy is taught the "
        "opposite, or nothing.", "Give every trainable turn a finite advantage that rises with the reward."),
    "normalised twice": Check(
        "credit", "advantages that are changed again after credit was given", "A second normalisation undoes the "
        "first: groups without signal are blown up, and the learning rate means something else.",
        "Normalise once: in credit() or in the trainer."),
    "turns counted": Check(
        "credit", "group statistics that count turns", "Long episodes weigh more in the baseline, so their length "
        "decides the sign of an advantage.", "Take mean and deviation over rollouts."),
    "last turn only": Check(
        "credit", "advantages of 0 for all turns but the last", "Earlier actions, tool calls above all, are never "
        "learned.", "Spread the trajectory's advantage over its trainable turns."),
    "spikes": Check(
        "credit", "an advantage far above the group's size", "One lucky answer decides the step.",
        "Divide by a deviation that includes the sample, with a floor."),
    "groups of one": Check(
        "credit", "groups too small to compare", "The advantage is 0 for every answer, and nothing is learned.",
        "Set group_size to 2 or more, or use a baseline that needs no group."),
    # rewards
    "spread": Check(
        "rewards", "groups in which all answers earn the same", "Such groups teach nothing.",
        "Easier or harder tasks, larger groups, a warm start, or partial credit."),
    "trivial answers": Check(
        "rewards", "answers that know nothing and are paid", "What a constant earns is the first thing that RL finds.",
        "Pay only one clear answer, and take what the best trivial answer earns as the floor of every curve."),
    "gold answers": Check(
        "rewards", "right answers that are not paid in any of the usual forms", "The reward is 0 for ever: a parser "
        "is missing, or wants a form that no one was told.", "Score the gold answer by hand, and mend the parser; "
        "a form of your own is told by Setup(gold=...)."),
    "unparseable gold": Check(
        "rewards", "a wrong answer that is paid where the gold cannot be parsed", "Broken records pay everybody.",
        "Fail the grading where the gold cannot be read, or drop such records."),
    "reads the prompt": Check(
        "rewards", "a reward that changes with the prompt's text", "An example in the prompt is paid as if the policy "
        "had written it.", "Score the completion alone."),
    "swallowed failure": Check(
        "rewards", "a grader that fails and says wrong", "A dead grader teaches that right answers are wrong.",
        "Let it raise, or return Score.failed: such episodes are left out and counted."),
    "reward": Check(
        "rewards", "what `check_taskset` finds", "The reward or the task set is not sound.",
        "See the sentence."),
    # episodes
    "failures": Check(
        "episodes", "episodes that fail", "They are left out, so that training sees the others alone.",
        "Mend the environment or the grader; the commonest reason is given."),
    "environment": Check(
        "episodes", "what `check_env` finds", "The environment's contract is broken.", "See the sentence."),
    "start state": Check(
        "episodes", "tasks that are solved before anything was done", "Any answer is paid.",
        "Drop such tasks, or mend how their start is made."),
    "shifted replies": Check(
        "episodes", "replies of an earlier episode after a step that was given up", "After one timeout every reply "
        "answers the question before, and no error is raised.",
        "Close the connection after a timeout, or number requests and drop late answers."),
    "cut off": Check(
        "episodes", "answers stopped by the length cap, above all where they are paid", "Answers grow until they are "
        "cut, or being cut becomes the aim.", "Raise max_tokens, pay cut-off answers nothing, or mask them."),
    "no answer": Check(
        "episodes", "answers without anything to judge", "The format is not known to the policy, or the parser is "
        "wrong.", "Read a few of them; teach the form first, or accept what is written."),
    "tools never called": Check(
        "episodes", "tools that are offered and never called", "Training goes on without an error and unlearns them.",
        "Check parser and prompt against what the policy writes; start from a policy that calls."),
    # splits
    "leaks": Check(
        "splits", "held-out tasks that are training tasks", "The held-out number measures memory.",
        "Split by a hash of the task, and drop what is in both."),
    "shifted seeds": Check(
        "splits", "held-out tasks that are the training tasks shifted by a step",
        "The held-out number measures memory: where seeds are added to indices, the sets of two seeds are the same.",
        "Hash (seed, index), as rlready.seeds.derive does; cut one list in slices that do not overlap."),
    # files of other tools
    "keys": Check(
        "file", "records without ids, log-probs, mask or reward", "What is not logged cannot be checked.",
        "Log prompt_ids, completion_ids, logprobs, mask, advantage and reward."),
    "lengths": Check(
        "file", "columns of unequal length", "Log-probs, mask or advantages belong to other tokens.",
        "Write one value per completion token."),
}  # fmt: skip


def explained(findings: Iterable[Finding], subject: str) -> Findings:
    """Findings with why and mend filled in from the catalogue, errors first."""
    out = Findings(subject)
    rank = {"error": 0, "warning": 1, "note": 2}
    for finding in sorted(findings, key=lambda f: rank[f.level]):
        known = CHECKS.get(finding.check)
        if known is not None and finding.level != "note":
            finding = replace(finding, why=finding.why or known.why, mend=finding.mend or known.mend)
        out.add(finding)
    return out
