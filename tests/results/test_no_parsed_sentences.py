"""Outcomes are values: no code takes a sentence apart to learn what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sage_rlvr

PACKAGE = Path(sage_rlvr.__file__).parent
SENTENCES = re.compile(
    r"""\.startswith\(\s*["'](cannot|better|worse|higher|lower|tied|no )"""  # a verdict by its first word
    r"""|\.endswith\(\s*["'] (at|near|taken)"""  # a metric by its last
    r"""|\.split\(["'] (\(|at its |vs )"""
    r"""|(verdict|outcome|metric|sentence|label|status|head|variant|state)\w*"""
    r"""\.(startswith|endswith|removesuffix|removeprefix|split|partition)\([^)]"""
    r"""|describe\(\)\.|\.name\.(strip\(\)|startswith\("  )|["']\w+ ["'] in line"""  # what a method, a check, a line says of itself
    r"""|["'](better|worse|higher|lower|tied|no significant difference|cannot be told)["'] in """
    r"""|(match|search|findall|split|sub)\(.*\bstr\((error|self\.own)\)"""  # a refusal
    r"""|\bstr\((error|self\.own)\)\.[a-z]*(with|fix|tition)\("""
)
STRANGERS = {  # errors of others that are words alone: what the file system told safetensors, and Python of a call
    "runs/files.py": 'reported = re.search(r"os error (\\d+)", str(error))',
    "plugins.py": r'called = BAD_CALL.match(str(error)) if isinstance(error, TypeError) else None',
}
ALLOWED = {  # verdicts of a verifier on an answer, which are labels
    "verifiers",
}


@pytest.mark.parametrize("part", sorted({p.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*.py")} - ALLOWED))
def test_no_code_parses_a_sentence(part: str) -> None:
    files = [PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).rglob("*.py"))
    found = [
        f"{path.relative_to(PACKAGE)}:{i}: {line.strip()}"
        for path in files
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SENTENCES.search(line) and line.strip() != STRANGERS.get(path.relative_to(PACKAGE).as_posix())
    ]
    assert not found, found


def test_the_pattern_knows_what_it_is_to_find() -> None:
    for line in (
        'if verdict.startswith("cannot"):', 'word = text.split(" (")[0]', "one.metric.endswith(NEAR)", 'name.split(" at its ")',
        'c.verdict.removesuffix(ALONE)', 'if "better" in sentence:', 'status.partition("/")', 'if ylabel.startswith("pass@"):',
        "method.describe().splitlines()", 'check.name.startswith("  ")', 'any("SRR " in line for line in lines)',
        "first = re.match(NAME, str(self.own))", 'str(error).startswith("ratio")', "again = re.sub(NAME, str(), str(error))",
    ):  # fmt: skip
        assert SENTENCES.search(line), line
