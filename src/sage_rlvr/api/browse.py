"""`browse`: a page of completions by problem and training step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError
from sage_rlvr.extras import explained
from sage_rlvr.results.browse import Completions, entries_of, index_of, read_completions
from sage_rlvr.runs.files import replacing_folder, write_text_atomic, writing
from sage_rlvr.verdicts.readers import Choice

SCRIPT = re.compile(r"\d{4,}\.js")


@dataclass(frozen=True)
class Written:
    """The files of a page. folder: None if the page has the texts; bytes: of all texts."""

    page: Path
    folder: Path | None
    parts: int
    bytes: int


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
        ConfigError: If `out` is no .html file, or the folder for the texts has other files.
    """
    if Path(out).suffix.lower() not in (".html", ".htm"):  # one of the files, for example
        raise ConfigError(f"--out {out}: the page is a file .html")
    plugins.use_inherited()  # which may have readers
    words = [fspath(file) for file in files]
    names = (correct,) if isinstance(correct, str) else tuple(correct)
    made = read_completions(words, Choice(wanted=names, right_from=right_from))
    shown = title or "Completions of " + ", ".join(dict.fromkeys(column.arm for column in made.columns))
    return made, _write(made, Path(out), shown)


def _write(made: Completions, out: Path, title: str) -> Written:
    """Write the page, and beside it the folder with its texts if they are more than one part."""
    from sage_rlvr.render.browse import document_of, key_of, parts_of, script_of  # matplotlib

    folder = out.with_name(f"{out.stem}_texts")
    others = [one.name for one in folder.iterdir() if not SCRIPT.fullmatch(one.name)] if folder.is_dir() else []
    if others:
        raise ConfigError(f"{folder} has files that are not of a page, such as {others[0]}; pass another --out")
    index, parts = index_of(made), parts_of(entries_of(made))
    key, first, second = key_of(index), next(parts), next(parts, None)
    starts, begun, size = list[int](), 0, 0
    with writing("page", out.parent, 64 << 20):
        out.parent.mkdir(parents=True, exist_ok=True)
        if second is None:
            write_text_atomic(out, document_of(title, made.summary(), index | {"id": key, "folder": "", "starts": [0]}, first))
            shutil.rmtree(folder, ignore_errors=True)
            return Written(out, None, 1, sum(map(len, first)))
        with replacing_folder(folder) as partial:
            for number, part in enumerate((first, second, *parts)):
                text = script_of(key, number, part)
                (partial / f"{number:04}.js").write_text(text, "ascii")
                starts.append(begun)
                begun, size = begun + len(part), size + len(text)
        index |= {"id": key, "folder": folder.name, "starts": starts}
        write_text_atomic(out, document_of(title, made.summary(), index, None))
    return Written(out, folder, len(starts), size)
