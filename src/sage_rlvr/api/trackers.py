"""A comparison in a run of a tracker: pass@k, the verdict and the picture, in wandb, trackio or TensorBoard.

    tensorboard=FOLDER   wandb=[ENTITY/]PROJECT/RUN   trackio=PROJECT/RUN   or a run directory with `report_to`

A run that exists is continued, and else begun. Nothing of this loads torch.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sage_rlvr.api.picture import picture_of
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.results.writers.markdown import brief_markdown
from sage_rlvr.runs import is_run, read_record
from sage_rlvr.training.trackers import PROJECT, run_name
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.score_rows import score_rows
from sage_rlvr.verdicts.text.rows import paragraphs

FORMS = {"wandb": "wandb=[ENTITY/]PROJECT/RUN", "trackio": "trackio=PROJECT/RUN", "tensorboard": "tensorboard=FOLDER"}


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A comparison as trackers take it.

    scores: name -> number, "compare/rl/pass@8" with /low and /high
    verdict: the answer in words
    table: the short text as Markdown
    picture: PNG; None for several tasks
    """

    scores: Mapping[str, float]
    verdict: str
    table: str
    picture: bytes | None


def logged_of(results: Results, findings: Findings) -> Logged:
    """The comparison as trackers take it."""
    from sage_rlvr.render.style import file_of  # matplotlib

    try:
        picture = file_of(picture_of(results, findings), "png")
    except DataError:  # of several tasks
        picture = None
    return Logged(
        scores=scores_logged(score_rows(results)), table=brief_markdown(results, findings), picture=picture,
        verdict=paragraphs(findings.rows, results, findings.verdicts)[0],
    )  # fmt: skip


@dataclass(frozen=True)
class TrackerRun:
    """One run of a tracker. place: behind the = of its word. step: of a run directory, its last step."""

    tracker: str
    place: str
    step: int = 0

    def log(self, logged: Logged) -> None:
        """Log to it."""
        LOGGERS[self.tracker](self, logged)


def scores_logged(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Rows of `score_rows` by name. The name has the task or temperature if there are several."""
    several = {name: len({row[name] for row in rows}) > 1 for name in ("task", "temperature")}
    made: dict[str, float] = {}
    for row in rows:
        parts = [str(row[name]) if name == "task" else f"T={row[name]}" for name in several if several[name]]
        name = "/".join(["compare", *parts, row["policy"], f"pass@{row['k']}"])
        made |= {name: row["pass"], f"{name}/low": row["low"], f"{name}/high": row["high"]}
    return made


def targets_of(word: str) -> list[TrackerRun]:
    """The runs that a word of `--log-to` names.

    Raises:
        ConfigError: For another form, a run directory without trackers, or a tracker that is not installed.
    """
    tracker, equals, place = word.partition("=")
    if equals and tracker in FORMS and place.strip("/"):
        parts = place.split("/")
        if tracker != "tensorboard" and (not all(parts) or len(parts) not in ((2, 3) if tracker == "wandb" else (2,))):
            raise ConfigError(f"--log-to {word}: expected {FORMS[tracker]}")
        found = [TrackerRun(tracker, place)]
    elif is_run(Path(word)):
        found = _of_run(Path(word))
    else:
        raise ConfigError(f"--log-to {word}: expected {', '.join(FORMS.values())}, or a run directory")
    missing = [one.tracker for one in found if find_spec(one.tracker) is None]
    if missing:
        raise ConfigError(f"--log-to {word}: {missing[0]} is not installed; run: pip install {missing[0]}")
    return found


def _of_run(run: Path) -> list[TrackerRun]:
    """The trackers of a run directory, by the names that training gave its runs."""
    config = read_record(run)["config"]
    names = [name for name in config.get("report_to") or () if name in FORMS]
    if not names:
        forms = ", ".join(FORMS.values())
        raise ConfigError(f"--log-to {run}: this run was reported to no tracker (report_to); name one: {forms}")
    places = {"tensorboard": str(run / "tensorboard")}
    return [TrackerRun(name, places.get(name, f"{PROJECT}/{run_name(run)}"), int(config.get("steps") or 0)) for name in names]


def _tensorboard(target: TrackerRun, logged: Logged) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    values = [Summary.Value(tag=name, simple_value=value) for name, value in logged.scores.items()]
    values += text_pb("compare/verdict", logged.table).value
    if logged.picture is not None:
        width, height = _image(logged.picture).size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=logged.picture)
        values.append(Summary.Value(tag="compare/passk", image=image))
    writer = EventFileWriter(target.place)
    writer.add_event(Event(step=target.step, wall_time=time.time(), summary=Summary(value=values)))
    writer.close()


def _wandb(target: TrackerRun, logged: Logged) -> None:
    import wandb

    *entity, project, name = target.place.split("/")
    run = wandb.init(entity=entity[0] if entity else None, project=project, id=name, name=name, resume="allow")
    run.summary.update({**logged.scores, "compare/verdict": logged.verdict})
    if logged.picture is not None:
        run.log({"compare/passk": wandb.Image(_image(logged.picture), caption=logged.verdict)})
    run.finish()


def _trackio(target: TrackerRun, logged: Logged) -> None:
    import trackio

    project, name = target.place.split("/")
    trackio.init(project=project, name=name, resume="allow", embed=False)
    pictures = {} if logged.picture is None else {"compare/passk": trackio.Image(_image(logged.picture), caption=logged.verdict)}
    trackio.log({**logged.scores, "compare/verdict": trackio.Markdown(logged.table), **pictures})
    trackio.finish()


def _image(data: bytes) -> Any:
    from PIL import Image  # of matplotlib

    return Image.open(io.BytesIO(data))


LOGGERS: Mapping[str, Callable[[TrackerRun, Logged], None]] = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
