"""The options of parts: what they may be is what the part accepts, each has its line, and the page is made by its command."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.cli.part_options import KINDS, Option, dead_line, options_of
from sage_rlvr.core.schedules import Schedule
from sage_rlvr.errors import ConfigError
from sage_rlvr.registry import registry_of


def test_every_option_of_every_part_is_said():
    silent = {
        f"{kind} {name}: {one.name}"
        for kind in KINDS
        for name, part in registry_of(kind).items()
        for one in options_of(part)
        if not one.description or not one.allowed
    }
    assert not silent, f"name them in their docstrings: {silent}"


@pytest.mark.parametrize(
    "kind, part, option, wanted",
    [
        ("advantage", "filtered", "alpha", "0 <= x < 1"),
        ("advantage", "filtered", "clip", "x > 1"),
        ("advantage", "filtered", "z", "group, exact"),
        ("advantage", "pass_at_k", "k", "x >= 1, whole or a schedule"),
        ("advantage", "power_normalized", "q", "0 <= x <= 2"),
        ("extra", "steer", "min_weight", "0 < x <= 1"),
        ("extra", "erank", "gain", "any number"),
        ("extra", "clip_cov", "low", "x < 5"),
        ("surrogate", "clip", "dual", "x > 1 or null"),
        ("guide", "token", "high_quantile", "0.05 < x <= 1"),
        ("extra", "overlong_shaping", "buffer", "x >= 1, whole"),
        ("extra", "adaptive_entropy", "min_coef", "0"),
        ("extra", "replay", "take", "null"),
        ("extra", "likelihood", "base_prompts", "x >= 1, whole, with base or null"),
        ("extra", "likelihood", "reduction", "a reduction"),
        ("guide", "placebo", "centered", "true or false"),
    ],
)
def test_what_an_option_may_be(kind: str, part: str, option: str, wanted: str):
    assert {one.name: one.allowed for one in options_of(registry_of(kind)[part])}[option] == wanted


@dataclass(frozen=True)
class Base:
    """Something.

    depth: how deep. shared: of both, at most 3; or none.
    """

    depth: int = 1


@dataclass(frozen=True)
class Own(Base):
    """Weighs by depth and by `rate` (Eq. 3). The `rate` again."""

    rate: float | Schedule = 0.125
    shared: float = 2.0
    untold: str | None = None

    def __post_init__(self) -> None:
        if not -0.7 < self.shared <= 3 or self.depth > 700:
            raise ConfigError("no")


def test_a_part_of_ones_own():
    assert options_of(Own) == [
        Option("depth", "1", "x <= 700, whole", "how deep"),
        Option("rate", "0.125", "any number or a schedule", "Weighs by depth and by `rate` (Eq. 3)"),
        Option("shared", "2", "-0.7 < x <= 3", "of both, at most 3"),
        Option("untold", "null", "text or null", ""),
    ]


@pytest.mark.slow
def test_the_command_prints_a_part_a_kind_or_its_neighbors(capsys: pytest.CaptureFixture[str]):
    def code(*words: str) -> object:
        with pytest.raises(SystemExit) as ended:
            main(["parts", *words])
        return ended.value.code

    assert code("mara") == 0
    said = capsys.readouterr().out
    assert "method mara: L = " in said and "extra mara: r = R (1 + beta" in said and "may be: x > 0" in said
    assert code("signed") == 0
    assert "a group of 8 earns where it is all right: 0.1, all wrong: -1, none right: refused" in capsys.readouterr().out
    assert code("extras") == 0
    assert "overlong_shaping" in capsys.readouterr().out
    assert code("token_weights") == 0
    said = capsys.readouterr().out
    assert said.startswith("token_weight: extras, of which a method has at most one")
    assert "  eapo  " in said and "replay" not in said
    assert code("token_wieght") != 0 and "token_weight" in capsys.readouterr().err
    assert code("filterd") != 0
    assert "unknown part 'filterd'" in (said := capsys.readouterr().err) and "filtered" in said
    assert code("clip") == 0
    assert "surrogate clip" in capsys.readouterr().out
    assert dead_line(Own) == ""


@dataclass(frozen=True)
class Lines:
    """Two lines.
    depth: how deep it goes
    width, height: how large it is, where
        depth: is another word
    """

    depth: int = 1
    width: int = 1
    height: int = 1


def test_a_line_that_begins_with_an_options_name_says_that_option_alone():
    said = {one.name: one.description for one in options_of(Lines)}
    assert said["width"] == said["height"] == "how large it is, where" and said["depth"] == "how deep it goes"
