"""`sweep` and `demo`: train and compare arms over training seeds."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError, suggest

if TYPE_CHECKING:
    from sage_rlvr.sweeps.plan import SweepPlan


@dataclass(frozen=True)
class Sweep(Command):
    """Train and evaluate the arms and training seeds of a design, and compare them.

    DESIGN is a file (recipes/designs has some). Without one, --methods and --seeds make it: `sage-rlvr sweep --methods grpo maxrl
    --seeds 0 1 --steps 40`; `--a.b value` edits every arm's recipe, and the design is stored in the output folder. Comparisons are
    paired by seed. After an interruption the same command continues. Existing results with the same configuration and weights are
    reused; missing controls of a design file are added and printed. Exit code 2 if a run failed."""

    edits_recipe: ClassVar[bool] = True
    optional_argument: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    design: tyro.conf.Positional[Path | None] = None
    """A design file."""
    methods: tuple[str, ...] = ()
    """Instead of a design file: methods or recipes to train, the first of which the others are compared with."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds of --methods; claims about methods need at least three."""
    task: str | None = None
    """The task of --methods, as in `train` (default countdown)."""
    out: Path | None = None
    """The output folder (default runs/<design name>)."""
    workers: int | None = None
    """Processes at a time, one thread each (default: the number of cores)."""
    dry_run: bool = False
    """Print the resolved design, added controls, finished and remaining work; write no files."""

    def execute(self, session: Session) -> int:
        """Print the plan; without --dry-run, run what is missing and print the comparisons. Returns 0, or 2 if a run failed."""
        from sage_rlvr.api.printed import print_results
        from sage_rlvr.api.sweep import swept
        from sage_rlvr.sweeps.display import dry_lines, table
        from sage_rlvr.sweeps.plan import plan
        from sage_rlvr.sweeps.resolve import several_parts

        if self.design is not None:
            self._refuse_beside_a_design(session)
            planned = plan(self.design, self.out or RUNS / self.design.stem)
        else:
            planned = self._typed(session)
        session.say(*dry_lines(planned))
        if self.dry_run:
            session.out.print(table(planned))
            return 0
        comparison = swept(planned, self.workers, session.out)
        session.say(table(planned))
        print_results(session.out, comparison.results, comparison.findings, details=False)
        session.say(*several_parts(planned.design, planned.arms), f"summary: {planned.out / 'summary.md'}")
        return 0 if comparison.complete else 2


    def _refuse_beside_a_design(self, session: Session) -> None:
        """Raise ConfigError for options that a design file contains itself."""
        given = [*filter(None, [self.changed("methods", "seeds", "task")]), *(f"--{key}" for key, _ in session.edits)]
        if given:
            raise ConfigError(
                f"{', '.join(given)} beside the design {self.design}: set it there (arms, seeds, base), or omit the file and "
                "pass --methods"
            )

    def _typed(self, session: Session) -> SweepPlan:
        """The plan of --methods, whose design is written into the output folder; for a dry run, into a temporary one."""
        from sage_rlvr.runs import write_text_atomic, writing
        from sage_rlvr.sweeps.design import typed_design
        from sage_rlvr.sweeps.plan import plan

        if not self.methods:
            raise ConfigError("pass a design file, or the arms: --methods grpo maxrl --seeds 0 1 2")
        text = typed_design(self.methods, self.seeds, session.edits, self.task)
        name = "-".join(["sweep", *([self.task] if self.task else []), *(Path(method).stem for method in self.methods)])
        out = self.out or RUNS / name
        if self.dry_run:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "design.yaml"
                file.write_text(text, encoding="utf-8")
                return plan(file, out)
        file = out / "design.yaml"
        with writing("sweep", out, 1 << 20):
            out.mkdir(parents=True, exist_ok=True)
            write_text_atomic(file, text)
        session.note(f"design: {file}, without controls; for those and questions, edit it and run: {suggest('sweep', file)}")
        return plan(file, out)


@dataclass(frozen=True)
class Demo(Command):
    """Train three methods on this machine, evaluate and compare them, and write a page.

    The methods are no-KL, GRPO and SAGE-Branch, from the shipped base, evaluated exactly. With --model smollm2 they start from
    a pretrained model and are evaluated by samples, together with the base at lower temperatures. After an interruption the same
    command continues. `--a.b value` edits every arm's recipe, e.g. `--steps 40` for a short look."""

    edits_recipe: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    model: str = "embedded"
    """embedded, smollm2 (the command prints how long that takes), or a policy instead of the embedded one."""
    short: bool = False
    """The short form of --model smollm2: only GRPO, half of the problems, a third of the time."""
    out: Path | None = None
    """The folder of runs, evaluations, figures and the page (default runs/demo, or runs/demo-MODEL). The same folder continues."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; claims about methods need at least three."""
    arms: tuple[str, ...] | None = None
    """Methods to train by name (default: no_kl grpo sage_branch; grpo in the short form)."""
    problems: int | None = None
    """Number of test problems (default 300; for smollm2 200, or 100 in the short form)."""
    power_tempering: bool = True
    """Also evaluate the embedded base tempered over full completions, without any reward."""
    workers: int | None = None
    """Training runs at a time (default: as many as fit on the cores; for smollm2 one, with all cores)."""

    def execute(self, session: Session) -> int:
        """Train, evaluate and compare, write the page and print it. Returns 0, or 2 if a run failed."""
        from sage_rlvr.api.printed import ending
        from sage_rlvr.api.sweep import demo_folder, demonstrated
        from sage_rlvr.cli.evaluate import print_cross_check
        from sage_rlvr.sweeps import demo
        from sage_rlvr.training.counts.probe import in_time

        out = demo_folder(self.model) if self.out is None else self.out
        more: dict[str, Any] = {"powers": self.power_tempering, "model": self.model, "short": self.short}
        planned = demo.plan(out, self.seeds, self.arms, session.edits, self.problems, **more)
        comparison = demonstrated(planned, self.workers, session.out, session.say)
        if not comparison.complete:
            return 2
        clock = comparison.notes["clock"]
        session.say("", *ending(comparison.results, comparison.findings))
        if checked := comparison.notes["cross_check"]:
            print_cross_check(session.out, checked)
        session.say(f"took {in_time(clock[-1] - clock[0])}", f"page: {out / 'report.html'}")
        return 0
