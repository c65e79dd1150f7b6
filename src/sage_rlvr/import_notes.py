"""What `sage-rlvr import-config` says about the authors' training YAML: one entry a finding, facts about their code.

    NOTES["epsilon"] = (kind, key of `import_config.PLACES`, what their code does, what a recipe here does)

kind: kept (as their code has it), changed (otherwise here), dropped (nothing here reads it). Braces are filled in.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["kept", "changed", "dropped"]

NOTES: dict[str, tuple[Kind, str, str, str]] = {
    "batch": (
        "kept",
        "generation batch",
        "{rows} rows per update on one process: {problems} problems of {group} completions per rollout, {updates} updates of it",
        "the same: {rollouts} rollouts with {updates} updates each",
    ),
    "steps": ("changed", "steps", "ends within a rollout ({updates} updates each)", "the last rollout is used up"),
    "q": (
        "changed",
        "guide",
        "q is computed anew at each loss, so the later updates of a rollout see a moved policy",
        "q comes from the policy that sampled, and holds for all updates of the rollout",
    ),
    "warmup": (
        "kept",
        "warmup",
        "does nothing, because the schedule is constant: the first step has the full learning rate",
        "the same, without the word; optimizer.schedule: linear with warmup_steps: {steps} is the paper's",
    ),
    "schedule": (
        "kept",
        "schedule",
        "is not the paper's (Table 8: linear with a warm-up ratio of 0.1)",
        "as in this file",
    ),
    "save": (
        "changed",
        "save",
        "counts updates, keeps every checkpoint, and no command resumes from one",
        "every {rollouts} rollouts, the newest two stay (checkpoint.keep), and the same command continues",
    ),
    "take": (
        "kept",
        "take",
        "takes all rows (Table 8 of the paper: the first 2,000)",
        "all rows too; data.take: 2000 is the paper's",
    ),
    "use_kl": ("kept", "use_kl", "no KL term; beta = {beta:g} is not read", "the same: beta 0"),
    "epsilon": (
        "kept",
        "epsilon",
        "sets the upper clip alone; the lower is always 0.2{same}",
        "clip_low 0.2, clip_high {high:g}",
    ),
    "bnpo": (
        "kept",
        "loss",
        "TRL's mean over tokens, without the Beta density of BNPO",
        "grpo_token_mean; the published method is {{name: bnpo}}",
    ),
    "bnpo split": (
        "changed",
        "loss",
        "TRL's mean over tokens, each micro-batch by its own, without the Beta density of BNPO",
        "grpo_token_mean, by the tokens of the update; the published method is {{name: bnpo}}",
    ),
    "dapo": (
        "changed",
        "loss",
        "TRL's mean over tokens alone (no dynamic sampling, no raised clip), in TRL 0.23 divided by the tokens of the whole "
        "rollout, which makes the loss of {updates} updates a rollout that many times smaller",
        "grpo_token_mean, by the tokens of the update; the published method is {{name: dapo}}",
    ),
    "dr_grpo": (
        "changed",
        "loss",
        "TRL's fixed divisor, while rewards are still divided by the group's deviation",
        "dr_grpo as published: not divided",
    ),
    "detach": ("dropped", "", "does nothing: q is computed without gradient in any case", "q never has a gradient"),
    "branch ref": (
        "changed",
        "branch use_source",
        "always raises: their loss never computes the reference's entropies",
        "the policy's entropies, the only ones that TRL offers",
    ),
    "advance": (
        "kept",
        "guide",
        "the schedule advances once a loss, here an update; it stands in no checkpoint, and its noise comes from the global "
        "generator, so that arms of one seed sample differently",
        "the same values as a function of the step, and noise of its own: resumed runs and arms stay paired",
    ),
    "advance split": (
        "changed",
        "guide",
        "the schedule advances once a loss, {times} times per update; it stands in no checkpoint, and its noise comes from the "
        "global generator, so that arms of one seed sample differently",
        "once per update, a function of the step, and noise of its own: resumed runs and arms stay paired",
    ),
    "tail": (
        "changed",
        "steps",
        "{steps} updates are no multiple of {cycles} cycles, and the last cycle starts over at its end",
        "the lower value until the end; tail: released in both schedules is theirs",
    ),
    "full": (
        "changed",
        "full",
        "trains bf16 weights on a GPU without float32 copies: at lr 5e-6 most updates round to nothing",
        "float32 weights, bf16 arithmetic",
    ),
    "lora": (
        "changed",
        "rank",
        "the adapter's first weights are drawn from a generator that nothing seeds",
        "drawn from the seed",
    ),
    "top_k": (
        "changed",
        "top_k",
        "all tokens with vLLM, a crash without it (transformers wants a whole number above 0)",
        "left out: TRL's default, 0, is all tokens on both",
    ),
    "min_p": (
        "kept",
        "min_p",
        "cuts off the sampled tail, while the log-probs of the loss are those of the whole policy",
        "the same; engine.args.min_p: null samples the policy itself",
    ),
    "vllm": (
        "kept",
        "vllm",
        "stops at </SOLUTION> with vLLM only, weighs tokens by a ratio of the two samplers cut at 2, and falls back to "
        "transformers where CUDA or vLLM is missing",
        "the same stop and ratio (TRL's default is another by now); without vLLM TRL stops, so write use_vllm: false then",
    ),
    "optimizer": (
        "kept",
        "optimizer",
        "becomes adamw_torch where CUDA or bitsandbytes is missing",
        "the same, and a warning says so",
    ),
    "wandb": (
        "kept",
        "wandb",
        "reports to Weights & Biases",
        "the same (report_to); WANDB_PROJECT names the project, `wandb login` the account",
    ),
    "no wandb": (
        "changed",
        "wandb",
        "logs in to Weights & Biases unless this says false",
        "nothing is reported; engine.args.report_to: wandb",
    ),
    "upload": ("dropped", "upload", "uploads the trained model to the Hub", "nothing is uploaded"),
    "prompt": (
        "dropped",
        "prompt",
        "cuts a longer prompt on its left, the system prompt first; TRL 1.x has no such field",
        "prompts stay whole",
    ),
    "seeds": (
        "changed",
        "rl seed",
        "seeds the RL trainer; {other} seeds Python, NumPy, CUDA and SFT, and nothing seeds torch's CPU generator before it",
        "one seed a stage: this one in RL, the other in SFT, and everything random follows it",
    ),
    "reference": (
        "changed",
        "instruct",
        "after its SFT stage the KL is taken to the model before SFT (the adapter disabled, or the original path loaded again)",
        "to the SFT model (source: sft); {place}: base gives theirs",
    ),
    "reward": (
        "changed",
        "data",
        "the reward parses the whole completion: <SOLUTION>42</SOLUTION> earns 0 and a number of the working counts; gold "
        "answers in bare LaTeX fail; every exception is a 0",
        "the answer is read between the tags (data.prompt: sage), gold answers are LaTeX, failures are counted; the system "
        "prompt asks for the same tags in other words",
    ),
    "sequence": (
        "changed",
        "sequence",
        "SFT leaves out examples of which prompt and solution together pass {half} tokens{cut}",
        "those whose prompt alone does, as the paper has it (E.2), and those that do not fit whole",
    ),
    "sft loss": (
        "kept",
        "sft dataset_name",
        "the loss counts the prompt's tokens too",
        "the same (completion_only_loss: false); left out, the solution's alone",
    ),
    "sft adapter": (
        "kept",
        "rank",
        "RL goes on training the adapter of the SFT stage",
        "the same: model is the adapter that the SFT run saves",
    ),
    "samples": ("changed", "sft max_samples", "counts after the filters", "data.take counts the rows before them"),
    "not read": ("dropped", "use_branch", "not read where sage.guide stands", "sage.guide decides"),
}
