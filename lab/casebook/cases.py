"""The faults. Each is a run that a user could have written; `make(folder)` gives its preflight, then its log."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab.casebook.loop_runs import Run, disturb, on_loop, other_sampler
from lab.casebook.trl_script import (
    TEMPLATE,
    is_right,
    log_golds,
    problem_rows,
    right,
    script,
    text_of,
    tokens,
    trained,
    value_of,
)
from sage_rlvr.symptoms.finding import SymptomReport

VERL = Path(__file__).with_name("verl")
"""Logs that verl's own trainer wrote (`tests/verl_engine/write_logs.py`)."""


@dataclass(frozen=True)
class Case:
    """A fault. cause: its name; log: the name that a log can show, if that is another one (of prompts and rewards it shows
    that nothing is ever right, not why); thread: a public thread of someone who had it."""

    name: str
    cause: str
    thread: str
    make: Callable[[Path], Run]
    log: str = ""


def on_trl(build: Callable[[Path], Any]) -> Callable[[Path], Run]:
    """A case of a TRL script."""

    def make(folder: Path) -> Run:
        from sage_rlvr.trl import preflight

        trainer = build(folder)
        return (lambda: preflight(trainer, say=False)), (lambda: trained(trainer, folder))

    return make


# ---- prompts


def _template_missing(folder: Path) -> Any:
    rows = [row | {"prompt": row["prompt"].removesuffix(":")} for row in problem_rows()]
    return script(folder, rows=rows, tokenizer=tokens(chat_template=TEMPLATE))


def _template_twice(folder: Path) -> Any:
    rows = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in problem_rows()]
    return script(folder, rows=rows, tokenizer=tokens(chat_template=TEMPLATE))


def _bos_doubled(folder: Path) -> Any:
    from tokenizers.processors import TemplateProcessing

    made = tokens(bos_token="<eos>")
    end = made.convert_tokens_to_ids("<eos>")
    made._tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", end)])
    return script(folder, rows=[row | {"prompt": "<eos>" + row["prompt"]} for row in problem_rows()], tokenizer=made)


def _padding(folder: Path) -> Any:
    """Generation from prompts that are padded on the right, as a script of its own may do it."""
    rows = problem_rows()
    rows = [row for pair in zip(rows, _short_rows(len(rows)), strict=True) for row in pair]
    trainer = script(folder, rows=rows, tokenizer=tokens())
    trainer.processing_class.padding_side = "right"
    model, generate = trainer.model, trainer.model.generate

    def on_the_right(*args: Any, **given: Any) -> Any:
        ids, mask = given["input_ids"], given["attention_mask"]
        order = mask.argsort(dim=1, descending=True, stable=True)
        return generate(*args, **given | {"input_ids": ids.gather(1, order), "attention_mask": mask.gather(1, order)})

    model.generate = on_the_right
    return trainer


def _short_rows(count: int) -> list[dict[str, Any]]:
    rows = [(a, b) for a in range(1, 10) for b in range(a, 10)]
    made = [{"prompt": f"{a} {b}={a + b}:", "numbers": [a, b], "target": a + b, "size": 2, "answer": f"{a}+{b}"} for a, b in rows]
    return (made * (count // len(made) + 1))[:count]


# ---- rewards


def _gold_unreadable(folder: Path) -> Any:
    def reward(completions: Any, numbers: Any, target: Any, **more: Any) -> list[float]:
        log_golds(target, **more)
        values = []
        for completion, used, gold in zip(completions, numbers, target, strict=True):
            try:
                values.append(float(is_right(text_of(completion), used, float(gold))))
            except ValueError:
                values.append(0.0)
        return values

    return script(folder, reward, [row | {"target": f"{row['target']} points"} for row in problem_rows()])


def _wrong_column(folder: Path) -> Any:
    def reward(completions: Any, numbers: Any, size: Any, log_extra: Any = None, **_: Any) -> list[float]:
        return right(completions, numbers, size, log_extra=log_extra)

    rows = [row for row in problem_rows(400) if row["target"] > 8]
    return script(folder, reward, rows)


def _constant(folder: Path) -> Any:
    return script(folder, lambda completions, **_: [0.5] * len(completions))


def _shifted(folder: Path) -> Any:
    rows = problem_rows()
    moved = [other | {"prompt": row["prompt"]} for row, other in zip(rows, [*rows[1:], rows[0]], strict=True)]
    return script(folder, rows=moved)


def _timeouts(folder: Path) -> Any:
    def reward(completions: Any, numbers: Any, target: Any, **more: Any) -> list[float]:
        log_golds(target, **more)
        values = []
        for completion, used, gold in zip(completions, numbers, target, strict=True):
            slow = "/" in text_of(completion)
            time.sleep(0.3 * slow)
            values.append(0.0 if slow else float(is_right(text_of(completion), used, gold)))
        return values

    return script(folder, reward, max_steps=8, per_device_train_batch_size=32)


def _length(folder: Path) -> Any:
    def reward(completions: Any, **_: Any) -> list[float]:
        return [len(text_of(c)) / 24 for c in completions]

    return script(folder, reward, beta=0.0, learning_rate=3e-4, max_steps=24)


def _format(folder: Path) -> Any:
    def form(completions: Any, **_: Any) -> list[float]:
        texts = map(text_of, completions)
        return [float("(" in text and value_of(text, list(map(int, re.findall(r"\d+", text)))) is not None) for text in texts]

    rows = [row for row in problem_rows(600) if "(" in row["answer"]]
    return script(folder, [form, right], rows, reward_weights=[1.0, 0.1], beta=0.0, learning_rate=3e-4, max_steps=24)


def _infinite(folder: Path) -> Any:
    def reward(completions: Any, numbers: Any, target: Any, log_extra: Any = None, **_: Any) -> list[float]:
        hit = right(completions, numbers, target, log_extra=log_extra)
        return [one if len(text_of(c)) < 11 else float("-inf") for one, c in zip(hit, completions, strict=True)]

    return script(folder, reward, max_steps=8)


# ---- completions and signal


def _never_ends(folder: Path) -> Any:
    made = tokens()
    return script(folder, generation_kwargs={"suppress_tokens": [made.eos_token_id, made.pad_token_id]})


def _all_right(folder: Path) -> Any:
    """A task that the policy has learned before: to use each number once, whatever the value."""

    def reward(completions: Any, numbers: Any, **_: Any) -> list[float]:
        return [float(value_of(text_of(c), used) is not None) for c, used in zip(completions, numbers, strict=True)]

    return script(folder, reward, temperature=0.6)


def _all_wrong(folder: Path) -> Any:
    """Targets that four numbers of one digit do not reach."""
    return script(folder, rows=[row | {"target": 7001 + 2 * place} for place, row in enumerate(_no_golds())])


def _no_golds() -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "answer"} for row in problem_rows()]


def _group_of_one(folder: Path) -> Run:
    """verl's command, and the console of such a run, which is kept in verl/."""
    file = folder / "run.sh"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=embedded "
        "actor_rollout_ref.rollout.n=1 data.max_response_length=24 trainer.total_training_steps=8\n"
    )

    def before() -> SymptomReport:
        from sage_rlvr.contrib.preflight import group_of_one

        report = group_of_one(file)
        assert isinstance(report, SymptomReport)
        return report

    return before, lambda: Path(shutil.copy(VERL / "group_of_one.console.txt", folder))


# ---- updates


def _no_movement(folder: Path) -> Any:
    return script(folder, dtype=torch.bfloat16, learning_rate=1e-6)


def _wrong_reference(folder: Path) -> Any:
    trainer = script(folder, beta=0.1)
    disturb(trainer.ref_model)
    return trainer


def _stale(folder: Path) -> Any:
    return script(folder, per_device_train_batch_size=16, steps_per_generation=32, learning_rate=3e-4, max_steps=48)


CASES: tuple[Case, ...] = (
    Case("template missing", "template-missing", "autocontext PR #1070", on_trl(_template_missing), log="all-wrong"),
    Case("template twice", "template-twice", "–", on_trl(_template_twice), log="all-wrong"),
    Case("doubled start token", "bos-doubled", "vllm PR #27515", on_trl(_bos_doubled)),
    Case("padding on the right", "padding-side", "trl PR #3722", on_trl(_padding), log="sampler-mismatch"),
    Case("gold unreadable", "gold-unreadable", "open-r1 PR #55", on_trl(_gold_unreadable)),
    Case("wrong column", "wrong-column", "Video-R1#36", on_trl(_wrong_column)),
    Case("golds shifted", "golds-shifted", "trl#3098", on_trl(_shifted), log="all-wrong"),
    Case("reward constant", "reward-constant", "AgenticArXiv-RL PR #15", on_trl(_constant)),
    Case("timeouts earn 0", "reward-timeouts", "AReaL#548", on_trl(_timeouts)),
    Case("reward infinite", "not-finite", "ms-swift#3136", on_trl(_infinite)),
    Case("length hacking", "pays-length", "trl#2771", on_trl(_length)),
    Case("format hacking", "pays-format", "open-r1#255", on_trl(_format)),
    Case("limit too short", "limit-too-short", "trl#5697", on_trl(lambda folder: script(folder, max_completion_length=4))),
    Case("never ends", "never-ends", "ms-swift#4950", on_trl(_never_ends), log="limit-too-short"),
    Case("all right", "all-right", "trl#3857", on_trl(_all_right)),
    Case("all wrong", "all-wrong", "trl#3452", on_trl(_all_wrong)),
    Case("group of one", "group-of-one", "Search-R1#88", _group_of_one),
    Case(
        "groups dropped",
        "groups-dropped",
        "DAPO#22",
        on_loop("dapo", rollout__group_size=2, method__max_refills=1),
    ),
    Case(
        "entropy collapse",
        "entropy-collapse",
        "verl#5953",
        on_trl(lambda folder: script(folder, temperature=0.02)),
    ),
    Case("bf16 rounding", "weights-do-not-move", "AReaL PR #1634", on_trl(_no_movement)),
    Case("learning rate too high", "lr-too-high", "hello-agents#770", on_trl(lambda folder: script(folder, learning_rate=1e-2))),
    Case("beta too high", "beta-too-high", "DeepVideoR1#2", on_trl(lambda folder: script(folder, beta=20.0))),
    Case(
        "KL blow-up",
        "kl-blow-up",
        "ms-swift#6550",
        on_trl(lambda folder: script(folder, _one_sign, _no_golds(), beta=1e-4, learning_rate=4e-4, max_steps=30)),
    ),
    Case("reference wrong", "reference-differs", "trl PR #6621", on_trl(_wrong_reference)),
    Case("sampler mismatch", "sampler-mismatch", "AReaL#1290", on_loop("grpo", around=other_sampler)),
    Case(
        "stale samples",
        "stale-samples",
        "slime#1800",
        on_trl(_stale),
    ),
)
"""The faults of the casebook."""


def _one_sign(completions: Any, **_: Any) -> list[float]:
    """Pays one sign only: the policy leaves its language for it."""
    return [text_of(c).count("/") / max(1, len(text_of(c))) for c in completions]


__all__ = ["CASES", "Case", "on_trl"]
