"""Strict decoding of YAML into any dataclasses: scalars, files, inheritance, overrides, annotations, unions by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr import config as s
from sage_rlvr import recipes
from sage_rlvr.errors import ConfigError


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("steps: 10\n")
    return path


# ---- scalars and YAML text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("12", 12),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x1f", "0x1f"),
        ("2026-01-01", "2026-01-01"),
        ("12:30:45", "12:30:45"),
        ("1e", "1e"),
        (".", "."),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, value: Any) -> None:
    parsed = s.parse_scalar(text)
    assert parsed == value and type(parsed) is type(value)


def test_quoted_text_stays_text() -> None:
    assert s.parse_yaml("a: '1e-6'\nb: \"true\"\nc: |\n  12\n") == {"a": "1e-6", "b": "true", "c": "12\n"}


leaves = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
leaves |= st.text(alphabet="abz-_:,#'\" 0.e{}[]é\n", max_size=8)
keys = st.text(alphabet="abcz_", min_size=1, max_size=5)
trees = st.dictionaries(
    keys, st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(keys, t, max_size=3), max_leaves=8)
)


@pytest.mark.slow
@given(trees)
def test_whatever_pyyaml_writes_is_read_back(tree: dict[str, Any]) -> None:
    assert s.parse_yaml(yaml.safe_dump(tree)) == tree


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: !!python/object/apply:os.system ['true']", "tag"),
        ("a: !!float 1", "tag"),
        ("a: &x 1\nb: *x", "anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: 1\nb: 2\na: 3", "duplicate key 'a'"),
        ("a: {b: 1, b: 2}", "duplicate key 'a.b'"),
        ("? [1, 2]\n: 3", "a key must be"),
        ("a: [1, 2", "not YAML"),
        ("a: 1\n---\nb: 2", "more than one YAML document"),
        ("- 1\n- 2", "top level"),
        ("hello", "top level"),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper"),
        ("a: \x00", "not YAML"),
        ("a: " + "x" * 1_000_001, "characters"),
    ],
)
def test_yaml_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.yaml") as caught:
        s.parse_yaml(text, "recipe.yaml")
    assert said in str(caught.value)


def test_deep_nesting_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ConfigError, match="nested deeper than 50"):
        s.parse_yaml("a: " + "[" * 400_000)


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"] + [
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefg", "bcdefgh", strict=True)
    ]
    with pytest.raises(ConfigError, match="YAML:1: anchors"):
        s.parse_yaml("\n".join(lines))


def test_lines_are_named() -> None:
    with pytest.raises(ConfigError, match=r"r\.yaml:3: duplicate key 'b'"):
        s.parse_yaml("a: 1\nb: 2\nb: 3\n", "r.yaml")


def test_environment_variables_are_not_expanded() -> None:
    assert s.parse_yaml("a: $HOME\nb: ${HOME}\nc: ~/x") == {"a": "$HOME", "b": "${HOME}", "c": "~/x"}


# ---- files, inheritance, overrides


def test_missing_file_names_its_neighbor(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file.*; did you mean .*recipe\.yaml\?"):
        s.load(recipe.with_name("recpe.yaml"))
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        s.load(recipe.parent / "nowhere" / "recipe.yaml")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        s.load(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="cannot be read: it is a folder"):
        s.load(tmp_path)
    (tmp_path / "large.yaml").write_text("#" * 1_000_001)
    with pytest.raises(ConfigError, match="1,000,001 bytes"):
        s.load(tmp_path / "large.yaml")


def test_a_base_may_have_a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own arms over the documented recipe, in folders of their own; each file's plugins are found beside it."""
    (tmp_path / "arms").mkdir()
    used: list[Path] = []
    monkeypatch.setattr(recipes.plugins, "use", used.append)
    mine, arm, again = tmp_path / "mine.yaml", tmp_path / "arms" / "branch.yaml", tmp_path / "arms" / "longer.yaml"
    mine.write_text(
        "base: countdown/base\nplugins: [beside.py]\nsteps: 7\n"
        "task: {name: jsonl, file: a.jsonl}\nmethod: {name: grpo, beta: 0.1}\n"
    )
    arm.write_text("base: ../mine.yaml\nmethod: {name: sage, base: {name: grpo, beta: 0.1}, guide: {name: branch}}\n")
    again.write_text("base: branch.yaml\nsteps: 9\nmethod: {guide: {ratio: 1.0}}\n")
    tree = s.load(again)
    assert tree["steps"] == 9 and tree["optimizer"] == s.load("grpo")["optimizer"] and "world" not in tree
    assert tree["method"] == {"name": "sage", "base": {"name": "grpo", "beta": 0.1}, "guide": {"name": "branch", "ratio": 1.0}}
    assert tree.origins[("task",)] == f"{arm.parent / '..' / 'mine.yaml'}:4" and tree.origins[("steps",)] == f"{again}:2"
    assert [path.resolve() for path in used] == [tmp_path / "beside.py"]


def test_bases_in_a_circle_are_refused_with_their_names(recipe: Path) -> None:
    child, grandchild = recipe.with_name("child.yaml"), recipe.with_name("grandchild.yaml")
    child.write_text("base: grandchild.yaml\n")
    grandchild.write_text("base: child.yaml\n")
    circle = r"child\.yaml:1: base = 'grandchild\.yaml'.*circle \(grandchild\.yaml -> child\.yaml -> grandchild\.yaml\)"
    with pytest.raises(ConfigError, match=circle):
        s.load(grandchild)
    child.write_text("base: ./child.yaml\n")
    with pytest.raises(ConfigError, match=r"child\.yaml -> child\.yaml"):
        s.load(child)
    child.write_text("base: [recipe.yaml]\n")
    with pytest.raises(ConfigError, match="expected a YAML file in the same folder"):
        s.load(child)


def test_merge_replaces_what_has_another_name_and_what_has_numbers_as_keys() -> None:
    below = s.Tree(
        {"guide": {"name": "branch", "ratio": 0.1}, "counts": {3: 0.8, 4: 0.2}, "x": {"y": {"a": 1, "b": 2}}}
    )
    same = s.merge(below, s.Tree({"guide": {"name": "branch", "threshold": 1.0}, "x": {"y": {"b": 3}}}))
    assert same == {**below, "guide": {"name": "branch", "ratio": 0.1, "threshold": 1.0}, "x": {"y": {"a": 1, "b": 3}}}
    other = s.merge(below, s.Tree({"guide": {"name": "token"}, "counts": {4: 1.0}}))
    assert other == {**below, "guide": {"name": "token"}, "counts": {4: 1.0}}
    bare = s.merge(s.Tree({"method": "grpo"}), s.Tree({"method": {"beta": 0.1}}))
    assert bare == {"method": {"name": "grpo", "beta": 0.1}}


def test_overrides_edit_the_tree_and_leave_the_old_one_alone() -> None:
    tree = s.Tree({"method": "grpo", "world": {"counts": {3: 1.0}}})
    edited = s.override(tree, "method.beta", "0.1")
    edited = s.override(edited, "world.counts.4", "2")
    edited = s.override(edited, "grid.ks", "[1, 8]")
    expected = {
        "method": {"name": "grpo", "beta": 0.1},
        "world": {"counts": {3: 1.0, "4": 2}},
        "grid": {"ks": [1, 8]},
    }
    assert edited == expected
    assert tree == {"method": "grpo", "world": {"counts": {3: 1.0}}}
    assert s.override(edited, "world.counts.3", "5")["world"]["counts"] == {3: 5, "4": 2}
    assert s.override(edited, "method.name", "no_kl")["method"] == {"name": "no_kl"}
    assert s.override(edited, "method.name", "grpo")["method"] == {"name": "grpo", "beta": 0.1}


# ---- decoding


@dataclass(frozen=True)
class Small:
    size: int = 1


@dataclass(frozen=True)
class Odd:
    pair: tuple[int, str] = (1, "a")
    maybe: Small | None = None
    mixed: float | Literal["auto"] | tuple[int, ...] = "auto"
    table: dict[str, bool] = dataclasses.field(default_factory=dict)
    anything: Any = None
    opaque: Path | bytes | None = None


@pytest.mark.parametrize(
    ("tree", "value"),
    [
        ({}, Odd()),
        ({"pair": [2, "b"]}, Odd(pair=(2, "b"))),
        ({"maybe": {"size": 3}}, Odd(maybe=Small(3))),
        ({"mixed": 3}, Odd(mixed=3.0)),
        ({"mixed": [3]}, Odd(mixed=(3,))),
        ({"table": {"a": True}}, Odd(table={"a": True})),
        ({"anything": [1, {"b": None}]}, Odd(anything=[1, {"b": None}])),
    ],
)
def test_every_supported_annotation(tree: dict[str, Any], value: Odd) -> None:
    decoded = s.decode(Odd, tree)
    assert decoded == value
    assert s.decode(Odd, s.dump(decoded)) == value


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"pair": [1]}, "pair = [1]: expected 2 items, got 1"),
        ({"maybe": 3}, "expected a mapping with the keys size"),
        ({"mixed": True}, "expected a number or one of auto or a list, got the truth value True"),
        ({"table": {"a": 1}}, "table.a = 1: expected true or false, got the whole number 1; write true"),
        ({"table": {"a": "no"}}, "write false"),
        ({"opaque": 3}, "cannot be set from YAML"),
    ],
)
def test_refusals_of_every_annotation(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="source: ") as caught:
        s.decode(Odd, tree, where="source")
    assert said in str(caught.value)


# ---- recipes by name


def test_a_shipped_recipe_is_loaded_by_its_name() -> None:
    assert s.load("grpo") == s.load("countdown/grpo") == s.load("grpo", task="countdown")
    assert s.load("paper/grpo") == s.load(recipes.recipe("grpo.yaml", "paper")) != s.load("grpo")
    assert recipes.find("table1", "designs") == recipes.find("table1") == recipes.shipped()["designs/table1"]
    with pytest.raises(ConfigError, match="grpo: a recipe, but not one of designs; run it with: sage-rlvr train grpo"):
        recipes.find("grpo", "designs")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpro", "did you mean 'grpo'"),
        ("paper/gpro", "did you mean 'paper/grpo'"),
        ("zzz", "`sage-rlvr recipes` lists"),
        ("zzz.yaml", "no such file"),
    ],
)
def test_a_wrong_name_is_answered_with_its_neighbor(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        s.load(name)
    assert said in str(caught.value)


def test_a_file_of_that_name_goes_before_the_shipped_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpo").write_text("steps: 3\n")
    monkeypatch.chdir(tmp_path)
    assert s.load("grpo") == {"steps": 3}


def test_every_shipped_recipe_has_a_headline() -> None:
    assert all(len(recipes.headline(file)) > 10 for name, file in recipes.shipped().items() if "/" in name)


def test_a_policy_that_a_recipe_begins_with_has_a_command_that_makes_it() -> None:
    """A recipe's `model: runs/...` is made by the command in another's comments; the name in it is that recipe's."""
    families = ("repair", "knights", "steps", "gsm", "real")
    wanted = {str(s.load(name).get("model", "")) for name in recipes.shipped(*families) if "/" in name}
    made = {model: recipes.maker_of(model) for model in wanted if model.startswith("runs/")}
    assert made["runs/repair-base"] == "sage-rlvr sft repair/sft --out runs/repair-base"
    assert made["runs/gsm-base"] == "sage-rlvr sft gsm/sft --out runs/gsm-base"
    assert made["runs/knights-base"] == "sage-rlvr sft knights/sft --out runs/knights-base"
    assert recipes.maker_of("runs/smollm2-sft/policy") == "sage-rlvr sft real/sft --run runs/smollm2-sft"
    for model, command in made.items():
        words = command.split()
        assert not words or (words[2] in recipes.shipped() and model in (words[-1], f"{words[-1]}/policy")), (model, command)
    assert recipes.maker_of("runs/mine") == ""


def test_a_copied_recipe_means_the_same_wherever_it_lies(tmp_path: Path) -> None:
    assert recipes.copy("dapo", tmp_path) == tmp_path / "dapo.yaml"
    assert s.load(recipes.copy("paper/grpo", tmp_path / "new" / "my.yaml")) == s.load("paper/grpo")
    assert s.load(tmp_path / "dapo.yaml") == s.load("dapo")
    with pytest.raises(ConfigError, match="exists"):
        recipes.copy("dapo", tmp_path)


@pytest.mark.slow
def test_the_commands_take_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sage_rlvr.cli.app import main

    monkeypatch.chdir(tmp_path)
    for words, said in {
        "recipes": "paper/sage_branch",
        "recipes copy grpo my.yaml": "",
        "show my.yaml": "name: grpo",
        "show paper/grpo": "0.05 * k3(pi, pi_ref)",
        "train grpo --dry-run": "250 rollouts",
        "sft countdown/sft --dry-run": "optimi",
        "train grpo --dry-run --method.guide token": "alpha",
    }.items():
        with pytest.raises(SystemExit) as done:
            main(words.split())
        found = capsys.readouterr()
        assert done.value.code == 0, found.err
        assert said in found.out, words
