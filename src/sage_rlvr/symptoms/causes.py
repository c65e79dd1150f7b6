"""The causes by name, upstream first. Each name is a heading of docs/howto/reward_does_not_rise.md."""

from __future__ import annotations

PAGE = "docs/howto/reward_does_not_rise.md"

CAUSES: dict[str, str] = {
    # the log or the rewards are not numbers: nothing else can be read
    "not-finite": "a loss, gradient or reward is NaN or infinite",
    # what the policy reads
    "bos-doubled": "the prompt begins with two start tokens",
    "template-twice": "the chat template is applied twice",
    "template-missing": "the prompt lacks the chat template that the tokenizer has",
    "generation-prompt-missing": "the prompt does not open the assistant's turn",
    "prompt-cut": "the prompt is cut, or leaves no room for a completion",
    "padding-side": "prompts are padded on the right",
    "thinking-off": "the prompt closes the thinking before it begins",
    # the values of the reward
    "reward-raises": "the reward raises an error, or returns another number of values",
    "reward-no-number": "the reward returns None, a text, or no number",
    "reward-timeouts": "calls that take too long earn 0",
    "golds-shifted": "completions are judged with the gold of another row",
    "wrong-column": "the reward reads another column than that of the golds",
    "gold-unreadable": "the reward does not pay the row's own gold",
    "reward-inverted": "a wrong answer earns more than the right one",
    "reward-too-strict": "texts that contain their gold earn 0",
    "reward-constant": "every text earns the same",
    "pays-everything": "a text without an answer earns as much",
    "pays-length": "a longer text earns more",
    "pays-format": "a wrong answer in the right form earns nearly as much",
    "batch-dependent": "a completion's reward depends on its batch or its order",
    # what the policy writes
    "limit-too-short": "completions are cut at the length limit",
    "never-ends": "completions do not end at any length",
    "answer-elsewhere": "answers stand where the reward does not look",
    "no-answer": "completions have no answer",
    "empty-completions": "completions are empty",
    "special-tokens": "completions have special tokens inside",
    "repetition": "completions repeat themselves",
    # whether rewards differ within groups
    "group-of-one": "a group has one completion, and so no baseline",
    "entropy-collapse": "the completions of a group are alike",
    "all-wrong": "no completion is right",
    "all-right": "every completion is right, or nearly every one",
    "groups-dropped": "dynamic sampling finds too few groups with mixed rewards",
    "few-mixed": "few groups have mixed rewards",
    # whether an update can use it
    "reference-differs": "the reference is not the policy at step 0",
    "sampler-mismatch": "the sampler does not draw from the policy that is trained",
    "samples-dropped": "a correction masks completions",
    "stale-samples": "a rollout is used for too many updates",
    "weights-do-not-move": "the updates are too small to change the weights",
    "lr-too-high": "the learning rate is too high",
    "kl-blow-up": "the KL to the reference grows without bound",
    "beta-too-high": "the KL term outweighs the reward",
    "gradient-spikes": "the gradient norm explodes",
    # the cost, and the headroom
    "no-memory": "the run does not fit in memory",
    "reward-slow": "the reward is slow",
    "held-out-falls": "the reward rises and the held-out score does not",
    "at-chance": "the model solves no more than a guesser",
}
"""Name -> description in a line."""

RANK = {name: place for place, name in enumerate(CAUSES)}

__all__ = ["CAUSES", "PAGE", "RANK"]
