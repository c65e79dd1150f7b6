"""The sample store: every completion of an evaluation, from which every number is recomputed.

Read sample.py first (a sample) and identity.py (what all samples of a store share), then samples.py (`SampleStore`, the public
class), reader.py (how it is read) and schema.py (the tables). database.py has the transactions, checks.py the checks of samples
before they are committed, writers.py the locks of live writers; log.py checks that a log belongs to its file; older.py converts
stores of earlier versions; repeats.py detects duplicated samples; arrow.py makes Arrow tables.

    store.sqlite   samples: a row each, token-level columns as float32
                   verdicts: a row per sample and pass, with its verifier; pass 0 is the evaluation's own, the newest counts
                   claims: the chunks that a live process works on
                   meta: identity, its changes, the requested size      problems: the prompt and the gold of each
    writer-*.lock  held by a live writer; the operating system drops it with the process, SIGKILL included

The unit of work is a chunk, 32 samples of one problem, committed whole or redone:

    with SampleStore.open(folder, identity) as store:
        while chunks := store.claim(problem_ids, n):
            store.commit([... for chunk in chunks for sample in chunk.samples])
        store.counts(n)

A commit is one SQLite transaction (write-ahead log, synced): killed at any instant, what was committed stays and the rest is
missing. What depends on no clock (all columns but `latency_s`) is the same whatever the order, the number of writers and the
interruptions were, if the sampler is a function of the seed. A process runs SQLite's integrity check before it first reads a store,
which does not detect a value that was changed and is still valid. A log that a killed writer has left is compared with the file
beside it before SQLite applies it (`log.py`). Several processes of one host may write; on a network file system that several hosts
share, SQLite's locks are not safe: give each host a store of its own.
"""

from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.reader import Counts
from sage_rlvr.evaluation.store.repeats import Repeat
from sage_rlvr.evaluation.store.sample import CHUNK, Chunk, PromptAndGold, Sample, prompt_hash, seed_of
from sage_rlvr.evaluation.store.samples import SampleStore, is_store

__all__ = [
    "CHUNK",
    "Chunk",
    "Counts",
    "Identity",
    "PromptAndGold",
    "Repeat",
    "Sample",
    "SampleStore",
    "is_store",
    "prompt_hash",
    "seed_of",
]
