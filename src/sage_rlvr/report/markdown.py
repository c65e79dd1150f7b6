"""Groups of verdicts and folds as Markdown, for a sweep's summary.md."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from sage_rlvr.report.digest import Group
from sage_rlvr.report.markup import escaped, visible


def grouped_lines(groups: Sequence[Group]) -> str:
    """One item a group; what they share in bold."""
    lines = [group.sentence().removeprefix(group.head) for group in groups]
    return "\n".join(f"- **{escaped(group.head)}**{escaped(line)}" for group, line in zip(groups, lines, strict=True))


def folded(line: str, blocks: Iterable[str]) -> list[str]:
    """Blocks that stay closed until the reader opens them, where the Markdown is shown as GitHub shows it."""
    return [f"<details><summary>{html.escape(visible(line), quote=False)}</summary>", *blocks, "</details>"]
