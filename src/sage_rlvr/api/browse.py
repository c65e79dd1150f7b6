"""`browse`: a page of completions by problem and training step."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from sage_rlvr import plugins
from sage_rlvr.extras import explained
from sage_rlvr.results.browse import Completions, read_completions
from sage_rlvr.verdicts.readers import Choice

if TYPE_CHECKING:
    from sage_rlvr.render.browse import Written  # matplotlib


@explained
def browse(
    *files: str | PathLike[str],
    out: str | Path = "browse.html",
    correct: str | Sequence[str] = (),
    right_from: float | None = None,
    title: str = "",
) -> tuple[Completions, Written]:
    """Write a page of completions, as `sage-rlvr browse` does. It opens without network.

        browse("runs/grpo/completions", correct="accuracy_reward")       TRL, log_completions=True
        browse("base=dumps/base", "rl=dumps/rl", out="val.html")         verl, validation_data_dir

    Args:
        *files: Files of completions, folders of them, sample stores, run directories, or NAME=PATH[,PATH...].
        out: The page; large texts are written into the folder <name>_texts beside it.
        correct: For files with several scores: the one that means correct.
        right_from: For graded scores: the least score that counts as correct.
        title: The title of the page.

    Returns:
        The completions by problem, and the written files.

    Raises:
        DataError: For files that cannot be read, and if there is no completion.
        ConfigError: If the folder for the texts has other files.
    """
    from sage_rlvr.render.browse import write_browser  # matplotlib

    plugins.use_inherited()  # which may have readers
    words = [fspath(file) for file in files]
    names = (correct,) if isinstance(correct, str) else tuple(correct)
    made = read_completions(words, Choice(wanted=names, right_from=right_from))
    shown = title or "Completions of " + ", ".join(dict.fromkeys(column.arm for column in made.columns))
    return made, write_browser(made, Path(out), shown, made.summary())
