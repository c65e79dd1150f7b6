"""The results of a comparison in a model card: text, and the metadata that the Hub displays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.hashes import NO_RESULTS
from sage_rlvr.results.writers.markdown import brief_markdown
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.score_rows import score_rows

HEADING = "## Evaluation"
TASK = "text-generation"


def with_results(card: str, results: Results, findings: Findings, name: str) -> str:
    """A model card with the evaluation of a policy and its base. name: of the model.

    results: of two policies, the base first and the policy of the card second. An earlier evaluation is replaced.

    Raises:
        ConfigError: For more or fewer than two policies.
    """
    from huggingface_hub import ModelCard  # of the extra train

    rows = score_rows(results)
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    if len(policies) != 2:
        got = ", ".join(policies) or "none"
        raise ConfigError(f"--results: expected two evaluations, of the base and of this policy; got {got}")
    made = ModelCard(card, ignore_metadata_errors=True)
    data: Any = made.data  # of ModelCardData, which takes any field
    data.model_name, data.eval_results = name, eval_results(rows, *policies)
    text, _, _ = made.text.replace(NO_RESULTS, "").partition(f"\n{HEADING}\n")
    brief = brief_markdown(results, findings).rstrip()
    made.text = "\n\n".join([text.rstrip(), HEADING, brief, "Compared by `sage-rlvr compare`.\n"])
    return str(made)


def eval_results(rows: Sequence[Mapping[str, Any]], base: str, policy: str) -> list[Any]:
    """One `EvalResult` per task, temperature and k of the policy, with its interval and the base's score. rows: of `score_rows`."""
    from huggingface_hub import EvalResult

    of_base = {(row["task"], row["temperature"], row["k"]): row for row in rows if row["policy"] == base}
    made = []
    for row in rows:
        if row["policy"] != policy:
            continue
        task, heat, k = row["task"] or "problems", row["temperature"], row["k"]
        beside = of_base.get((row["task"], heat, k))
        arguments = {"k": k, "n": row["samples"], "problems": row["problems"], "interval": _ends(row), "temperature": heat}
        if beside is not None:
            arguments |= {"base": base, "base_value": round(beside["pass"], 4), "base_interval": _ends(beside)}
        made.append(EvalResult(
            task_type=TASK, dataset_type=str(task), dataset_name=str(task), metric_type=f"pass@{k}", metric_name=f"pass@{k}",
            metric_value=round(row["pass"], 4), metric_args={key: value for key, value in arguments.items() if value is not None},
        ))  # fmt: skip
    return made


def _ends(row: Mapping[str, Any]) -> list[float] | None:
    ends = [round(row["low"], 4), round(row["high"], 4)]
    return ends if -1 <= ends[0] <= ends[1] <= 1 else None
