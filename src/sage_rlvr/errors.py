"""The errors of this package. Each message contains the value, its place and the next step (docs/contributing.md)."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Issue:
    """One problem of a configuration, its place as a value.

    problem   text after the place, such as " = -1: must be above 0"
    key_path  keys of the place
    source    file and line, or option, of the value or of the nearest mapping around it ("recipe.yaml:7", "--steps")
    written   keys of that mapping, None if not known
    edited    keys below `key_path` that overrides have set
    """

    problem: str
    key_path: tuple[str, ...] = ()
    source: str = ""
    written: tuple[str, ...] | None = None
    edited: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        given = ", ".join(f"--{'.'.join(key_path)}" for key_path in self.edited)
        source = f"{self.source} with {given}" if given and self.source else self.source
        typed = self.source.startswith("--") and self.written == self.key_path and not given  # an override, which is the place
        return ": ".join(part for part in (source, "" if typed else ".".join(self.key_path)) if part) + self.problem


UNJUDGED = (
    "The reward function or verifier returns None or undecided, takes longer than its limit (task.seconds), or ends its process. "
    "Test it (sage-rlvr audit with the recipe; of mathematics also sage-rlvr verify), then fix it or raise the limit"
)
"""Causes of undecided completions, and the next step."""
CUT_OFF = "{cut:,} of {ends:,} completions were cut at the length limit, before they ended: raise {limit}"


class SageError(ValueError):
    """Base class of all errors of this package. issues: the problems of a configuration with their places, if known."""

    issues: tuple[Issue, ...] = ()


class ConfigError(SageError):
    """An invalid configuration."""


class CancellingGuide(ConfigError):
    """A guide that removes itself from the expected gradient of the chosen KL estimator and placement."""


class DataError(SageError):
    """A problem, completion or array that cannot be used."""


class RewardFailed(DataError):
    """A reward function of the user's that raised, ended its process, or returned no finite number."""


class CheckpointError(SageError):
    """A checkpoint that is incomplete, corrupt, or belongs to another run."""


class RunLocked(SageError):
    """Another running process has locked the run directory."""


class TrainingDiverged(SageError):
    """NaN or infinity in a loss or gradient; raised before the optimizer step."""


def wrong(name: str | tuple[str, ...], value: Any, problem: str) -> ConfigError:
    """Return the error "name = value: problem" for one argument.

    `SageError.issues` has the name (for a nested argument "a.b", or the keys) separately, so that the configuration reader can
    prepend the place of the part.
    """
    issue = Issue(problem=f" = {short(value)}: {problem}", key_path=tuple(name.split(".")) if isinstance(name, str) else name)
    refused = ConfigError(str(issue))
    refused.issues = (issue,)
    return refused


def require(holds: bool, name: str | tuple[str, ...], value: Any, problem: str) -> None:
    """Raise the error of `wrong` unless the condition holds."""
    if not holds:
        raise wrong(name, value, problem)


def refuse(*rules: tuple[object, str]) -> None:
    """Raise ConfigError with the message of the first rule (condition, message) whose condition holds."""
    for holds, message in rules:
        if holds:
            raise ConfigError(message)


def short(value: Any, limit: int = 80) -> str:
    """Return the repr, truncated to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggest(*words: object) -> str:
    """Return a command of this package with shell quoting, for messages: suggest("eval", path).

    Tests run every suggested command.
    """
    return shlex.join(["sage-rlvr", *map(str, words)])


def nearest(word: Any, options: Iterable[Any], cutoff: float = 0.6) -> str | None:
    """Return the option with the most similar spelling, or None."""
    matches = difflib.get_close_matches(str(word), [str(option) for option in options], n=3, cutoff=cutoff)
    swapped = [option for option in matches if sorted(option) == sorted(str(word))]  # two letters in the wrong order
    return next(iter(swapped or matches), None)


def neighbors(word: Any, options: Iterable[Any], n: int = 5) -> list[str]:
    """Return at most `n` options with similar spelling, the nearest first, for lists that are too long to print."""
    return difflib.get_close_matches(str(word), dict.fromkeys(map(str, options)), n=n, cutoff=0.5)


def choose_from(word: Any, options: Iterable[Any]) -> str:
    """Return the text after "unknown guide 'brunch'": the nearest option, if any, and all options."""
    known = [str(option) for option in options]
    near = nearest(word, known)
    return f"; {'' if near is None else f'did you mean {near!r}? '}choose from: {', '.join(known) or 'none'}"
