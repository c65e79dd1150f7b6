"""What `python -m lab authors-yaml` says about the authors' training YAML: facts about their code, one entry each.

    REFUSALS   (when, key of `keys.KEYS`, what is wrong and the next step)
    NOTES      (when, kind, key, what their code does, what a recipe here does)

kind: kept (as their code has it), changed (otherwise here), dropped (nothing here reads it). Braces are filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from lab.authors_yaml.keys import GUIDES, REDUCTIONS, SCHEDULES

Kind = Literal["kept", "changed", "dropped"]
When = Callable[[Any], Any]  # of `import_config.Theirs`

REFUSALS: list[tuple[When, str, str]] = [
    (
        lambda t: not t.plain and len(t.flags) > 1 and not t.place("sage_guide"),
        "sage_guide",
        "use_{flags[0]}, use_{flags[1]}: their code takes one guide; keep one",
    ),
    (lambda t: t.guide not in (None, *GUIDES), "sage_guide", "choose from branch, random, token, none{near}"),
    (
        lambda t: t.steps <= 0,
        "steps",
        "TRL takes that as three epochs; write the number of optimizer steps",
    ),
    (
        lambda t: (
            min(t.per_device, t.accumulation, t.generated) < 1 or t.generated % t.per_device or t.generated % t.group
        ),
        "generation_batch",
        "TRL stops, because {generated} rows are no multiple of per_device_train_batch_size = {per_device} and of {group} "
        "completions per problem",
    ),
    (
        lambda t: t.chunks % t.accumulation and t.accumulation % t.chunks,
        "generation_batch",
        "{chunks} micro-batches per rollout and {accumulation} per update: an update would take parts of two rollouts, which a "
        "recipe cannot say; make one a multiple of the other",
    ),
    (
        lambda t: t.rows % t.group,
        "per_device",
        "an update has {rows} rows, no whole groups of {group}, which a recipe cannot say; make per_device_train_batch_size x "
        "gradient_accumulation_steps a multiple of {group}",
    ),
    (
        lambda t: t.schedule not in SCHEDULES,
        "schedule",
        f"recipes have {', '.join(SCHEDULES)}; write one of them",
    ),
    (
        lambda t: not t.instruct and t.sft_schedule not in SCHEDULES,
        "sft_schedule",
        f"recipes have {', '.join(SCHEDULES)}; write one of them",
    ),
    (
        lambda t: t.guide and t.forward,
        "forward",
        "their code raises here, it has no forward KL; take the key out, and see recipes/paper/forward_kl.yaml for that arm",
    ),
    (
        lambda t: t.guide and not (t.use_kl and t.beta),
        "use_kl",
        "their code stops, because a guide has no KL term to shape; set use_kl: true and beta above 0, or import with --plain, "
        "as their train_grpo reads the file",
    ),
    (
        lambda t: t.loss not in REDUCTIONS,
        "loss",
        f"their trainer has {', '.join(REDUCTIONS)}; write one of them",
    ),
    (lambda t: t.save < 1, "save", "must be above 0"),
    (lambda t: t.guide == "random" and t.cycles < 1, "random_cycles", "must be above 0"),
    (lambda t: t.guide == "token" and t.cycles < 1, "token_cycles", "must be above 0"),
    (lambda t: not t.full and t.bias != "none", "bias", "adapters here train no biases; write none"),
]


class Note(NamedTuple):
    """What is said `when`, at `key`: what their code does, and what a recipe here does."""

    when: When
    kind: Kind
    key: str
    theirs: str
    here: str


NOTES: list[Note] = [
    *(
        Note(
            lambda t, flag=f"use_{name}": not t.plain and t.place("sage_guide") and t[flag],
            "dropped",
            f"use_{name}",
            "not read where sage.guide stands",
            "sage.guide decides",
        )
        for name in GUIDES
    ),
    Note(lambda t: t.upload, "dropped", "upload", "uploads the trained model to the Hub", "nothing is uploaded"),
    Note(
        lambda t: True,
        "kept",
        "generation_batch",
        "{rows} rows per update on one process: {problems} problems of {group} completions per rollout, {updates} "
        "updates of it",
        "the same: {rollouts} rollouts with {updates} updates each",
    ),
    Note(
        lambda t: t.steps % t.updates,
        "changed",
        "steps",
        "ends within a rollout ({updates} updates each)",
        "the last rollout is used up",
    ),
    Note(
        lambda t: t.constant and t.warmup,
        "kept",
        "warmup",
        "does nothing, because the schedule is constant: the first step has the full learning rate",
        "the same, without the word; optimizer.schedule: linear with warmup_steps: {warmup_steps} is the paper's",
    ),
    Note(
        lambda t: t.constant,
        "kept",
        "schedule",
        "is not the paper's (Table 8: linear with a warm-up ratio of 0.1)",
        "as in this file",
    ),
    Note(
        lambda t: not t.use_kl and t.beta,
        "kept",
        "use_kl",
        "no KL term; beta = {beta:g} is not read",
        "the same: beta 0",
    ),
    Note(
        lambda t: True,
        "kept",
        "epsilon",
        "sets the upper clip alone; the lower is always 0.2{same}",
        "clip_low 0.2, clip_high {epsilon:g}",
    ),
    Note(
        lambda t: t.loss == "bnpo" and t.accumulation == 1,
        "kept",
        "loss",
        "TRL's mean over tokens, without the Beta density of BNPO",
        "grpo_token_mean; the published method is {{name: bnpo}}",
    ),
    Note(
        lambda t: t.loss == "bnpo" and t.accumulation > 1,
        "changed",
        "loss",
        "TRL's mean over tokens, each micro-batch by its own, without the Beta density of BNPO",
        "grpo_token_mean, by the tokens of the update; the published method is {{name: bnpo}}",
    ),
    Note(
        lambda t: t.loss == "dapo",
        "changed",
        "loss",
        "TRL's mean over tokens alone (no dynamic sampling, no raised clip), in TRL 0.23 divided by the tokens of "
        "the whole rollout, which makes the loss of {updates} updates a rollout that many times smaller",
        "grpo_token_mean, by the tokens of the update; the published method is {{name: dapo}}",
    ),
    Note(
        lambda t: t.loss == "dr_grpo",
        "changed",
        "loss",
        "TRL's fixed divisor, while rewards are still divided by the group's deviation",
        "dr_grpo as published: not divided",
    ),
    Note(
        lambda t: t.guide and t.updates > 1,
        "changed",
        "sage_guide",
        "q is computed anew at each loss, so the later updates of a rollout see a moved policy",
        "q comes from the policy that sampled, and holds for all updates of the rollout",
    ),
    *(
        Note(
            lambda t, name=name: t.guide == name and t.place(f"{name}_detach"),
            "dropped",
            f"{name}_detach",
            "does nothing: q is computed without gradient in any case",
            "q never has a gradient",
        )
        for name in ("branch", "token")
    ),
    Note(
        lambda t: t.guide == "branch" and t.branch_source == "ref",
        "changed",
        "branch_source",
        "always raises: their loss never computes the reference's entropies",
        "the policy's entropies, the only ones that TRL offers",
    ),
    Note(
        lambda t: t.guide in ("random", "token") and t.accumulation == 1,
        "kept",
        "sage_guide",
        "the schedule advances once a loss, here an update; it stands in no checkpoint, and its noise comes from the "
        "global generator, so that arms of one seed sample differently",
        "the same values as a function of the step, and noise of its own: resumed runs and arms stay paired",
    ),
    Note(
        lambda t: t.guide in ("random", "token") and t.accumulation > 1,
        "changed",
        "sage_guide",
        "the schedule advances once a loss, {accumulation} times per update; it stands in no checkpoint, and its "
        "noise comes from the global generator, so that arms of one seed sample differently",
        "once per update, a function of the step, and noise of its own: resumed runs and arms stay paired",
    ),
    Note(
        lambda t: t.guide in ("random", "token") and t.steps % t.cycles,
        "changed",
        "steps",
        "{steps} updates are no multiple of {cycles} cycles, and the last cycle starts over at its end",
        "the lower value until the end; tail: released in both schedules is theirs",
    ),
    Note(
        lambda t: t.take is None,
        "kept",
        "take",
        "takes all rows (Table 8 of the paper: the first 2,000)",
        "all rows too; data.take: 2000 is the paper's",
    ),
    Note(
        lambda t: t.seed != t.rl_seed,
        "changed",
        "trainer_seed",
        "seeds the RL trainer; {other_seed} seeds Python, NumPy, CUDA and SFT, and nothing seeds torch's CPU "
        "generator before it",
        "one seed a stage: this one in RL, the other in SFT, and everything random follows it",
    ),
    Note(
        lambda t: True,
        "changed",
        "save",
        "counts updates, keeps every checkpoint, and no command resumes from one",
        "every {every} rollouts, the newest two stay (checkpoint.keep), and the same command continues",
    ),
    Note(
        lambda t: t.full,
        "changed",
        "full",
        "trains bf16 weights on a GPU without float32 copies: at lr 5e-6 most updates round to nothing",
        "float32 weights, bf16 arithmetic",
    ),
    Note(
        lambda t: not t.full,
        "changed",
        "rank",
        "the adapter's first weights are drawn from a generator that nothing seeds",
        "drawn from the seed",
    ),
    Note(
        lambda t: t.top_k <= 0,
        "changed",
        "top_k",
        "all tokens with vLLM, a crash without it (transformers wants a whole number above 0)",
        "left out: TRL's default, 0, is all tokens on both",
    ),
    Note(
        lambda t: t.min_p,
        "kept",
        "min_p",
        "cuts off the sampled tail, while the log-probs of the loss are those of the whole policy",
        "the same; engine.args.min_p: null samples the policy itself",
    ),
    Note(
        lambda t: t.vllm,
        "kept",
        "vllm",
        "stops at </SOLUTION> with vLLM only, weighs tokens by a ratio of the two samplers cut at 2, and falls back "
        "to transformers where CUDA or vLLM is missing",
        "the same stop and ratio (TRL's default is another by now); without vLLM TRL stops, so write use_vllm: false "
        "then",
    ),
    Note(
        lambda t: "8bit" in t.optimizer,
        "kept",
        "optimizer",
        "becomes adamw_torch where CUDA or bitsandbytes is missing",
        "the same, and a warning says so",
    ),
    Note(
        lambda t: not t.place("wandb"),
        "changed",
        "wandb",
        "logs in to Weights & Biases unless this says false",
        "nothing is reported; engine.args.report_to: wandb",
    ),
    Note(
        lambda t: t.wandb,
        "kept",
        "wandb",
        "reports to Weights & Biases",
        "the same (report_to); WANDB_PROJECT names the project, `wandb login` the account",
    ),
    Note(
        lambda t: "source" in t.base,
        "changed",
        "instruct",
        "after its SFT stage the KL is taken to the model before SFT (the adapter disabled, or the original path "
        "loaded again)",
        "to the SFT model (source: sft); {source_place}: base gives theirs",
    ),
    Note(
        lambda t: True,
        "changed",
        "data",
        "the reward parses the whole completion: <SOLUTION>42</SOLUTION> earns 0 and a number of the working counts; "
        "gold answers in bare LaTeX fail; every exception is a 0",
        "the answer is read between the tags (data.prompt: sage), gold answers are LaTeX, failures are counted; the "
        "system prompt asks for the same tags in other words",
    ),
    Note(
        lambda t: t.place("prompt"),
        "dropped",
        "prompt",
        "cuts a longer prompt on its left, the system prompt first; TRL 1.x has no such field",
        "prompts stay whole",
    ),
    Note(
        lambda t: not t.instruct,
        "changed",
        "sequence",
        "SFT leaves out examples of which prompt and solution together pass {half} tokens{cut}",
        "those whose prompt alone does, as the paper has it (E.2), and those that do not fit whole",
    ),
    Note(
        lambda t: not t.instruct,
        "kept",
        "sft_data",
        "the loss counts the prompt's tokens too",
        "the same (completion_only_loss: false); left out, the solution's alone",
    ),
    Note(
        lambda t: not t.instruct and not t.full,
        "kept",
        "rank",
        "RL goes on training the adapter of the SFT stage",
        "the same: model is the adapter that the SFT run saves",
    ),
    Note(
        lambda t: not t.instruct and t.sft_take is not None,
        "changed",
        "sft_take",
        "counts after the filters",
        "data.take counts the rows before them",
    ),
]
