"""Samples of the harness into a sample store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sage_rlvr.contrib.io.lm_eval.files import OURS, SIDECAR, hashes_of, sidecar
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation.judged import UNJUDGED
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.sample import PromptAndGold, Sample, prompt_hash
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.safe_io import MIB, parse_json, read_json, read_lines

MAX_GEN_TOKS = 256  # lm-evaluation-harness's default if neither the task nor the command sets it
LINE = 256 * MIB  # bytes of a document with all its repeats
_NEEDED = "needs doc_id, doc, target, arguments and resps"
_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_BATCH = 256  # samples per commit, at least one document


@dataclass(frozen=True)
class _Document:
    """One line of a samples file. kept: doc_id, doc, target, prompt, settings, for which the store has no column. ours: fields
    that `export_lm_eval` added. hashes: of doc, prompt and target together."""

    kept: Mapping[str, Any]
    texts: list[str]
    filter: str
    score: tuple[str, float] | None
    filtered: Any
    ours: Mapping[str, Any] | None
    hashes: str

    @classmethod
    def of(cls, line: str, where: str, metric: str | None) -> _Document:
        """Parse a line. Raises DataError if it has no generated text."""
        row = parse_json(line, where, advice=f"it {_NEEDED}", strict=False)
        with _as_written(where, f"not a line of lm_eval --log_samples; it {_NEEDED}"):
            return cls._of(row, where, metric)

    @classmethod
    def _of(cls, row: dict[str, Any], where: str, metric: str | None) -> _Document:
        kept = {"doc_id": row["doc_id"], "doc": row["doc"], "target": str(row["target"])}
        arguments, resps = _arguments(row["arguments"]), row["resps"]
        if isinstance(kept["doc_id"], bool) or not isinstance(kept["doc_id"], int | str):
            raise TypeError(f"doc_id {kept['doc_id']!r:.60} is neither a number nor text")
        one = len(arguments) == 1 and len(arguments[0]) > 1 and isinstance(arguments[0][1], Mapping)
        if not one or not _texts(resps):
            raise DataError(
                f"{where}: not one generated text a repeat (multiple choice, log-likelihood or several requests); only tasks "
                "with output_type generate_until can be imported"
            )
        prompt, settings = arguments[0][:2]
        kept |= {"prompt": prompt if isinstance(prompt, str) else json.dumps(prompt), "settings": settings}
        kept["doc"] = kept["doc"] if isinstance(kept["doc"], dict) else {"doc": kept["doc"]}
        hashes = "".join(str(row.get(name) or made) for name, made in hashes_of(kept).items())
        score, filtered = _score(row, metric, where), row.get("filtered_resps")
        ours = row.get("sage_rlvr")
        if ours:
            _check_ours(ours, len(resps[0]))
        return cls(kept, resps[0], str(row.get("filter", "none")), score, filtered, ours, hashes)

    def problem(self, key: str) -> str:
        """The problem's id: doc_id or a key of doc; files of `export_lm_eval` contain it."""
        if self.ours:
            return str(self.ours["problem"])
        problem_id = _id_of(self.kept, key)
        if problem_id is None:
            known = sorted(self.kept["doc"])
            raise DataError(f"document {self.kept['doc_id']}: its doc has no {key!r}; there are {known}")
        return problem_id

    def samples(self, key: str, repeats: int) -> list[Sample]:
        """The first repeats; with only one, the harness's score of 0 or 1 is the verdict."""
        judged: dict[str, Any] = {"verdict": "undecided", "reason": UNJUDGED}
        if len(self.texts) == 1 and self.score is not None and self.score[1] in (0.0, 1.0):
            verdict = "right" if self.score[1] else "wrong"
            judged = {"verdict": verdict, "reason": f"lm_eval {self.score[0]},{self.filter}"}
        rows = [judged | {"answer": self._answer(i)} for i in range(repeats)]
        hashed = prompt_hash(self.kept["prompt"])
        if self.ours:
            rows = [{name: self.ours[name][i] for name in OURS} for i in range(repeats)]
            hashed = self.ours["prompt_hash"]
        shared = {"problem": self.problem(key), "prompt_hash": hashed}
        return [Sample(sample=i, text=self.texts[i], **shared, **row) for i, row in enumerate(rows)]

    def _answer(self, i: int) -> str | None:
        """The filtered response of repeat i, if the filter left one for each."""
        if not isinstance(self.filtered, list) or len(self.filtered) != 1:
            return None
        (inner,) = self.filtered
        if isinstance(inner, list) and len(inner) == len(self.texts):
            return str(inner[i])
        return inner if len(self.texts) == 1 and isinstance(inner, str) else None


def _check_ours(ours: Any, repeats: int) -> None:
    """Raise TypeError if the columns that `export_lm_eval` adds do not exist for every repeat, or have other types."""
    named = isinstance(ours, dict) and all(isinstance(ours.get(name), str) for name in ("problem", "prompt_hash"))
    for name, kind in OURS.items():
        rows = ours.get(name) if named else None
        if not isinstance(rows, list) or len(rows) != repeats or not all(isinstance(row, kind) for row in rows):
            raise TypeError(f"sage_rlvr.{name if named else 'problem'} is not as `samples --to-lm-eval` writes it")


def import_lm_eval(
    path: str | Path,
    store: str | Path,
    *,
    model: str | None = None,
    revision: str | None = None,
    results: str | Path | None = None,
    filter: str | None = None,
    metric: str | None = None,
    problem_id: str = "doc_id",
) -> SampleStore:
    """Import one samples_<task>_<date>.jsonl into a sample store, which is returned open. Repeated imports change nothing.

    store: the folder to make. model, revision: by default those in the results file. results: that file, by default the one of the
        same date in the folder of `path`. filter, metric: whose score is the first verdict; by default the file's filter (one must
        be named if there are several) and its first metric.
    problem_id: "doc_id", or the key of `doc` that names the problem as your task does.
    All documents must have the same number of repeats and the same generation settings. Raises DataError with the line that cannot
    be used: multiple choice and log-likelihood requests have no generated text.
    """
    path = Path(path)
    run_results = _results(path, results)
    documents, task_hash = _read(path, filter, metric)
    with _as_written(path, "its settings, or the results file beside it, are not as lm_eval writes them"):
        identity = _identity(path, documents[0], task_hash, run_results, model, revision)
    logged = len(documents[0].texts)
    kept: dict[str, dict[str, Any]] = {}
    for document in documents:
        problem = document.problem(problem_id)
        if problem in kept:
            raise DataError(f"{path}: two documents have the problem id {problem!r}; use another --problem-id")
        kept[problem] = {"problem": problem, **document.kept}
    opened = SampleStore.open(store, identity)
    kept = _agreed(opened.path, kept)
    repeats = 1 if identity.greedy else logged
    if repeats < logged:
        warnings.warn(f"{path}: {logged} repeats of greedy decoding are one sample; only the first of each is imported")
    # Before any sample, so that no sample is in the store without its document.
    write_text_atomic(opened.path / SIDECAR, "".join(json.dumps(row) + "\n" for row in kept.values()))
    opened.describe({problem: PromptAndGold(str(row["prompt"]), str(row["target"]) or None) for problem, row in kept.items()})
    at_once = -(-_BATCH // repeats)
    for first in range(0, len(documents), at_once):
        some = documents[first : first + at_once]
        with _as_written(path, "its samples are not as lm_eval writes them"):
            opened.commit([row for document in some for row in document.samples(problem_id, repeats)])
    return opened


def _read(path: Path, filter: str | None, metric: str | None) -> tuple[list[_Document], str]:
    """(each document once, after the filter whose score counts, the task's hash). Raises DataError if they do not belong
    together."""
    chosen: dict[Any, _Document] = {}
    seen: dict[Any, list[str]] = {}
    first: _Document | None = None
    filters: dict[str, None] = {}
    digest = hashlib.sha256()
    for document in _documents(path, metric):
        first = first or document
        name, settings = document.kept["doc_id"], document.kept["settings"]
        if len(document.texts) != len(first.texts) or settings != first.kept["settings"]:
            raise DataError(
                f"{path}: document {name} has {len(document.texts)} repeats under {settings}, the first one "
                f"{len(first.texts)} under {first.kept['settings']}; a store has one setting: split the file"
            )
        if seen.setdefault(name, document.texts) != document.texts:
            raise DataError(f"{path}: document {name} occurs twice with different responses; check whether the file has two runs")
        filters[document.filter] = None
        if document.filter == (first.filter if filter is None else filter):
            chosen.setdefault(name, document)
        digest.update(document.hashes.encode())
    if first is None:
        raise DataError(f"{path}: has no samples; run lm_eval with --log_samples and --output_path")
    if not chosen:
        raise DataError(f"{path}: no filter {filter!r}; choose from {list(filters)}")
    if filter is None and len(filters) > 1:
        raise DataError(
            f"{path}: scores of {len(filters)} filters ({', '.join(filters)}), which read answers differently; name the one that "
            f"counts: --filter {first.filter}"
        )
    return list(chosen.values()), digest.hexdigest()


@contextlib.contextmanager
def _as_written(where: object, message: str) -> Iterator[None]:
    """Raise DataError if values have other types than the harness writes."""
    try:
        yield
    except SageError as error:
        raise error if str(where) in str(error) else type(error)(f"{where}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {message} ({type(error).__name__}: {error!s:.200})") from error


def _documents(path: Path, metric: str | None) -> Iterator[_Document]:
    for number, line, _ in read_lines(path, line=LINE):
        if line.strip():
            try:
                text = line.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: no text in UTF-8 ({error})") from error
            yield _Document.of(text, f"{path}:{number}", metric)


def _agreed(store: Path, kept: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The sidecar's rows, old and new. Raises DataError if the documents exist under other ids, so that each question would
    occur twice; the rest of the identity has been compared."""
    known = sidecar(store)
    fewer, more = sorted(({name: row["doc_id"] for name, row in rows.items()} for rows in (known, kept)), key=len)
    if not set(fewer) <= set(more) or (len(fewer) == len(more) and fewer != more):
        keys = ["doc_id", *next(iter(known.values()))["doc"]]
        key = next((key for key in keys if all(_id_of(row, key) == name for name, row in known.items())), None)
        how = f"with --problem-id {key}" if key else f"under other problem ids ({', '.join(list(known)[:3])}, ...)"
        raise DataError(f"{store}: was imported {how}; use another store")
    return known | kept


def _id_of(row: Mapping[str, Any], key: str) -> str | None:
    value = row["doc_id"] if key == "doc_id" else row["doc"].get(key)
    return None if value is None else str(value)


def _arguments(value: Any) -> list[list[Any]]:
    """Requests as lists of arguments, from {"gen_args_0": {"arg_0": ...}} or, as before 0.4.3, from [[...]]."""
    if not isinstance(value, Mapping):
        return [list(arguments) for arguments in value]
    requests = [value[f"gen_args_{i}"] for i in range(len(value))]
    return [[request[f"arg_{j}"] for j in range(len(request))] for request in requests]


def _texts(resps: Any) -> bool:
    fine = isinstance(resps, list) and len(resps) == 1 and isinstance(resps[0], list) and resps[0]
    return bool(fine) and all(isinstance(text, str) for text in resps[0])


def _score(row: Mapping[str, Any], metric: str | None, where: str) -> tuple[str, float] | None:
    """(metric, value) of the requested metric, or of the first one that is a number."""
    names = row.get("metrics", ["exact_match", "acc"]) if metric is None else [metric]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"metrics {names!r:.60} is no list of names")
    if metric is not None and metric not in row:
        raise DataError(f"{where}: no metric {metric!r}; there are {row.get('metrics', sorted(row))}")
    numbers = ((name, row.get(name)) for name in names)
    return next(((name, float(value)) for name, value in numbers if isinstance(value, (bool, int, float))), None)


def _results(path: Path, given: str | Path | None) -> dict[str, Any]:
    """The results file of a samples file; {} if there is none."""
    name = _NAME.fullmatch(path.name)
    candidates = [path.with_name(f"results_{name['date']}.json")] if name else []
    files = [file for file in candidates if file.exists()] if given is None else [Path(given)]
    if not files:
        return {}
    (file,) = files
    tree: dict[str, Any] = read_json(file, advice="pass lm_eval's results file with --results", strict=False)
    return tree


def _identity(
    path: Path, first: _Document, task_hash: str, results: Mapping[str, Any], model: str | None, revision: str | None
) -> Identity:
    name, repeats = _NAME.fullmatch(path.name), len(first.texts)
    task = name["task"] if name else path.stem
    if results.get("task_hashes", {}).get(task, task_hash) != task_hash:
        warnings.warn(
            f"{path}: its documents differ from those of the results file (task_hashes); check whether a part of it is missing"
        )
    if "sage_rlvr" in results:
        ours = Identity.of(results["sage_rlvr"]["identity"])
        return ours if repeats % (ours.chunk_size or 1) == 0 else replace(ours, chunk_size=repeats)
    config = results.get("config", {})
    model = model or results.get("model_name")
    if not model:
        raise ConfigError(f"{path}: no results file in its folder names the model; pass --model NAME")
    versions = {key: results[f"{key}_version"] for key in ("lm_eval", "transformers") if results.get(f"{key}_version")}
    decoding = _decoding(first.kept["settings"])
    return Identity(
        task=task,
        task_hash=task_hash,
        model=model,
        revision=revision or config.get("model_sha") or config.get("model_revision") or "unknown",
        prompt="lm_eval",
        template_hash=results.get("chat_template_sha") or "none",
        decoding=decoding,
        verifier_hash=f"lm_eval {first.score[0] if first.score else 'unscored'},{first.filter}",
        seed=int(config.get("torch_seed") or 0),
        versions=versions,
        chunk_size=1 if decoding["temperature"] == 0 else repeats,
    )


def _decoding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Generation settings as the harness understands them: without sampling the temperature is 0."""
    rest = {key: value for key, value in settings.items() if key not in _LIMITS}
    limit = next((settings[key] for key in _LIMITS if settings.get(key) is not None), MAX_GEN_TOKS)
    sampled = settings.get("do_sample")
    unsaid = 1.0 if sampled is True else 0.0  # the default temperature of transformers
    temperature = 0.0 if sampled is False else float(settings.get("temperature", unsaid) or 0.0)
    return rest | {"preset": "lm_eval", "temperature": temperature, "max_new_tokens": int(limit)}
