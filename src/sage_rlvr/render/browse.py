"""The page of `sage-rlvr browse`: one HTML document, and scripts with the texts if these are large.

The document has no text of a completion: it loads the script with the completions that are opened. A page on a disk can load
scripts and no other files. Texts become JSON in which no character closes a script element, and the page inserts them as text only.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from sage_rlvr.render.build import POLICY, asset, template
from sage_rlvr.render.markup import as_script
from sage_rlvr.render.style import dark_twins

PART = 2_000_000  # characters of texts in one script; a single part is in the document itself


def parts_of(entries: Iterable[Any]) -> Iterator[list[str]]:
    """Yield the entries as JSON, in parts of about `PART` characters."""
    part, size = list[str](), 0
    for entry in entries:
        part.append(as_script(entry))
        size += len(part[-1])
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def key_of(index: Mapping[str, Any]) -> str:
    """Return a name that a page and its scripts share, so that a page does not read the texts of another one."""
    return hashlib.sha256(as_script(index).encode()).hexdigest()[:16]


def script_of(key: str, number: int, part: list[str]) -> str:
    """Return the script with a part of the texts, ASCII."""
    return f'sageRlvrTexts("{key}",{number},[{",".join(part)}]);'


def document_of(title: str, about: str, index: Mapping[str, Any], part: list[str] | None) -> str:
    """Return the document.

    Args:
        title: The title.
        about: A sentence below it.
        index: The values of `results.browse.index_of` with id, folder ("" without scripts) and starts, the number of the first
            entry in each part.
        part: All entries; None if they are in scripts.
    """
    script = asset("browse.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" + ("" if part is not None else " 'self' file:")
    texts = "null" if part is None else f"[{','.join(part)}]"
    return template(
        "page.html.j2", title=title, body=Markup(template("browse.html.j2", title=title, about=about)),
        policy=POLICY.format(script=allowed), twins=dark_twins(), style=Markup(asset("browse.css")), script=Markup(script),
        data=Markup(f'{as_script(index)[:-1]},"texts":{texts}}}'),
    )  # fmt: skip
