"""A design in small: what is refused, which controls are added and why, and that an arm is known by what it is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sage_rlvr import plugins
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.contrib.methods.eapo import Eapo
from sage_rlvr.core.extras.tokens.placebo import PlaceboWeight
from sage_rlvr.core.guides import Placebo
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import METHODS
from sage_rlvr.sweeps.controls import same
from sage_rlvr.sweeps.design import DesignSpec, load_design
from sage_rlvr.sweeps.resolve import resolve
from sweeps.sweep_common import arms_of, check_design

ROOT = Path(__file__).resolve().parents[2]
DESIGNS, EXPERIMENTS = ROOT / "recipes" / "designs", ROOT / "lab" / "experiments"
pytestmark = pytest.mark.filterwarnings("ignore:Random in the loss", "ignore:.*the part of q that depends on the batch")


def write(folder: Path, text: str) -> Path:
    path = folder / "design.yaml"
    path.write_text("title: small\nseeds: [0, 1]\n" + text, encoding="utf-8")
    return path


def test_missing_controls_are_added_and_those_that_are_there_count(tmp_path: Path) -> None:
    arms, said = arms_of(write(tmp_path, "arms: {branch: sage_branch}\ncontrol: branch\n"))
    assert list(arms) == [
        *("branch", "branch_unguided", "branch_placebo", "branch_unguided_beta0.025", "branch_unguided_beta0.1"),
        "branch_unguided_no_kl",
    ]
    branch = arms["branch"]
    assert branch.label == "SAGE-Branch" and not branch.why and branch.guided and said == []
    assert (branch.plain, branch.placebo, branch.no_kl) == (
        "branch_unguided",
        "branch_placebo",
        "branch_unguided_no_kl",
    )
    assert branch.matched == ("branch_unguided_beta0.025", "branch_unguided", "branch_unguided_beta0.1")
    assert same(arms["branch_unguided"].config, load_config(TrainConfig, "grpo"))
    assert same(arms["branch_unguided_no_kl"].config, load_config(TrainConfig, "no_kl"))
    assert same(arms["branch_placebo"].config, load_config(TrainConfig, "placebo"))
    assert all(arm.why for name, arm in arms.items() if name != "branch")
    there, _ = arms_of(
        write(
            tmp_path,
            "arms: {a: sage_branch, b: placebo, c: no_kl, d: grpo}\ncontrol: d\ncontrols: [no_kl, unguided, placebo]\n",
        )
    )
    assert list(there) == ["a", "b", "c", "d"] and (there["a"].plain, there["a"].placebo, there["a"].no_kl) == (
        "d",
        "b",
        "c",
    )
    assert there["b"].plain == "d" and there["b"].placebo is None and not there["d"].guided and there["d"].no_kl == "c"


def test_a_guide_that_looks_at_nothing_needs_no_placebo_and_a_schedule_no_matched_beta(tmp_path: Path) -> None:
    edits = "{method.base.beta: {name: linear, start: 0.1, end: 0.01}}"
    arms, said = arms_of(
        write(tmp_path, f"arms: {{r: sage_random, b: {{recipe: sage_branch, edits: {edits}}}}}\ncontrol: r\n")
    )
    assert not any("placebo" in name and name.startswith("r") for name in arms) and arms["r"].placebo is None
    assert any("no placebo of SAGE-Random" in line for line in said)
    assert any("no matched beta for b" in line for line in said) and arms["b"].matched == ()


def test_where_the_kl_is_in_the_reward_the_placebo_is_centered(tmp_path: Path) -> None:
    """A permuted log q that is not centered pays for length there; it counts where it is all there is, and adds none."""
    arms, _ = arms_of(write(tmp_path, "arms: {r: rloo_rarity, rloo: rloo}\ncontrol: rloo\ncontrols: [placebo]\n"))
    assert list(arms) == ["r", "rloo", "r_placebo"] and arms["r"].placebo == "r_placebo"
    assert arms["r_placebo"].why == "RLOO+Rarity with its q permuted over the tokens, centered so that its mean is 0"
    assert same(arms["r_placebo"].config, load_config(TrainConfig, "rloo_rarity_placebo_centered"))
    both = "old: rloo_rarity_placebo, new: rloo_rarity_placebo_centered"
    there, _ = arms_of(write(tmp_path, f"arms: {{r: rloo_rarity, {both}}}\ncontrol: r\ncontrols: none\n"))
    assert there["r"].placebo == "new" and there["new"].placebo is there["old"].placebo is None
    alone, _ = arms_of(
        write(tmp_path, "arms: {r: rloo_rarity, old: rloo_rarity_placebo}\ncontrol: r\ncontrols: none\n")
    )
    assert alone["r"].placebo == "old"


def test_a_token_weight_and_a_bank_of_answers_get_their_placebo(tmp_path: Path) -> None:
    """Without a guide: the weights permuted within each completion, or each answer weighed by how often it was found."""
    text = "arms: {e: eapo, s: steer_released, r: remax, x: expert_iteration, g: grpo}\ncontrol: g\ncontrols: [placebo]\n"
    arms, said = arms_of(write(tmp_path, text))
    assert list(arms) == ["e", "s", "r", "x", "g", "e_placebo", "s_placebo", "r_placebo", "x_placebo"] and said == []
    assert {name: arm.placebo for name, arm in arms.items()} == {
        **{name: f"{name}_placebo" for name in "esrx"},
        **dict.fromkeys(("g", "e_placebo", "s_placebo", "r_placebo", "x_placebo")),
    }
    assert arms["e_placebo"].why == "EAPO with its token weights permuted within each completion"
    assert arms["r_placebo"].why == "Re:Max with its stored answers weighed by how often they were found"
    for name, plain in (("e", "eapo"), ("r", "remax")):
        assert same(arms[f"{name}_placebo"].config, load_config(TrainConfig, f"{plain}_placebo"))
    one, other = (arms[name].config.method for name in ("s", "s_placebo"))
    assert other == replace(one, name=other.name, extras=(PlaceboWeight(one.token_weight),))
    one, other = (arms[name].config.method for name in ("x", "x_placebo"))
    assert other == replace(one, name=other.name, extras=(replace(one.buffer, law="found"),))


def test_the_placebo_of_a_method_with_a_kl_keeps_the_kl(tmp_path: Path) -> None:
    edits = "{method.beta: {name: linear, start: 0.1, end: 0.01}, method.estimator: k3_is, method.refresh_every: 5}"
    text = f"arms: {{a: {{recipe: eapo, edits: {edits}}}}}\ncontrol: a\ncontrols: [placebo, no_kl]\n"
    arms, _ = arms_of(write(tmp_path, text))
    one, other = (arms[name].config.method for name in ("a", "a_placebo"))
    assert other == replace(one, name=other.name, extras=(PlaceboWeight(Eapo()),)) and other.anchor is not None
    assert (arms["a"].placebo, arms["a"].no_kl) == ("a_placebo", "a_no_kl")


def test_a_method_that_chooses_or_weighs_prompts_gets_its_permuted_twin(tmp_path: Path) -> None:
    names = ("f_grpo", "zero_success", "bbg", "reft")
    text = f"arms: {{{', '.join(f'{name}: {name}' for name in names)}, g: grpo}}\ncontrol: g\ncontrols: [placebo]\n"
    arms, said = arms_of(write(tmp_path, text))
    assert list(arms) == [*names, "g", *(f"{name}_placebo" for name in names)] and said == []
    for name in names:
        assert arms[name].placebo == f"{name}_placebo" and arms[f"{name}_placebo"].placebo is None
        assert same(arms[f"{name}_placebo"].config, load_config(TrainConfig, f"{name}_placebo"))
    there, _ = arms_of(write(tmp_path, "arms: {f: f_grpo, p: f_grpo_placebo}\ncontrol: f\ncontrols: [placebo]\n"))
    assert list(there) == ["f", "p"] and there["f"].placebo == "p"


def test_a_placebo_that_is_there_counts_and_some_parts_have_none(tmp_path: Path) -> None:
    text = "arms: {e: eapo, p: eapo_placebo, k: erank, o: rft, q: replay}\ncontrol: e\ncontrols: [placebo]\n"
    arms, said = arms_of(write(tmp_path, text))
    assert list(arms) == ["e", "p", "k", "o", "q"] and (arms["e"].placebo, arms["p"].placebo) == ("p", None)
    assert said == ["no placebo of ERank: its token weight has a running state"]
    assert arms["k"].placebo is arms["o"].placebo is arms["q"].placebo is None  # the base's finds are no law of the policy


def test_with_a_guide_the_placebo_is_the_guides(tmp_path: Path) -> None:
    edits = "{method: {name: sage, base: {name: eapo, beta: 0.05}}}"
    text = f"arms: {{a: {{recipe: grpo, edits: {edits}}}}}\ncontrol: a\ncontrols: [unguided, placebo]\n"
    arms, _ = arms_of(write(tmp_path, text))
    method = arms["a_placebo"].config.method
    assert list(arms) == ["a", "a_unguided", "a_placebo"] and arms["a"].placebo == "a_placebo"
    assert method.anchor is not None and isinstance(method.anchor.guide, Placebo) and isinstance(method.token_weight, Eapo)


def test_controls_none_adds_nothing(tmp_path: Path) -> None:
    arms, _ = arms_of(write(tmp_path, "arms: {branch: sage_branch, grpo: grpo}\ncontrol: grpo\ncontrols: none\n"))
    assert list(arms) == ["branch", "grpo"] and arms["branch"].plain == "grpo"


def test_the_same_training_is_known_under_another_name(tmp_path: Path) -> None:
    grpo, no_kl = (load_config(TrainConfig, name) for name in ("grpo", "no_kl"))
    off = load_config(TrainConfig, "grpo", [("method.beta", "0.0")])
    assert same(no_kl, off) and not same(grpo, no_kl) and same(grpo, replace(grpo, seed=7))
    assert not same(grpo, replace(grpo, steps=10)) and not same(no_kl, load_config(TrainConfig, "dr_grpo"))
    with pytest.raises(ConfigError, match="'a' and 'b' have the same configuration"):
        arms_of(write(tmp_path, "arms: {a: no_kl, b: {recipe: grpo, edits: {method.beta: 0.0}}}\ncontrol: a\n"))


ENVELOPES = "arms: {grpo: grpo, b: no_kl}\ncontrol: grpo\nbaselines:\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arms: {a: grpo}\ncontrol: b\n", r"design.yaml:4: control = 'b': no such arm; choose from: a$"),
        ("arms: {grpo: grpo}\ncontrol: grop\n", "design.yaml:4: control = 'grop': no such arm; did you mean 'grpo'"),
        ("arms: {}\ncontrol: a\n", "design.yaml:3: arms = {}: list at least one"),
        ("arms: {a-s1: grpo}\ncontrol: a-s1\n", "design.yaml:3: arms.a-s1 = 'grpo': must be a folder name of letters"),
        ("arms: {base: grpo}\ncontrol: base\n", "not base"),
        ("arms: {a: grpo}\ncontrol: a\nseedz: [1]\n", "did you mean 'seeds'"),
        ("arms: {a: grpo}\ncontrol: a\ncontrols: [placebos]\n", "did you mean 'placebo'"),
        ("arms: {a: grpo}\ncontrol: a\nevaluate: {temperatures: [0.5]}\n", "including 1.0"),
        (
            "arms:\n  a: gpro\ncontrol: a\n",
            r"design.yaml:4: arm 'a': .*gpro: no such file, shipped recipe or method; did you mean 'grpo'\?",
        ),
        ("arms: {a: nowhere/x.yaml}\ncontrol: a\n", "design.yaml:3: arm 'a': .*x.yaml: no such file"),
        (
            "arms: {a: grpo}\ncontrol: a\npolicy: gpro\n",
            "design.yaml: policy: .*gpro: no such file, shipped recipe or method; did you mean 'grpo'",
        ),
        (
            "arms: {a: grpo}\ncontrol: a\nbase:\n  stepz: 3\n",
            "design.yaml:6: arm 'a': base.stepz = 3: .*did you mean 'steps'",
        ),
        (
            "arms: {a: grpo}\ncontrol: a\nbase: {rollout: {group_sice: 3}}\n",
            "design.yaml:5: arm 'a': base.rollout.group_sice = 3: .*did you mean 'group_size'",
        ),
        (
            "base: {steps: 3}\narms: {a: {recipe: grpo, edits: {steps: -1}}}\ncontrol: a\n",
            "design.yaml:4: arm 'a': edits.steps = -1: must be above 0",
        ),
        ("arms: {a: grpo}\ncontrol: a\nbase: {steps.x: 3}\n", "design.yaml:5: arm 'a': base.steps.x: "),
        (
            "arms: {a: grpo, b: no_kl}\ncontrol: a\nquestions: [{a: b, b: a, metric: {k: 1, at: temperature}, task: demo-5}]\n",
            "questions: 'demo-5': no such task",
        ),
        ("arms: {a: grpo, b: no_kl}\ncontrol: a\nselect: {among: [n]}\n", "select.among.0 = 'n': no such arm"),
        ("arms:\n  a: grpo\n  base: no_kl\ncontrol: a\n", "design.yaml:5: arms.base = 'no_kl': must be a folder name of letters"),
        ("arms: {a: grpo}\ncontrol: a\noracle: truth\n", "design.yaml:5: oracle = 'truth': no such arm; choose from: a$"),
        (f"{ENVELOPES}  all:\n  - grop\n", "design.yaml:7: baselines.all.0 = 'grop': no such arm; did you mean 'grpo'"),
        (f"{ENVELOPES}  all: [grpo]\n  none: []\n", r"design.yaml:7: baselines.none = \[\]: list at least one arm"),
        (f"{ENVELOPES}  all: [grpo]\n  b: [grpo]\n", r"design.yaml:7: baselines.b = \['grpo'\]: an arm has this name"),
        (f"{ENVELOPES}  all: [grpo]\ndiscarded:\n- rft\n- b\n", "design.yaml:9: discarded.1 = 'b': is an arm of this design"),
        ("arms: {a: grpo}\ncontrol: a\ndiscarded: [rft]\n", "design.yaml:5: discarded.0 = 'rft': counts as a candidate"),
        ("arms: {a: grpo}\ncontrol: a\nreuse_runs:\n- tier1\n- ../x\n", "yaml:7: reuse_runs.1 = '../x': expected the name of a"),
        (
            "arms:\n  a: grpo\n  b:\n    recipe: no_kl\n    kl_matched:\n    - a\n    - c\ncontrol: a\n",
            "design.yaml:9: arms.b.kl_matched.1 = 'c': no other arm; choose from: a, b$",
        ),
        ("arms: {a: grpo, b: no_kl}\ncontrol: a\nselect: {among: [a]}\n", "is a candidate of `select`"),
        ("arms: {a: grpo, b: no_kl}\ncontrol: a\nselect: {among: []}\n", r"select.among = \[\]: list at least one arm"),
        ("arms: {a: grpo, b: no_kl}\ncontrol: a\nselect: {among: [b], problems: 0}\n", "select.problems = 0: must be above 0"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        arms_of(write(tmp_path, text))


def test_a_refusal_names_who_wrote_the_value_of_several(tmp_path: Path) -> None:
    """An edit of the command line is not laid to the design that has the key too; every problem gets its own line and place."""
    path = write(tmp_path, "arms: {a: grpo}\ncontrol: a\nbase:\n  steps: 3\n  seed: x\n  method.beta: y\n")
    with pytest.raises(ConfigError) as caught:
        resolve(load_design(path), path, edits=[("steps", "-1")])
    assert str(caught.value).splitlines() == [
        f"{path}:7: arm 'a': base.seed = 'x': expected a whole number, got the text 'x'",
        f"{path}:8: arm 'a': base.method.beta = 'y': expected a number or one of constant, linear, "
        "cosine, cosine_cycles, got the text 'y'",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve(load_design(path), path, edits=[("steps", "-1"), ("seed", "0"), ("method.beta", "0")])
    assert str(caught.value) == f"{path}:3: arm 'a': --steps = -1: must be above 0"
    path = write(tmp_path, "arms: {a: {recipe: grpo, edits: {updates.minibatches: 5}}}\ncontrol: a\n")
    with pytest.raises(ConfigError, match=r"design\.yaml:3: arm 'a': edits\.updates\.minibatches = 5: must divide") as caught:
        resolve(load_design(path), path)
    (issue,) = caught.value.__cause__.issues  # type: ignore[union-attr]
    assert issue.key_path == issue.written == ("updates", "minibatches") and issue.source == "--updates.minibatches"


def test_a_design_that_is_not_there_is_answered_with_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "sub").mkdir()
    assert load_design(Path("table1")) == load_design(DESIGNS / "table1.yaml")
    for typed, meant in {"tabel1.yaml": "'table1'", "mien": "mine.yaml", "sub/../mien.yaml": "sub/../mine.yaml"}.items():
        with pytest.raises(ConfigError) as caught:
            load_design(Path(typed))
        assert str(caught.value) == f"{typed}: no such file, nor a shipped recipe; did you mean {meant}?"
    with pytest.raises(ConfigError, match=r"YAML files there: mine.yaml; `sage-rlvr recipes` lists"):
        load_design(Path("zzzzz"))


@pytest.mark.parametrize("path", sorted(DESIGNS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_designs_of_the_repository(path: Path) -> None:
    """Those of the experiments: lab/tests/test_experiments.py."""
    check_design(path)


def test_the_main_design_is_the_seven_arms_with_every_control() -> None:
    design = load_design(DESIGNS / "table1.yaml")
    assert (
        isinstance(design, DesignSpec)
        and design.seeds == (0, 1, 2, 3, 4, 5)
        and design.kinds == (*("no_kl", "unguided", "placebo", "matched"),)
    )
    assert list(design.arms) == ["no_kl", "grpo", "sage_branch", "placebo", "forward_kl", "sage_random", "sage_token"]
    arms, _ = arms_of(DESIGNS / "table1.yaml")
    assert [name for name, arm in arms.items() if arm.why] == ["grpo_beta0.025", "grpo_beta0.1", "sage_token_placebo"]
    for name in design.arms:  # each is its recipe unedited, so that runs of `sage-rlvr demo` are runs of it
        assert arms[name].config == load_config(TrainConfig, name)


def test_an_arm_names_the_betas_between_which_another_method_is_read(tmp_path: Path) -> None:
    betas = {f"grpo_{b}": {"recipe": "grpo", "edits": {"method.beta": b}} for b in (0.025, 0.1)}
    own = {"recipe": "grpo", "edits": {"method.estimator": "k3_is"}, "kl_matched": list(betas)}
    tree = {"title": "t", "seeds": [0, 1, 2], "arms": {**betas, "is": own}, "control": "grpo_0.1", "controls": "none"}
    (tmp_path / "mine.yaml").write_text(json.dumps(tree))
    arms, _ = arms_of(tmp_path / "mine.yaml")
    assert arms["is"].matched == ("grpo_0.025", "grpo_0.1") and not arms["grpo_0.1"].matched
    for wrong, said in ((["gpo", "grpo_0.1"], "no other arm"), (["is", "grpo_0.1"], "no other arm"), (["grpo_0.1"], "list more")):
        tree["arms"]["is"] = own | {"kl_matched": wrong}
        (tmp_path / "mine.yaml").write_text(json.dumps(tree))
        with pytest.raises(ConfigError, match=said):
            arms_of(tmp_path / "mine.yaml")


def test_a_design_takes_the_edits_of_another_and_its_lines(tmp_path: Path) -> None:
    """One definition of a world for several questions; a refusal names the line on which the edit stands."""
    arms = "arms: {a: grpo, b: no_kl}\ncontrol: a\ncontrols: none\n"
    (tmp_path / "world.yaml").write_text("title: w\nseeds: [9]\nbase:\n  steps: 40\n" + arms, encoding="utf-8")
    shares = write(tmp_path, "base: world.yaml\n" + arms)
    assert load_design(shares).base == {"steps": 40} and load_design(shares).seeds == (0, 1)
    assert {arm.config.steps for arm in arms_of(shares)[0].values()} == {40}
    (tmp_path / "world.yaml").write_text("title: w\nseeds: [9]\nbase:\n  steps: -1\n" + arms, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"world\.yaml:4: arm 'a': base\.steps = -1"):
        arms_of(shares)
    (tmp_path / "world.yaml").write_text("title: w\nseeds: [9]\n" + arms, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"design\.yaml:3: base = 'world\.yaml': that design has no edits"):
        load_design(shares)
    with pytest.raises(ConfigError, match=r"design\.yaml:3: base: .*no such file"):
        load_design(write(tmp_path, "base: nowhere\n" + arms))
    names = ("2026-11-23_countdown_hard_frontier_250", "2026-11-23_countdown_hard_candidates_250")
    frontier, candidates = (load_design(EXPERIMENTS / name / "design.yaml") for name in names)
    assert frontier.base == candidates.base and frontier.base


def test_a_design_has_plugins_as_recipes_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(METHODS, "_parts", dict(METHODS._parts))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.py").write_text(
        "import sage_rlvr\nfrom sage_rlvr.methods import rloo\n@sage_rlvr.method\ndef of_design(*, beta: float = 0.0):\n"
        "    from dataclasses import replace\n    return replace(rloo(beta=beta), name='of_design')\n"
    )
    text = "plugins: [parts/mine.py]\narms: {a: grpo, b: {recipe: grpo, edits: {method: of_design}}}\ncontrol: a\ncontrols: none\n"
    arms, _ = arms_of(write(tmp_path, text))
    assert arms["b"].config.method.name == "of_design" and list(arms["b"].config.plugins) == ["mine.py"]
    assert os.environ[plugins.VARIABLE] == str(tmp_path / "parts" / "mine.py")  # what the processes of the sweep are given
    monkeypatch.setattr(plugins, "_loaded", {})  # of an arm's own recipe: its processes give it to all, and their runs say so
    (tmp_path / "own.yaml").write_text("base: countdown/base\nplugins: [parts/mine.py]\nmethod: of_design\n")
    arms, _ = arms_of(write(tmp_path, "arms: {a: grpo, b: own.yaml}\ncontrol: a\ncontrols: none\n"))
    assert [list(arm.config.plugins) for arm in arms.values()] == [["mine.py"], ["mine.py"]]
    with pytest.raises(ConfigError, match=r"design\.yaml:3: plugins = 'mine\.py': expected a list of Python files"):
        load_design(write(tmp_path, "plugins: mine.py\narms: {a: grpo}\ncontrol: a\n"))
    with pytest.raises(ConfigError, match=r"key 'control' is missing: .*; set control: to one of a, b$"):
        load_design(write(tmp_path, "arms: {a: grpo, b: rloo}\n"))
