"""Preflight of recipes on the loop: sound ones, faults, bad input; and each check of a first rollout with numbers by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from byte_tokenizer import CHATML, byte_tokenizer
from sage_rlvr.api.train import read
from sage_rlvr.cli.app import main
from sage_rlvr.contrib.preflight import group_of_one
from sage_rlvr.symptoms import completions, learning, prompts, rewards
from sage_rlvr.symptoms.finding import Finding, SymptomReport
from sage_rlvr.symptoms.first_rollout import (
    CAP,
    CompletionSeen,
    FirstRollout,
    Names,
    PayCall,
    Payer,
    PromptSeen,
    RateSchedule,
    RunPlan,
    Surplus,
)
from sage_rlvr.symptoms.on_loop import mean_of, preflight_recipe
from sage_rlvr.symptoms.signal import MixedGroups


def preflight(recipe: str = "grpo", **edits: Any) -> SymptomReport:
    name, config = read("train", recipe, edits=[(key.replace("__", "."), str(value)) for key, value in edits.items()])
    return preflight_recipe(config, name=name, cost=False)


# ---- recipes


def test_a_sound_recipe_has_no_finding_and_nothing_moves():
    before, python = torch.get_rng_state(), random.getstate()
    report = preflight()
    assert report.first is None and report.exit_code == 0 and "nothing wrong seen" in str(report)
    assert torch.equal(before, torch.get_rng_state()) and python == random.getstate()


@pytest.mark.parametrize(
    ("cause", "code", "edits"),
    [
        ("limit-too-short", 3, {"rollout__max_new_tokens": 4}),
        ("weights-do-not-move", 3, {"optimizer__lr": 1e-10}),
        ("lr-too-high", 3, {"optimizer__lr": 0.1}),
        ("beta-too-high", 1, {"method__beta": 5.0}),
        ("entropy-collapse", 1, {"rollout__temperature": 0.02}),
        ("stale-samples", 1, {"updates__epochs": 32}),
    ],
)
def test_a_fault_of_a_recipe_is_named_first(cause: str, code: int, edits: dict[str, Any]):
    report = preflight(**edits)
    assert report.first == cause and report.exit_code == code, str(report)


def write(folder: Path, reward: str, answer: str = "2+3", rows: int = 8) -> list[str]:
    """The options for rows whose gold is an expression, and a reward in a file."""
    lines = [{"prompt": "2 3 4 9=5:", "answer": answer, "id": f"r{i}"} for i in range(rows)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "my.py").write_text(f"def score(completion: str, row: dict) -> float:\n    {reward}\n")
    edits = ["--rollout.group_size", "4", "--rollout.prompts_per_step", "4", "--rollout.max_new_tokens", "16", "--steps", "50"]
    rows_of = ["--rows", str(folder / "rows.jsonl"), "--reward", f"{folder / 'my.py'}:score"]
    return ["preflight", "--model", "embedded", *rows_of, "--fast", "--draw", "4", *edits, "--optimizer.lr", "1e-4"]


@pytest.mark.parametrize(
    ("cause", "reward"),
    [
        ("reward-constant", "return 0.25"),
        ("reward-raises", "return row['missing']"),
        ("gold-unreadable", "return float(completion == row['answer'] + ' units')"),
        ("pays-length", "return len(completion) / 100"),
    ],
)
def test_a_fault_of_a_reward_is_named_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], cause: str, reward: str):
    with pytest.raises(SystemExit) as stop:
        main([*write(tmp_path, reward), "--json"])
    tree = json.loads(capsys.readouterr().out)
    assert tree["findings"][0]["cause"] == cause, tree["findings"]
    assert stop.value.code == tree["exit_code"] == (1 if cause == "pays-length" else 3)


def test_bad_input_is_one_sentence_with_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "run.sh"
    script.write_text("python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8\n")
    for words, said in (
        (["preflight"], "pass a recipe"),
        (["preflight", "grpo", "--model", str(tmp_path / "none"), "--fast"], "no config.json"),
        (["preflight", str(script)], "--rows FILE"),
        (["preflight", "gropo"], "did you mean"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2 and said in capsys.readouterr().err


def test_the_command_of_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "run.sh"
    words = "algorithm.adv_estimator=grpo actor_rollout_ref.model.path=embedded data.max_response_length=16"
    batch = "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.total_training_steps=40"
    rate = "actor_rollout_ref.actor.optim.lr=1e-4"
    script.write_text(f"python -m verl.trainer.main_ppo {words} {batch} {rate} actor_rollout_ref.rollout.n=1\n")
    report = group_of_one(script)
    assert report.first == "group-of-one" and report.exit_code == 1
    script.write_text(f"python -m verl.trainer.main_ppo {words} {batch} {rate} actor_rollout_ref.rollout.n=4\n")
    assert group_of_one(script) is None
    write(tmp_path, "return 0.25")
    with pytest.raises(SystemExit) as stop:
        reward = f"{tmp_path / 'my.py'}:score"
        main(["preflight", str(script), "--rows", str(tmp_path / "rows.jsonl"), "--reward", reward, "--fast", "--draw", "2"])
    said = capsys.readouterr()
    assert stop.value.code == 3 and "reward-constant" in said.out and "run.sh: 2 prompts x 4 completions of embedded" in said.out


# ---- checks on a rollout that is written by hand


class Fixed(Payer):
    """Pays as told."""

    names = ("score",)

    def __init__(self, pay: Any, golds: dict[str, str] | None = None, rows: int = 0) -> None:
        self._pay, self._golds, self.rows = pay, golds or {}, rows
        self.columns = tuple(self._golds)

    def pay(self, calls: list[PayCall]) -> list[Any]:
        return [self._pay(call) for call in calls]

    def golds(self, row: int) -> dict[str, str]:
        return self._golds


def rollout(texts: list[list[str]], pay: Any = None, *, golds: dict[str, str] | None = None, **more: Any) -> FirstRollout:
    """Groups of completions, each paid by `pay` (default: 1 for "5")."""
    payer = Fixed(pay or (lambda call: float(call.text == "5")), golds, more.pop("rows", 0))
    flat = [(i, text) for i, group in enumerate(texts) for text in group]
    values = payer.pay([PayCall(i, text) for i, text in flat])
    seen = [
        CompletionSeen(i, tuple(map(ord, text)), text, text.endswith("..."), rewards.number(value), value)
        for (i, text), value in zip(flat, values, strict=True)
    ]
    plan = more.pop("plan", RunPlan(prompts=len(texts), group_size=len(texts[0]), lr=1e-5, rms=0.02, steps=100))
    given = tuple(PromptSeen("q", (1, 2, 3), "q") for _ in texts)
    tokenizer = more.pop("tokenizer", byte_tokenizer())
    given = more.pop("prompts", given)
    return FirstRollout(
        names=Names(), tokenizer=tokenizer, prompts=given, completions=tuple(seen), limit=8, payer=payer, plan=plan, **more
    )


def causes(found: Any) -> list[str]:
    return [one.cause for one in found]


def test_the_start_token_and_the_frame_of_a_template():
    tokenizer = byte_tokenizer(CHATML)
    start = tokenizer.bos_token_id

    def seen(text: str, *ids: int, given: Any = "text") -> list[str]:
        prompt = PromptSeen(given, (*ids, 70), text)
        return causes(prompts.found(rollout([["5", "6"]], tokenizer=tokenizer, prompts=(prompt,))))

    turn, opening = "<|im_start|>user\n2+3?<|im_end|>\n", "<|im_start|>assistant\n"
    assert seen(turn + opening, start) == []
    assert seen(turn + opening, start, start) == ["bos-doubled"]
    assert seen("2+3?") == ["template-missing"] and seen(turn) == ["generation-prompt-missing"]
    nested = "<|im_start|>user\n" + turn + opening + "<|im_end|>\n" + opening
    assert seen(nested) == ["template-twice"]
    history = [{"role": "user"}, {"role": "assistant"}, {"role": "user"}]
    assert seen(turn + opening + "5<|im_end|>\n" + turn + opening, given=history) == []
    assert seen(turn + opening + "<think>\n\n</think>\n\n") == ["template-missing", "thinking-off"]


def test_values_that_are_no_numbers():
    def found(pay: Any) -> list[Finding]:
        return list(rewards.found(rollout([["5", "6", "7", "8"]] * 2, pay)))

    assert causes(found(lambda call: None)) == ["reward-no-number"]
    assert found(lambda call: None)[0].severity == "cannot learn"
    assert causes(found(lambda call: "1.0")) == ["reward-no-number"]
    assert causes(found(lambda call: float("inf") if call.text == "5" else 0.0))[0] == "not-finite"
    assert rewards.number(torch.tensor(0.5)) == 0.5 and rewards.number(True) == 1.0


def test_what_is_paid():
    groups = [["5", "6", "7", "8"]] * 3
    golds = {"answer": "5", "other": "x"}
    assert causes(rewards.found(rollout(groups, golds=golds))) == []
    assert causes(rewards.found(rollout(groups, lambda call: 0.5, golds=golds))) == ["reward-constant"]
    assert causes(rewards.found(rollout(groups, lambda call: float(call.text != "6"), golds=golds)))[0] == "pays-everything"
    assert causes(rewards.found(rollout(groups, lambda call: 0.0, golds=golds))) == ["gold-unreadable"]
    swapped = rollout(groups, lambda call: float(call.swap == {"other": "answer"} and call.text == "5"), golds=golds)
    assert causes(rewards.found(swapped)) == ["wrong-column"]
    moved = rollout([["5"] * 4 + ["6"]] * 4, lambda call: float(call.gold == (call.prompt + 1) % 4 and call.text == "5"), rows=4)
    assert causes(rewards.found(moved)) == ["golds-shifted"]
    seen: list[str] = []

    def drifting(call: PayCall) -> float:
        seen.append(call.text)
        return float(len(seen) % 2)

    assert "batch-dependent" in causes(rewards.found(rollout(groups, drifting)))


def test_a_reward_that_remembers_texts_is_not_one_that_pays_the_form():
    """Four prompts with golds of their own: a cache of texts, and a reward that reads the form only."""
    kept: dict[str, float] = {}

    def remembers(call: PayCall) -> float:
        return kept.setdefault(call.text, float(call.text.strip() == str(call.prompt)))

    def form(call: PayCall) -> float:
        return float(call.text.strip().isdigit())

    for pay, wanted in ((remembers, ["batch-dependent"]), (form, ["pays-format"])):
        probe = rewards.Probe(replace(rollout([["0", "x"]] * 4), payer=Own(pay)))
        golds = rewards._golds(probe, {"": 0.0})
        assert golds is not None and causes(rewards._form(probe, golds)) == wanted


class Own(Fixed):
    """A gold for each row, by default its number."""

    def __init__(self, pay: Any, listed: Sequence[int] = range(64), rows: int = 0) -> None:
        super().__init__(pay, rows=rows)
        self.listed = listed

    def golds(self, row: int) -> dict[str, str]:
        return {"answer": str(self.listed[row])}


def test_frozen_weights():
    frozen = replace(rollout([["5"]]), plan=RunPlan(prompts=1, group_size=8, lr=1e-5, parameters=10, trained=0))
    assert [(one.cause, one.severity) for one in learning._movement(frozen)] == [("weights-do-not-move", "cannot learn")]


def test_ends_of_completions():
    cut = [["aaaa...", "b...", "c...", "d..."]] * 2
    assert causes(completions.found(rollout(cut, longer=lambda limit: [(limit, True)] * 4)))[0] == "never-ends"
    short = next(iter(completions.found(rollout(cut, longer=lambda limit: [(9, False), (12, False), (20, False), (32, True)]))))
    assert short.cause == "limit-too-short" and "90 % end within 32 tokens" in short.sentence
    assert causes(completions.found(rollout([["", "", "5", "6"]]))) == ["empty-completions"]
    assert completions.repeats(list(range(4)) * 12) and not completions.repeats(list(range(48)))


def test_mixed_groups_and_what_a_step_can_expect():
    first = rollout([["5", "6"], ["6", "7"], ["6", "7"], ["6", "7"]])
    signal = MixedGroups.of(first)
    assert signal.mixed[0] == 0.25 and signal.steps[0] == pytest.approx(1 - 0.75**4)


def test_the_share_of_bfloat16_weights_that_an_update_changes():
    """Between 2^-6 and 2^-5 values lie 2^-13 apart: an update of 2^-14 is half of that."""
    weight = torch.nn.Parameter(torch.full((4, 8), 0.02, dtype=torch.bfloat16))
    at = {size: learning.weight_facts([weight], size, 10, copies=False)["changed"] for size in (2.0**-14, 2.0**-15)}
    assert at == {2.0**-14: 1.0, 2.0**-15: 0.0}
    copied = learning.weight_facts([weight], 2.0**-15, 10, copies=True)
    assert (copied["changed"], copied["changed_in_all"]) == (0.0, 1.0)
    assert "changed" not in learning.weight_facts([weight.float()], 1e-9, 10, copies=False)


@pytest.mark.parametrize(("completions", "length"), [(8, 4), (8, 10), (64, 24)])
@pytest.mark.parametrize("kind", ["spread", "peaked"])
def test_samples_of_the_policy_never_have_a_surplus(completions: int, length: int, kind: str):
    """Peaked: in few samples no rare token occurs, so that their own standard error is near 0."""
    torch.manual_seed(0)
    for _ in range(50):
        law = law_of(kind, completions * length)
        one = surplus_of(law, law)
        assert abs(one.mean) < max(learning.SURPLUS, one.margin)


def law_of(kind: str, tokens: int) -> torch.Tensor:
    """Log-probs (tokens, 50)."""
    if kind == "spread":
        return torch.log_softmax(3 * torch.randn(tokens, 50), dim=-1)
    rest = 10 ** (-1.5 - 3 * torch.rand(tokens, 1))
    return torch.cat([1 - rest, (rest / 49).expand(-1, 49)], dim=1).log()


def surplus_of(sampler: torch.Tensor, policy: torch.Tensor) -> Surplus:
    drawn = torch.distributions.Categorical(logits=sampler).sample()
    expected, variance = learning.surprises(policy)
    seen = (-policy.gather(1, drawn[:, None])[:, 0]).clamp(max=CAP)
    return Surplus(float((seen - expected).sum()), float(variance.sum()), len(drawn))


def test_samples_of_another_policy_have_a_surplus_and_a_gap_of_few_tokens_warns_of_nothing():
    torch.manual_seed(0)
    other = surplus_of(law_of("spread", 640), law_of("spread", 640))
    colder = torch.log_softmax(3 * torch.randn(1536, 50), dim=-1)
    for one, kind in ((other, "less likely"), (surplus_of(torch.log_softmax(1.5 * colder, dim=-1), colder), "more likely")):
        found = sampler_findings(surplus=one)
        assert [(f.cause, f.severity) for f in found] == [("sampler-mismatch", "warning")] and kind in found[0].sentence
    assert not sampler_findings(gap=(0.19, 0.05)) and sampler_findings(gap=(0.19, 0.01))
    each = torch.tensor([[0.5, 0.5], [0.1, 0.0]])
    assert mean_of(each, torch.tensor([[True, True], [True, False]])) == pytest.approx((1.1 / 3, 4 / 15 * 2**0.5 * 2**0.5 / 3))


def sampler_findings(**plan: Any) -> list[Finding]:
    first = replace(rollout([["5"]]), plan=RunPlan(prompts=1, group_size=8, **plan))
    return list(learning._sampler(first))


def test_a_report_is_sorted_and_says_its_code():
    one = Finding(cause="all-wrong", severity="warning", sentence="a", next_step="b")
    two = Finding(cause="bos-doubled", severity="warning", sentence="a", next_step="b")
    three = Finding(cause="stale-samples", severity="cannot learn", sentence="a", next_step="b", examples=("x" * 500,))
    report = SymptomReport.of(["head"], [one, two, three, one])
    assert [f.cause for f in report.findings] == ["stale-samples", "bos-doubled", "all-wrong"] and report.exit_code == 3
    assert json.loads(json.dumps(report.tree()))["findings"][0]["examples"][0].count("x") < 200
    with pytest.raises(ValueError, match=r"causes\.py"):
        Finding(cause="new", severity="note", sentence="", next_step="")


def test_cut_completions_are_a_cause_only_if_nearly_all_are_or_if_the_others_earn_more():
    def found(groups: list[list[str]], pay: Any = None) -> tuple[str, str]:
        one = next(iter(completions.found(rollout(groups, pay, golds={"answer": "5"}))))
        return one.severity, one.sentence.partition("tokens")[2]

    def nothing(call: PayCall) -> float:
        return 0.0

    assert found([["6", "7", "it is 5 ...", "b..."]] * 2, nothing) == ("note", ", 2 of them behind their gold")
    assert found([["6", "7", "a...", "b..."]] * 2, nothing) == ("note", ", before their answer")
    assert found([["5", "5", "a...", "b..."]] * 4)[0] == "warning"
    assert found([["d...", "c...", "a...", "b..."]] * 4)[0] == "warning"


def test_a_reward_that_pays_the_gold_but_no_text_with_it():
    def first(texts: str) -> FirstRollout:
        made = rollout([[texts.format(row + 40), "x"] for row in range(4)], lambda call: 0.0)
        return replace(made, payer=Own(lambda call: float(call.text == str(call.prompt + 40)), range(40, 48)))

    (one,) = [one for one in rewards.found(first("It is {}.")) if one.cause == "reward-too-strict"]
    assert "4 of 8" in one.sentence and "'It is 40.'" in one.sentence
    assert "reward-too-strict" not in causes(rewards.found(first("It is 1{}.")))
    assert "reward-too-strict" not in causes(rewards.found(first("{}, or 40, 41, 42, 43")))


@pytest.mark.parametrize(
    ("golds", "answers", "named"),
    [
        ([300, 500, 200, 0, 700, 400, 100, 600], range(0, 800, 100), True),
        (range(0, 800, 100), [0, 100, 200, 400, 500, 600, 700, 900], False),
        ([0, 0, 1, 0, 0, 0, 0, 0], [1] * 8, False),  # of few golds one is the other's by chance
        (range(8), [5, 2, 2, 0, 1, 9, 9, 9], False),  # of golds side by side too
    ],
)
def test_golds_in_any_order_are_found_and_chance_is_not(golds: Sequence[int], answers: Sequence[int], named: bool):
    def pay(call: PayCall) -> float:
        return float(call.text == str(golds[call.prompt if call.gold is None else call.gold]))

    first = rollout([[str(answer)] * 2 + ["x", "y"] for answer in answers], pay)
    probe = rewards.Probe(replace(first, payer=Own(pay, golds, rows=8)))
    assert causes(rewards._shifted(probe)) == (["golds-shifted"] if named else [])


def test_a_reward_that_pays_the_error_is_inverted():
    groups = [["3", "5", "8", "x"]] * 4

    def distance(call: PayCall) -> float:
        return abs(int(call.text) - call.prompt) / 20 if call.text.isdigit() else 0.0

    def found(pay: Any) -> list[str]:
        return causes(rewards.found(replace(rollout(groups, pay), payer=Own(pay))))

    assert found(distance)[0] == "reward-inverted" and "gold-unreadable" not in found(distance)
    assert "reward-inverted" not in found(lambda call: 1.0 - distance(call) if call.text.isdigit() else 0.0)


def test_the_rate_is_that_of_the_schedule():
    warm = RateSchedule.of(lambda step: step / 2000, 200, 2000)
    assert warm.short and warm.mean == pytest.approx(0.04975) and warm.highest == 0.0995
    plan = RunPlan(prompts=1, group_size=8, lr=1e-6, rms=0.196, steps=200, parameters=10, trained=10)
    assert not list(learning._movement(replace(rollout([["5"]]), plan=plan)))
    (one,) = learning._movement(replace(rollout([["5"]]), plan=replace(plan, schedule=warm)))
    assert (one.cause, one.severity) == ("weights-do-not-move", "cannot learn") and "warm-up" in one.next_step
