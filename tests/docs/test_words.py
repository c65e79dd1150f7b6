"""The field's words, American spelling: what `docs/glossary.md` promises holds in the package, the pages and the recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = re.compile(r"docs/results/[^/]+/|assets/|moved\.py$|core/__init__\.py$")  # printed once and kept; names that still work
KINDS = {".py", ".md", ".yaml", ".j2", ".html", ".js", ".css", ".sh"}
FILES = sorted(
    path
    for place in ("src", "docs", "recipes", "examples", "benchmarks", "README.md", "CHANGELOG.md")
    for path in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    if path.suffix in KINDS and "__pycache__" not in path.parts and not STORED.search(path.relative_to(ROOT).as_posix())
)
UNITS = "nats?|tokens?|samples?|completions?|rows?|numbers?|entry|draws|prompts|updates|steps|seeds|problems?|once|thread|runs"
OF = "token|problem|second|completion|step|run|seed|arm|update|rollout|prompt|group|sample|line|task|store|guide|row|state|batch"
CLAUSE = r"(?! (?:has|can|may|trains|is|was|that|needs|gets|takes|may|must|in|of|once|at)\b)"
MORE = "verdicts?|numbers?|answers|bytes|lines?|groups|row|tokens?|values?|expressions|drawn|nats|forwards?"  # of these too
MORE_OF = "turn|check|method|layer|position|part|sample|update|problem|prompt|arm"
OLD = {
    "per": (rf"\b(?:{UNITS})\s+(?:# )?an? (?:{OF})\b{CLAUSE}", "per token, per problem"),
    "per, of more": (rf"\b(?:{MORE})\s+(?:# )?an? (?:{MORE_OF})\b{CLAUSE}", "per turn, per check"),
    "per, of a number": (
        r"(?:\b(?:one|logit|\d+(?:\.\d+)?)|\}) an? (?:prompt|step|call|task|rollout|token|completion)\b(?!'s)",
        "one per call",
    ),
    "standardise": (r"[Ss]tandardis|[Ll]inearis|[Rr]elabelled [A-Z]\b", "standardize, linearize, relabeled"),
    "towards": (r"(?<![|(:])\b[Tt]owards\b", "toward"),
    "taken alone": (r"\btaken alone\b", "before correction"),
    "could only have seen": (r"could only have seen", "minimum detectable difference (80 % power)"),
    "dead group": (r"\bdead[ _-]groups?\b|\bgroups? (?:are )?dead\b", "zero-variance group"),
    "matrix": (
        r"recipes/matrices|(?m:^ *tier: )|\b[Mm]atrix (?:file|may|has|whose|makes|asks|chooses)\b|the matrix\b",
        "design, title",
    ),
    "variety": (r"\bvariety\b", "distinct frontier"),
    "verb": (r"\b(?:a|the|this|each|one|16|other) verbs?\b", "command"),
    "optimiser": (r"[Oo]ptimis(?!t)", "optimizer"),
    "colour": (r"[Cc]olour", "color"),
    "normalise": (r"[Nn]ormalis", "normalize"),
    "summarise": (r"[Ss]ummaris", "summarize"),
    "centred": (r"[Cc]entre[ds]?\b|[Cc]entred", "centered"),
    "minimise": (r"(?:[Mm]in|[Mm]ax)imis(?:e|i|a)", "minimize"),
    "artefact": (r"[Aa]rtefact", "artifact"),
    "neighbour": (r"[Nn]eighbour|[Bb]ehaviour|[Ff]avour", "neighbor, behavior, favor"),
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_word_is_gone(old: str) -> None:
    pattern, new = OLD[old]
    found = []
    for path in FILES:
        text = re.sub(r"(?m)^- `sage_rlvr\..*$", "", path.read_text(encoding="utf-8"))  # names of old, listed as removed
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {' '.join(match[0].split())}")
    assert not found, f"say {new}:\n" + "\n".join(found)


def test_the_glossary_has_at_most_20_terms_of_our_own() -> None:
    ours, field = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("| term of the field |")
    assert len(re.findall(r"^\| (?!term|---)", ours, re.MULTILINE)) <= 20
    assert "per token" in ours and "minimum detectable difference (80 % power)" in field
