"""Conversion between lm-evaluation-harness samples (`--log_samples`) and sample stores.

incoming.py reads samples of the harness into a store, outgoing.py writes a store as files of the harness, and files.py has the
common part.

    samples_<task>_<date>.jsonl   one line per document and filter: doc_id, doc, target, arguments, resps (requests x repeats),
                                  filtered_resps, filter, metrics, doc_hash, prompt_hash, target_hash, and a number per metric
    results_<date>.json           in the same folder: model_name, config, versions, task_hashes

The format was read from EleutherAI/lm-evaluation-harness, lm_eval/evaluator.py and loggers/evaluation_tracker.py at
4e7e0d47. Its scores belong to a document after a filter, not to a sample: with one repeat a score of 0 or 1 is that sample's
verdict, with several all samples start undecided, and `SampleStore.reverify` gives them verdicts of this package. It logs neither
tokens nor log-probs, seeds nor reasons to stop: those columns stay empty, and a store that is exported loses its token-level
columns. Other fields of a document are stored in lm_eval.jsonl in the store, for the export.
"""

from __future__ import annotations

from sage_rlvr.contrib.io.lm_eval.files import is_imported, targets_of
from sage_rlvr.contrib.io.lm_eval.incoming import import_lm_eval
from sage_rlvr.contrib.io.lm_eval.outgoing import export_lm_eval

__all__ = ["export_lm_eval", "import_lm_eval", "is_imported", "targets_of"]
