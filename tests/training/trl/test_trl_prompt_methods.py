"""Methods that choose or weigh prompts, on TRL: weights of groups and of the base's samples, the KL per prompt, first tokens."""



from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from base_store import base_store
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.contrib.methods.bbg import bbg, zero_success
from sage_rlvr.contrib.methods.f_grpo import f_grpo
from sage_rlvr.contrib.methods.pba import pba
from sage_rlvr.contrib.methods.reft import reft
from sage_rlvr.core import Anchor, Focal, GroupNormalized, Posterior
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.base_samples import base_samples_of
from sage_rlvr.methods import grpo
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir
from sage_rlvr.training.engines import refusals
from sage_rlvr.training.first_tokens import first_logits
from sage_rlvr.training.trl import SageTrainer, grpo_config
from sage_rlvr.training.trl.run import build as build_run
from sage_rlvr.training.trl.run import train
from training.trl.spy_common import gradients, keep_inputs
from trl_common import LAYOUTS, arguments, build, on_ranks, weights


def counts_of(row: Mapping[str, Any]) -> tuple[int, int]:
    """3 of 4 samples of a problem are right where its first number is even, else none."""
    return (3 if int(row["prompt"][0]) % 2 == 0 else 0), 4


class Kept(SageTrainer):
    """Keeps what it drew: prompts, rewards, and the rows as the loss gets them."""

    def _draw(self, inputs: Any) -> Any:
        prompts = [row["prompt"] for row in inputs]
        output, rewards = super()._draw(inputs)
        self.__dict__.setdefault("drawn", []).append((prompts, output, rewards.clone()))
        return output, rewards


def trained(policy: Path, folder: Path, method: Any, layout: str = "plain", **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    trainer = build(policy, arguments(folder, layout, **grpo_config(method)), Kept, method=method, **more)
    caught: list[dict[str, Any]] = []
    keep_inputs(trainer, caught)
    trainer.train()
    return trainer, caught


def test_focal_and_zero_success_by_hand(tiny_policy: Path, tmp_path: Path):
    for number, method in enumerate((f_grpo(gamma=2.0), zero_success())):
        trainer, caught = trained(tiny_policy, tmp_path / str(number), method)
        for (_, _, rewards), inputs in zip(trainer.drawn, caught, strict=True):
            share = rewards.mean(1, keepdim=True)
            wanted = -(share == 0).float().expand_as(rewards)
            if number == 0:
                wanted = (1 - share) ** 2 * GroupNormalized()(rewards)
            assert inputs["advantages"].sort().values.tolist() == pytest.approx(wanted.flatten().sort().values.tolist(), abs=1e-6)


def test_gamma_0_is_grpo_on_trl_too(tiny_policy: Path, tmp_path: Path):
    after = [weights(trained(tiny_policy, tmp_path / name, method)[0]) for name, method in
             (("f", f_grpo(gamma=0.0)), ("g", replace(grpo(), advantage=GroupNormalized(eps=1e-4))))]  # fmt: skip
    for name, value in after[0].items():
        assert torch.allclose(value, after[1][name], atol=1e-6), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kl_acts_at_the_boundary_alone_in_every_layout(layout: str, tiny_policy: Path, tmp_path: Path):
    """Below 0.5: rows of the base's unsolved problems keep their reference, and the others' is the policy itself."""
    method = pba(beta=0.5, below=0.5, k=1, above=0.0, sharpen=None)
    method = replace(method, anchor=replace(method.anchor, prompts=replace(method.anchor.prompts, k=None)))
    trainer, caught = trained(tiny_policy, tmp_path, method, layout, base_counts=counts_of)
    seen, replaced = set(), False
    for inputs in caught:
        mask = inputs["completion_mask"].bool()
        for row, (weight, reference, plain) in enumerate(
            zip(inputs["sage_kl_weights"], inputs["ref_per_token_logps"], inputs["sage_ref_logps"], strict=True)
        ):
            seen.add(float(weight))
            text = trainer.processing_class.decode(inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()])
            assert float(weight) == float(int(text.replace(" ", "")[0]) % 2 == 1)
            kept = torch.equal(reference[mask[row]], plain[mask[row]])
            assert kept or not weight
            replaced |= not kept
    assert seen == {0.0, 1.0} and replaced


def test_a_row_of_weight_0_has_no_kl_gradient(tiny_policy: Path, tmp_path: Path):
    """Against TRL's own loss without a KL: the same gradient where no prompt is at the boundary, and GRPO's where all are."""
    gradient = {}
    for name, method, counts in (
        ("none", pba(beta=0.5, sharpen=None), lambda row: (4, 4)),
        ("no kl", replace(grpo(beta=0.0), anchor=None), None),
        ("all", pba(beta=0.5, sharpen=None), lambda row: (0, 4)),
        ("grpo", grpo(beta=0.5), None),
    ):
        more = {} if counts is None else {"base_counts": counts}
        trainer = build(tiny_policy, arguments(tmp_path / name, "moves: steps", **grpo_config(method)), Kept, method=method, **more)
        found: list[dict[str, Any]] = []
        plain = trainer._compute_loss

        def keep(model: Any, inputs: Any, plain: Any = plain, found: Any = found, trainer: Any = trainer) -> Any:
            loss = plain(model, inputs)
            trainer.model.zero_grad()
            loss.backward(retain_graph=True)
            found.append(gradients(trainer))
            trainer.model.zero_grad()
            return loss

        trainer._compute_loss = keep
        trainer.train()
        gradient[name] = found[1]  # of the second update, before which the policy has moved
    for one, other in (("none", "no kl"), ("all", "grpo")):
        for name, value in gradient[one].items():
            assert torch.allclose(value, gradient[other][name], atol=1e-4, rtol=1e-3), (one, name)
    assert any(not torch.allclose(value, gradient["grpo"][name], atol=1e-4) for name, value in gradient["none"].items())


def test_base_counts_weigh_groups_and_are_asked_for(tiny_policy: Path, tmp_path: Path):
    method = bbg(k=3, of="base")
    _, caught = trained(tiny_policy, tmp_path / "a", method, base_counts=counts_of)
    weight = Posterior(3).weigh(torch.tensor([0.0, 3.0]).double(), torch.tensor([4.0, 4.0]).double()).tolist()
    sizes = {round(abs(float(a)), 4) for inputs in caught for a in inputs["advantages"]}
    assert sizes == {round(one, 4) for one in weight}
    with pytest.raises(ConfigError, match="base_counts="):
        build(tiny_policy, arguments(tmp_path / "b", **grpo_config(method)), SageTrainer, method=method)
    trainer = build(
        tiny_policy, arguments(tmp_path / "c", **grpo_config(method)), SageTrainer, method=method, base_counts=lambda row: 3
    )
    with pytest.raises(DataError, match="base_counts returned 3"):
        trainer.train()


@pytest.mark.parametrize("layout", ["plain", "moves: both", "two rollouts a step"])
def test_first_tokens_are_split_evenly_over_the_likeliest(layout: str, tiny_policy: Path, tmp_path: Path):
    method = reft(n=3, beta=0.5)
    trainer = build(tiny_policy, arguments(tmp_path, layout, **grpo_config(method)), Kept, method=method)
    drawn, plain = [], trainer._draw

    def keep(inputs: Any) -> Any:
        prompts = [trainer.processing_class(row["prompt"])["input_ids"] for row in inputs]
        likeliest = first_logits(trainer.model, prompts[::3]).topk(3).indices
        output, rewards = plain(inputs)
        drawn.append((likeliest, output["completion_ids"][:, 0].reshape(-1, 3)))
        return output, rewards

    trainer._draw = keep
    trainer.train()
    assert drawn
    for likeliest, first in drawn:
        assert all(Counter(a) == Counter(b) for a, b in zip(likeliest.tolist(), first.tolist(), strict=True))
    with pytest.raises(ConfigError, match="rollout_func together with FirstTokens"):
        build(tiny_policy, arguments(tmp_path, **grpo_config(method)), Kept, method=method, rollout_func=print)


def test_a_recipe_runs_on_trl_and_a_problem_without_samples_is_named(write_recipe: Any, tmp_path: Path):
    for number, method in enumerate(("{name: pba, beta: 0.5, sharpen: null}", "{name: reft, n: 2}")):
        recipe = write_recipe(method, more="engine: {name: trl}\nseed: 3\n")
        config = load_config(TrainConfig, recipe)
        base, problems = None, [str(problem.problem_id) for problem in config.world.build().problems("train")]
        if number == 0:
            base = base_samples_of(base_store(tmp_path / "base", {name: n % 10 for n, name in enumerate(problems)}))
            with pytest.raises(ConfigError, match="base_samples is null"):
                build_run(config, tmp_path / "none")
            few = base_samples_of(base_store(tmp_path / "few", {name: 1 for name in problems[:-1]}))
            with pytest.raises(DataError, match=f"training problem '{problems[-1]}'"):
                build_run(config, tmp_path / "none", base_samples=few)
        folder = tmp_path / f"run{number}"
        with RunDir.open(folder, dump(config)) as run:
            assert train(config, run, folder, Silent(), base=base) == 2


def test_what_trl_and_verl_do_not_run_is_refused_with_the_next_step():
    graded = replace(grpo(), anchor=Anchor(0.1, prompts=Focal()))
    for engine in ("trl", "verl"):
        (refusal,) = refusals(graded, engine)
        assert "anchor.prompts" in str(refusal) and "placement='reward'" in str(refusal)
    assert [r.path for r in refusals(pba(sharpen=None), "trl")] == []
    assert "placement='reward'" in str(refusals(pba(sharpen=None), "verl")[0])
    assert any("SHARPEN" in str(r).upper() for r in refusals(pba(), "trl"))
    assert "corrected: false" in str(refusals(reft(corrected=True), "trl")[0])
    assert "permuted: false" in str(refusals(reft(permuted=True), "trl")[0])
    assert "sample every token" in str(refusals(reft(), "verl")[0])
    assert not refusals(f_grpo(), "verl") and not refusals(zero_success(permuted=True), "verl") and not refusals(bbg(), "verl")
    assert "without the ids" in str(refusals(bbg(of="base"), "verl")[0])


RANKS = """
import sys
from pathlib import Path
import torch
from sage_rlvr.contrib.methods.reft import reft
from sage_rlvr.training.trl import grpo_config
from training.trl.test_trl_prompt_methods import Kept
from trl_common import arguments, build

policy, out, world = sys.argv[1:]
method = reft(n=3, beta=0.5)
more = {"per_device_train_batch_size": 12 // int(world), "num_generations": 4, "max_steps": 1}
args = arguments(Path(out), **grpo_config(method) | more)
trainer = build(Path(policy), args, Kept, method=method)
trainer.train()
prompts, output, _ = trainer.drawn[0]
tokens = [row[mask.bool()].tolist() for row, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)]
torch.save((prompts, tokens), Path(out) / f"rank{trainer.accelerator.process_index}.pt")
"""


@pytest.mark.slow
def test_a_group_that_lies_across_ranks_is_split_as_on_one(tiny_policy: Path, tmp_path: Path):
    """Groups of 4 rows over ranks of 6: the second group has its first two rows on one rank and the others on the next."""
    ((prompts, tokens),) = on_ranks(RANKS, tmp_path, 1, str(tiny_policy), "OUT")
    parts = on_ranks(RANKS, tmp_path, 2, str(tiny_policy), "OUT")
    assert [prompt for found, _ in parts for prompt in found] == prompts
    assert [row for _, found in parts for row in found] == tokens
