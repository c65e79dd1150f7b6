"""The tests of the verl adapter run in an environment of their own (`make test-verl`), and are skipped in any other.

`--page FILE` writes what they found as a page: lab/pages/results/verl.md is one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # behind: there is a conftest here too
if importlib.util.find_spec("verl") is not None:  # before it is imported
    from verl_common import environment

    os.environ.update({name: value for name, value in environment().items() if name != "PYTHONPATH"})


PACKAGES = ("verl", "torch", "transformers", "ray", "TransferQueue", "tensordict", "peft")
HEAD = """# The tests on verl

Made by `make test-verl ARGS="--page lab/pages/results/verl.md"`: {outcome} in {seconds:.0f} s on CPUs, with {versions}.

Whole runs start verl: Ray, TransferQueue, FSDP2 over gloo, a rollout plug-in of the tests in the place of vLLM. Stages
are verl's trainer and worker in one process. A row is of its test's latest run with `--page`; what it shows, the test says
(`tests/verl_engine/`).

| test | case | outcome | seconds | figures |
| --- | --- | --- | ---: | --- |
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--page", default=None, help="write what the tests on verl found to this Markdown file")


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Notes a number for the page: its name and its value."""
    return record_property


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The page, from the reports of all tests that ran here; rows of tests that did not run this time are kept."""
    if config.getoption("--page", None) is None:  # unknown where another folder is named
        return
    page = Path(config.getoption("--page"))
    rows = {_named(line): line for line in page.read_text().splitlines() if line.startswith("| ")} if page.is_file() else {}
    for kind in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(kind, []):
            if "test_verl_" in report.nodeid:
                line = _row(kind, report)
                rows[_named(line)] = line
    cells = [line.split(" | ") for name, line in rows.items() if name[0] not in ("| test", "| ---")]
    counts = ", ".join(f"{n} {kind}" for kind, n in Counter(row[2] for row in cells).items())
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    text = HEAD.format(outcome=counts, seconds=sum(float(row[3]) for row in cells), versions=versions)
    page.write_text(text + "\n".join(sorted(" | ".join(row) for row in cells)) + "\n", encoding="utf-8")


def _named(line: str) -> tuple[str, ...]:
    return tuple(line.split(" | ")[:2])


def _row(kind: str, report: Any) -> str:
    name, _, case = report.nodeid.rpartition("::")[2].removesuffix("]").partition("[")
    figures = "; ".join(f"{key}: {value}" for key, value in report.user_properties)
    return f"| {name.removeprefix('test_').replace('_', ' ')} | {case} | {kind} | {report.duration:.1f} | {figures} |"
