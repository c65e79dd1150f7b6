"""What `doctor --model --recipe` counts: operations and bytes against counts by hand and against a real pass."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import scale
from sage_rlvr.config import EngineConfig, SftConfig, TrainConfig, load_config, read_recipe
from sage_rlvr.core import Branch, Key, Signals
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.folders import EMBEDDED, embedded_policy
from sage_rlvr.models.lm_head import entropies_of
from sage_rlvr.training.counts import footprint
from sage_rlvr.training.counts.dry_run import dry_run_lines
from sage_rlvr.training.counts.footprint import Size, footprint_lines, forward_pass, micro_batch, step_operations
from sage_rlvr.training.verl.arguments import MICRO, verl_words

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 40}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with nothing but a config.json, of four queries to two keys."""
    LlamaConfig(**SIZES).save_pretrained(tmp_path / "small")
    assert [file.name for file in (tmp_path / "small").iterdir()] == ["config.json"]
    return tmp_path / "small"


def test_a_model_is_sized_by_its_config_alone(small: Path) -> None:
    size = Size.of(str(small))
    assert size.numbers == sum(p.numel() for p in LlamaForCausalLM(LlamaConfig(**SIZES)).parameters())
    assert (size.kv, size.vocabulary, size.hidden, size.layers) == (2 * 3 * 2 * 4, 40, 16, 3)


def test_operations_are_those_of_the_products(small: Path) -> None:
    """By hand: 2 a weight and token for q and o (16 x 16), k and v (16 x 8), three of (16 x 24), and 4 T^2 C for attention."""
    tokens, weights = 10, 16 * 16 * 2 + 16 * 8 * 2 + 16 * 24 * 3
    wanted = 3 * (2 * tokens * weights + 4 * tokens * tokens * 16)
    size = Size.of(str(small))
    assert forward_pass(size, 1, tokens, False).operations == wanted
    assert forward_pass(size, 7, tokens, True).operations == 7 * wanted


def test_what_a_pass_keeps_is_what_a_real_pass_keeps(small: Path) -> None:
    """Bytes that autograd saved on the CPU, the weights not counted; they grow with the rows, and halve in bfloat16."""
    size, model = Size.of(str(small)), LlamaForCausalLM(LlamaConfig(**SIZES))
    own, kept = {p.untyped_storage()._cdata for p in model.parameters()}, {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model.model(input_ids=torch.zeros(8, 50, dtype=torch.long), use_cache=False)
    real, counted = sum(t.untyped_storage().nbytes() for t in kept.values()), forward_pass(size, 8, 50, False).kept
    assert counted == pytest.approx(real, rel=0.1)
    assert out.last_hidden_state.requires_grad
    assert forward_pass(size, 16, 50, False).kept == pytest.approx(2 * counted, rel=0.02)
    assert counted / 2 <= forward_pass(size, 8, 50, True).kept < 0.75 * counted  # norms are computed in float32


def test_a_step_counts_who_computes_what() -> None:
    """Sampling and scoring are one pass each, an epoch of training three: the reference's is left out without one."""
    size = Size.of(EMBEDDED)
    anchored, bare = (load_config(TrainConfig, name) for name in ("grpo", "no_kl"))
    parts = step_operations(size, anchored)
    assert parts["training"] == 3 * parts["sampling"] == 3 * parts["the reference's scores"]
    assert set(step_operations(size, bare)) == {"sampling", "training"}
    twice = load_config(TrainConfig, "grpo", [("updates.epochs", "2")])
    assert step_operations(size, twice)["training"] == 2 * parts["training"]
    assert step_operations(size, twice)["the policy's scores"] == parts["sampling"]


class Operations(TorchDispatchMode):
    """Numbers that operations computed; views and moves compute none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            reads = [x.numel() for x in args if isinstance(x, torch.Tensor)]
            self.count += max([out.numel(), *reads])
        return out


def test_what_parts_add_is_that_of_their_pieces(small: Path) -> None:
    """The reference's pass, the entropies and the guide, counted where they run; sums of a percentile by their bytes."""
    size = Size.of(str(small))
    config = load_config(TrainConfig, "sage_branch", [("rollout.max_new_tokens", "10")])
    count, tokens = config.rollout.completions, config.rollout.completions * 10
    parts = {gpus: footprint.added(size, config, gpus, 6, 4, 3) for gpus in (1, 2, 4)}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation="eager"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(2, 10, dtype=torch.long), use_cache=False)
    row = counter.get_total_flops() // 2
    assert parts[1]["anchor"].operations == count * row and parts[1]["pass@k"].operations == 6 * 4 * row // 3
    weights = 2 * size.numbers  # one micro-batch: of three layers and the rest, of which another GPU holds half, or three quarters
    found = [(parts[gpus]["anchor"].calls, parts[gpus]["anchor"].received) for gpus in (1, 2, 4)]
    assert micro_batch(config)[0] == count and found == [(4, 0), (4, weights / 2), (4, weights * 3 / 4)]
    log_probs = torch.randn(7, 4000).log_softmax(-1)
    with Operations() as seen:
        entropies_of(log_probs)
    assert parts[1]["entropy"].operations / (tokens * size.vocabulary) == pytest.approx(seen.count / log_probs.numel(), rel=0.01)

    sums: list[int] = []

    class Here(Signals):
        def total(self, counts: torch.Tensor) -> torch.Tensor:
            sums.append(counts.nbytes)
            return counts

    ones = torch.ones(500, 4000, dtype=torch.bool)
    signals = Here(-torch.rand(500, 4000), None, ones, torch.arange(500), torch.rand(500, 4000) + 1)
    with Operations() as seen:
        Branch("p80")(signals, 0, 1, Key(0))
    guide = parts[1]["guide"]
    assert 0.5 * guide.operations < seen.count / ones.numel() * tokens <= guide.operations
    assert len(sums) == guide.calls and sum(sums) <= guide.received


def test_a_micro_batch_of_verl_is_what_its_command_says() -> None:
    """Dotted or nested, with or without a +; by default all that an update brings to a worker, of 8 unless engine.args say so."""

    def told(*edits: str) -> tuple[int, bool]:
        given = [edit.split("=", 1) for edit in ("engine.name=verl", *edits)]
        config = load_config(TrainConfig, "sage_branch", [(key, value) for key, value in given])
        found, again = micro_batch(config)
        words = dict(word.split("=", 1) for word in verl_words(config, Path("verl"), template=None, longest=1))
        assert words.get(f"+{MICRO}", words[MICRO]) == str(found)
        return found, again

    sizes = ("rollout.prompts_per_step=16", "rollout.group_size=8")
    assert told(*sizes) == (16, True)
    assert told(*sizes, "updates.minibatches=4", "updates.micro_batch=1") == (4, True)
    assert told(*sizes, "engine.args={trainer: {n_gpus_per_node: 2}}") == (64, True)
    assert told(*sizes, "engine.args={trainer.n_gpus_per_node: 2}", "updates.micro_batch=3") == (8, True)
    model = "actor_rollout_ref: {actor: {ppo_micro_batch_size_per_gpu: 3}, model: {enable_gradient_checkpointing: false}}"
    assert told(*sizes, f"engine.args={{{model}}}") == (3, False)
    assert told(*sizes, f"engine.args={{+{MICRO}: 5}}") == (5, True)


def test_the_fields_through_the_driver_are_those_that_the_adapter_reads() -> None:
    """All but the prompts, which are no field of the response."""
    source = Path(footprint.__file__).parents[1] / "verl" / "trainer.py"
    (fields,) = [
        ast.literal_eval(line.value)
        for line in ast.parse(source.read_text()).body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id == "FIELDS"
    ]
    assert set(footprint.READ) == set(fields) - {"prompts"}


def test_the_lines_say_it_for_a_recipe_and_for_a_model_alone(small: Path) -> None:
    config = load_config(TrainConfig, "sage_branch", [("engine.dtype", "bfloat16")])
    text = "\n".join(footprint_lines(None, config, (1, 64)))
    for wanted in ("855,808 parameters", "float32 copies", "activations of a micro batch", "KV cache of a rollout", "    64  "):
        assert wanted in text
    assert "1,536,000 generated tokens at most" in text
    alone = "\n".join(footprint_lines(str(small), None, ()))
    assert "3 layers of width 16" in alone and "KiB of KV cache a token" in alone and "A step" not in alone


def test_what_fits_on_each_engine(small: Path) -> None:
    """On the loop as on one device alone: its state and a micro-batch, to the byte."""
    size = Size.of(str(small))
    config = load_config(TrainConfig, "sage_branch", [("engine.dtype", "bfloat16"), ("rollout.max_new_tokens", "10")])
    lines = list(footprint.fits_lines(size, config, (1, 4), 80.0))
    numbers = {"loop": (1,), "trl": (1, 4), "verl": (1, 4)}
    assert [line.split()[:2] for line in lines] == [[name, str(n)] for name, several in numbers.items() for n in several]
    assert all("x 80 GB: fits, about" in line for line in lines)
    state = sum(footprint.tensor_bytes(config, size.where, False).values())
    needed = (state + footprint.forward_pass(size, config.rollout.completions, 10, True).kept + (1 << 24)) / 1e9
    words = [next(footprint.fits_lines(size, config, (1,), needed * factor)) for factor in (1 + 1e-6, 1 - 1e-6)]
    assert ": fits" in words[0] and "does NOT fit" in words[1]


def test_the_cache_of_the_loop_is_that_of_a_piece_of_its_rollout(small: Path) -> None:
    """A rollout of more than 4 GiB of keys and values, of a model whose weights are less: 4 GiB; on the other engines all of it."""
    size = Size.of(str(small))
    config = load_config(TrainConfig, "sage_branch", [("rollout.max_new_tokens", "2000000")])
    whole = config.rollout.completions * 2_000_000 * size.kv * 4
    assert whole > footprint.CACHE == footprint._cache(size, config, 4)
    elsewhere = replace(config, engine=EngineConfig(name="trl"))
    assert footprint._cache(size, elsewhere, 4) == whole


def test_without_a_network_it_says_what_to_do(small: Path) -> None:
    with pytest.raises(ConfigError, match=r"nobody/nothing.*Hub returned none.*put this file into a folder"):
        Size.of("nobody/nothing")
    with pytest.raises(ConfigError, match=r"no config\.json found"):
        Size.of(str(small.parent))


@pytest.mark.parametrize("name", ["real/grpo", "real/sft"])
def test_the_recipes_of_real_models_have_a_dry_run_and_a_count(name: str, small: Path) -> None:
    """Without the weights: the config.json of SmolLM2 ships. The count is made for another model of the same recipe."""
    config = read_recipe(name, ())
    assert isinstance(config, TrainConfig | SftConfig)
    text = "\n".join(dry_run_lines(config))
    assert "optimizer steps" in text
    if isinstance(config, TrainConfig):
        assert "GiB  optimizer state" in text
        assert "A step" in "\n".join(footprint_lines(str(small), config, (1,)))


def test_the_embedded_policy_is_found() -> None:
    assert Size.of(EMBEDDED).where == embedded_policy()


@pytest.mark.slow
def test_the_tables_of_the_page_are_counted() -> None:
    """lab/pages/scale.md holds what `benchmarks/scale.py` prints."""
    (found,) = scale.MARK.findall((Path(__file__).parents[2] / "lab" / "pages" / "scale.md").read_text())
    assert found == scale.tables() and "| 8,192 | 16,384 | 3.00 | 0.50 |" in found
