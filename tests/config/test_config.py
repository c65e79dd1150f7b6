"""Schemas: what recipes may say, inheritance, overrides, round trips; errors name value, place and next step."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr import config as c
from sage_rlvr.core import Extra, Method, Token
from sage_rlvr.errors import CancellingGuide, ConfigError, SageError, require, wrong
from sage_rlvr.methods import METHODS, grpo, sage
from sage_rlvr.registry import registry_of

RECIPE = """\
steps: 10
method: {name: sage, base: {name: grpo, beta: 0.05}, guide: branch}
rollout:
  group_size: 4
optimizer:
  lr: 1e-6
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def train(path: Path, *overrides: tuple[str, str]) -> c.TrainConfig:
    return c.load_config(c.TrainConfig, path, overrides)


def refusal(path: Path, *overrides: tuple[str, str], kind: type[SageError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        train(path, *overrides)
    return str(caught.value)


# ---- files, inheritance, overrides


def test_precedence_is_default_then_base_then_file_then_override(recipe: Path) -> None:
    child = recipe.with_name("child.yaml")
    child.write_text("base: recipe.yaml\nrollout: {prompts_per_step: 8}\noptimizer: {lr: 1e-5}\n")
    config = train(child, ("optimizer.beta2", "0.95"), ("--rollout.prompts-per-step", "16"))
    assert config.rollout == c.RolloutConfig(prompts_per_step=16, group_size=4)
    assert config.optimizer == c.OptimizerConfig(lr=1e-5, beta2=0.95)
    assert config.steps == 10


def test_errors_name_the_file_the_value_came_from(recipe: Path) -> None:
    child = recipe.with_name("child.yaml")
    child.write_text("base: recipe.yaml\n\noptimizer: {beta1: fast}\n")
    assert "child.yaml:3: optimizer.beta1 = 'fast': expected a number" in refusal(child)
    recipe.write_text(RECIPE + "  beta1: fast\n")
    child.write_text("base: recipe.yaml\nsteps: 20\n")
    assert "recipe.yaml:7: optimizer.beta1 = 'fast'" in refusal(child)


@pytest.mark.parametrize(
    ("key", "text"), [("", "1"), ("a..b", "1"), ("steps.x", "1"), ("steps", "[1"), ("steps", "*a")]
)
def test_malformed_overrides(recipe: Path, key: str, text: str) -> None:
    assert refusal(recipe, (key, text)).startswith(f"--{key}")


# ---- decoding


def test_unknown_keys_are_answered_with_their_neighbor(recipe: Path) -> None:
    said = refusal(recipe, ("rollout.group_sise", "8"))
    assert said.startswith("--rollout.group_sise = 8: unknown key; did you mean 'group_size'?")
    assert "did you mean 'rollout.group_size'?" in refusal(recipe, ("group_size", "8"))
    assert "did you mean 'updates.minibatches'?" in refusal(recipe, ("rollout.minibatchs", "8"))
    assert "Keys here: seed, steps, model" in refusal(recipe, ("zzz", "8"))
    recipe.write_text(RECIPE + "optimizr: {lr: 1}\n")
    assert "recipe.yaml:7: optimizr = {'lr': 1}: unknown key; did you mean 'optimizer'?" in refusal(recipe)


@pytest.mark.parametrize(
    ("method", "key", "meant"),
    [
        ("{name: grpo, guide: branch}", "method.thresold", "method.guide.threshold"),  # near threads, which is no part's
        ("{name: grpo, guide: branch}", "method.ratio", "method.guide.ratio"),  # rlpr has a ratio of its own
        ("{name: grpo, guide: branch}", "method.clip_hihg", "clip_high"),
        ("{name: sage, base: {name: grpo}, guide: {name: branch}}", "method.ratio", "method.guide.ratio"),
        ("{name: sage, base: {name: grpo}, guide: {name: branch}}", "method.beta", "method.base.beta"),
        ("{name: compose, advantage: pass_at_k, title: one}", "method.k", "method.advantage.k"),
    ],
)
def test_a_key_of_a_part_is_found_one_level_below(recipe: Path, method: str, key: str, meant: str) -> None:
    assert f"{key} = 0.2: unknown key; did you mean '{meant}'?" in refusal(recipe, ("method", method), (key, "0.2"))


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("seed", "true", "expected a whole number, got the truth value True"),
        ("steps", "1e3", "expected a whole number, got the number 1000.0; write 1000"),
        ("steps", "'10'", "expected a whole number, got the text '10'; write it without quotes: 10"),
        ("optimizer.lr", "abc", "expected a number, got the text 'abc'"),
        ("optimizer.lr", "true", "expected a number, got the truth value True"),
        ("optimizer.lr", ".nan", "must be finite"),
        ("optimizer.lr", ".inf", "must be finite"),
        ("optimizer.lr", "1e999", "must be finite"),
        ("optimizer.lr", "null", "expected a number, got null"),
        ("optimizer", "[1]", "expected a mapping with the keys lr"),
        ("model", "7", "expected text, got the whole number 7; put it in quotes: '7'"),
        ("optimizer.schedule", "cosin", "unknown choice; did you mean 'cosine'? choose from: constant, linear, cosine"),
        ("method.guide", "{name: compose, guides: 8}", "expected a list such as [1, 2], got the whole number 8"),
        ("method.guide", "{name: compose, guides: [flat, tokn]}", "method.guide.guides.1.name = 'tokn': unknown"),
        ("world.counts", "[4]", "expected a mapping such as"),
        ("world.counts", "{four: 1}", "the key 'four' must be a whole number"),
        ("world.counts", "{4: 1, '4': 1}", "defined twice"),
        ("engine", "{name: ver, args: {}}", "engine.name = 'ver': unknown engine; did you mean 'verl'?"),
        ("engine", "megatron", "engine.name = 'megatron': unknown engine; choose from: loop, trl, verl"),
        ("engine", "{args: {bf16: true}}", "only for the engines trl and verl"),
        ("engine", "{name: trl, dtype: bfloat16}", "or train adapters (engine.lora)"),
        ("engine", "{name: trl, lora: {target_modules: []}}", "names no layer"),
        ("world.name", "sudoku", "unknown world; choose from: countdown"),
        ("method", "gpro", "method.name = 'gpro': unknown method; did you mean 'grpo'?"),
        ("method", "7", "expected a name (bnpo, "),
        ("method", "{beta: 1}", "the key 'name' is missing; choose from: bnpo, "),
        ("method.guide", "brunch", "method.guide.name = 'brunch': unknown guide; did you mean 'branch'?"),
        ("method.base.beta", "x", "expected a number or one of constant, linear"),
        ("method.base.beta", "cosin", "expected a number or one of constant, linear"),
        ("method.base.beta", "[1]", "expected a number or one of constant, linear"),
        ("method.base.beta", "{name: linear, start: 1}", "the key 'end' is missing (a number)"),
        ("method.guide", "{name: branch, ration: 1}", "method.guide.ration = 1: unknown key; did you mean 'ratio'?"),
    ],
)
def test_wrong_values_say_what_was_expected(recipe: Path, key: str, text: str, said: str) -> None:
    message = refusal(recipe, (key, text))
    assert said in message
    assert message.startswith(f"--{key}")


def test_missing_keys_are_named_with_their_kind(recipe: Path) -> None:
    recipe.write_text("steps: 3\n")
    assert "the key 'method' is missing" in refusal(recipe)
    recipe.write_text("method: grpo\n")
    assert "the key 'steps' is missing (a whole number)" in refusal(recipe)


def test_an_integer_serves_as_a_float_and_becomes_one(recipe: Path) -> None:
    lr = train(recipe, ("optimizer.lr", "1")).optimizer.lr
    assert lr == 1.0 and isinstance(lr, float)


# ---- the schemas


def test_a_key_that_nobody_reads_is_no_key(recipe: Path) -> None:
    assert "--evaluation = {'problems': 8}: unknown key" in refusal(recipe, ("evaluation", "{problems: 8}"))


def test_round_trip_through_dump_yaml_and_json(recipe: Path, tmp_path: Path) -> None:
    config = train(recipe, ("world.counts", "{3: 0.85, 4: 0.15}"), ("method.guide", "{name: token, norm: rank}"))
    assert c.decode(c.TrainConfig, c.dump(config)) == config
    assert c.decode(c.TrainConfig, json.loads(json.dumps(c.dump(config)))) == config
    (tmp_path / "again.yaml").write_text(c.to_yaml(config))
    assert train(tmp_path / "again.yaml") == config


@pytest.mark.slow
@given(
    st.builds(
        c.OptimizerConfig,
        lr=st.floats(1e-12, 10),
        eps=st.floats(1e-12, 1),
        schedule=st.sampled_from(["constant", "linear", "cosine"]),
    )
)
def test_floats_survive_yaml_exactly(optimizer: c.OptimizerConfig) -> None:
    assert c.decode(c.OptimizerConfig, c.parse_yaml(c.to_yaml(optimizer))) == optimizer


def test_a_method_records_its_defaults(recipe: Path) -> None:
    method = c.build("method", {"name": "grpo"})
    assert method == grpo() and c.dump(method)["beta"] == 0.05 and c.dump(method)["estimator"] == "k3"
    assert c.dump(grpo(beta=0.1)) == {**c.dump(method), "beta": 0.1}
    built = train(recipe).method
    assert built.name == "grpo+branch" and built.anchor.guide.ratio == 0.3


def test_a_method_put_together_by_hand_has_no_recipe() -> None:
    with pytest.raises(ConfigError, match=r"register a function that builds it: @sage_rlvr\.method"):
        c.dump(dataclasses.replace(grpo(), name="mine"))


def test_a_guide_beside_a_method_without_one_shapes_it(recipe: Path) -> None:
    config = train(recipe, ("method", "{name: grpo, beta: 0.1}"), ("method.guide", "token"))
    assert config.method == sage(grpo(beta=0.1), Token())
    assert c.dump(config)["method"]["name"] == "sage"
    said = refusal(recipe, ("method", "no_kl"), ("method.guide", "token"))
    assert "no KL term; use base=grpo(beta=0.05)" in said


def test_every_registered_name_decodes_with_its_defaults_or_says_what_is_missing(recipe: Path) -> None:
    for kind, place in {"method": "method", "guide": "method.guide", "schedule": "method.base.beta"}.items():
        for name in registry_of(kind):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    config = train(recipe, (place, name))
                except ConfigError as error:
                    assert "is missing" in str(error)
                else:
                    assert c.decode(c.TrainConfig, c.dump(config)) == config


def test_refusals_of_the_method_carry_their_place_and_kind(recipe: Path) -> None:
    said = refusal(recipe, ("method.base.estimator", "k2"), kind=CancellingGuide)
    assert "recipe.yaml:2 with --method.base.estimator: method: " in said
    assert "cancels" in said
    said = refusal(recipe, ("method.base.beta", "0"))
    assert "method: " in said and "beta > 0" in said
    assert "method.guide: " in refusal(recipe, ("method.guide", "{name: branch, threshold: q80}"))
    with pytest.raises(CancellingGuide):
        c.build("method", {"name": "sage", "base": {"name": "grpo", "estimator": "k2"}, "guide": "branch"})


@dataclasses.dataclass(frozen=True)
class Said:
    ratio: float = 0.3
    told: bool = True

    def __post_init__(self) -> None:
        require(not self.told or self.ratio < 1, "inner.ratio", self.ratio, "too much")
        if self.ratio >= 1:
            raise (ConfigError if self.ratio < 2 else ValueError)(f"ratio = {self.ratio}: too much")


@dataclasses.dataclass(frozen=True)
class Whole:
    part: Said


def test_a_refusal_is_placed_by_its_values_and_not_by_its_words(recipe: Path) -> None:
    """What a part tells as values (`errors.wrong`) joins the place of the part; what it says in words stands behind that."""
    for tree, said in (
        ({"ratio": 1.5}, "part.inner.ratio = 1.5: too much"),
        ({"ratio": 1.5, "told": False}, "part: ratio = 1.5: too much"),
        ({"ratio": 2.5, "told": False}, "part: ratio = 2.5: too much"),
    ):
        with pytest.raises(ConfigError) as caught:
            c.decode(Whole, {"part": tree})
        assert str(caught.value) == said
    with pytest.raises(ConfigError, match=r"^ratio = 1\.5: too much$"):
        c.decode(Said, {"ratio": 1.5, "told": False})
    assert [issue.key_path for issue in wrong(("arms", "a.b"), 1, "no").issues] == [("arms", "a.b")]


def test_a_noise_only_guide_warns_once(recipe: Path) -> None:
    with pytest.warns(UserWarning, match="noise only") as caught:
        train(recipe, ("method.guide", "random"))
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("steps", "0", "steps = 0: must be above 0"),
        ("seed", "-1", "must not be negative"),
        ("seed", "9223372036854775808", "below 2**63"),
        ("model", "''", "set 'embedded'"),
        ("base_model", "' '", "set 'embedded'"),
        ("base_model", "7", "expected text"),
        ("rollout.group_size", "1", "at least 2"),
        ("rollout.temperature", "0", "must be above 0"),
        ("rollout.prompts_per_step", "20001", "world.train_problems = 20000"),
        (
            "updates.minibatches",
            "5",
            "must divide rollout.prompts_per_step = 32, because a mini-batch holds whole groups; try 4",
        ),
        ("updates.minibatches", "0", "must be above 0"),
        ("updates.micro_batch", "33", "32 groups"),
        ("updates.micro_batch", "0", "must be above 0"),
        ("optimizer.lr", "-1e-4", "must be above 0"),
        ("optimizer.beta1", "1", "must be in [0, 1)"),
        ("optimizer.warmup_steps", "10", "10 optimizer steps"),
        ("checkpoint.keep", "0", "must be above 0"),
        ("engine.threads", "0", "must be above 0, or null"),
        ("rollout.max_new_tokens", "0", "must be above 0"),
        ("optimizer.weight_decay", "-0.1", "must not be negative"),
        ("world.counts", "{}", "at least one"),
        ("world.counts", "{9: 1}", "from 2 to 5"),
        ("world.train_problems", "0", "must be above 0"),
        ("world.min_target", "200", "min_target"),
    ],
)
def test_values_that_cannot_mean_anything(recipe: Path, key: str, text: str, said: str) -> None:
    message = refusal(recipe, (key, text))
    assert said in message
    assert key.split(".")[0] in message


def test_a_longer_run_of_updates_allows_a_longer_warmup(recipe: Path) -> None:
    config = train(recipe, ("optimizer.warmup_steps", "30"), ("updates.epochs", "2"), ("updates.minibatches", "2"))
    assert config.optimizer.warmup_steps == 30


def test_what_the_reference_is_loaded_from(recipe: Path) -> None:
    def reference(source: str, *more: tuple[str, str]) -> str | None:
        return train(recipe, ("model", "org/sft"), ("method.base.source", source), *more).reference

    base = ("base_model", "org/base")
    assert reference("base") == "org/sft" and reference("base", base) == "org/base"
    assert reference("sft") == reference("sft", base) == reference("snapshot@9", base) == "org/sft"
    assert reference("some/path", base) == "some/path"
    assert train(recipe, ("method", "no_kl"), base).reference is None
    assert train(recipe).base_model is None


def test_a_snapshot_lies_before_the_end_of_the_run(recipe: Path) -> None:
    source = "method.base.source"
    assert train(recipe, (source, "snapshot@9")).steps == 10
    for late in ("snapshot@10", "snapshot@11"):
        said = refusal(recipe, (source, late))
        assert "steps = 10" in said and late in said and "more steps" in said
    assert train(recipe, (source, "snapshot@10"), ("steps", "11")).steps == 11


def test_an_extra_and_the_rollout_have_one_length_limit(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Overlong(Extra):
        max_tokens: int | None
        equation = "r of short completions"

        @property
        def made_for(self) -> int | None:
            return self.max_tokens

    def shaped(max_tokens: int | None = 24) -> Method:
        return dataclasses.replace(grpo(), name="shaped", extras=(Overlong(max_tokens),))

    monkeypatch.setitem(METHODS, "shaped", shaped)
    assert train(recipe, ("method", "shaped")).rollout.max_new_tokens == 24
    assert train(recipe, ("method", "{name: shaped, max_tokens: null}"), ("rollout.max_new_tokens", "7"))
    said = refusal(recipe, ("method", "{name: shaped, max_tokens: 20480}"))
    assert "rollout.max_new_tokens = 24" in said and "Overlong is made for max_tokens = 20480" in said
    assert "set rollout.max_new_tokens to 20480, or the method's max_tokens to 24" in said


def test_sft_schema(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text("steps: 900\nworld: {counts: {3: 0.85, 4: 0.15}}\nmodel: {heads: 8}\n")
    config = c.load_config(c.SftConfig, path)
    assert config.world.counts == {3: 0.85, 4: 0.15} and config.model.heads == 8 and config.batch_size == 256
    assert c.decode(c.SftConfig, c.dump(config)) == config
    assert config.world.build().counts == {3: 0.85, 4: 0.15}
    with pytest.raises(ConfigError, match=r"model\.heads = 5: hidden = 128 must split"):
        c.load_config(c.SftConfig, path, [("model.heads", "5")])
    with pytest.raises(ConfigError, match="unknown key"):
        c.load_config(c.SftConfig, path, [("rollout.group_size", "5")])


def test_configurations_are_values() -> None:
    config = c.TrainConfig(steps=3, method=grpo())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        c.RolloutConfig(8)  # type: ignore[misc]
    assert dataclasses.replace(config, steps=4).steps == 4


def test_reading_yaml_needs_no_torch() -> None:
    code = "import sys, sage_rlvr.config, sage_rlvr.runs; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    source = Path(c.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("method", ["{name: distinct, k: 9}", "{name: pkpo, k: 8, baseline: sloo}", "{name: passk_training, k: 9}"])
def test_a_group_too_small_for_k_is_refused_before_it_is_drawn(recipe: Path, method: str) -> None:
    said = refusal(recipe, ("method", method), ("rollout.group_size", "8"))
    assert "rollout.group_size = 8" in said and "needs groups of 9 at least" in said
