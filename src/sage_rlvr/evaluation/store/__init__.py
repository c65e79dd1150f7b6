"""The sample store: every completion of an evaluation, from which every number is recomputed.

Read sample.py first (a sample) and identity.py (the fields that all samples of a store share), then samples.py (`SampleStore`, the
public class), parts.py (the Parquet files) and folder.py (writing and checking a file). checks.py has the checks of samples before
they are committed, claims.py the claims of live writers.

    store.json       identity, written once
    samples/         the samples, with the evaluation's verdicts             verdicts/   later verdicts; the newest counts
    scores/          log-probs under a base that were computed afterwards    problems/   the prompt and the gold of each problem
    notes/           facts as JSON: other versions, the requested size       writing/    locks, claims and unfinished files

The unit of work is a chunk, 32 samples of one problem, committed as a unit or redone:

    with SampleStore.open(folder, identity) as store:
        while chunks := store.claim(problem_ids, n):
            store.commit([... for chunk in chunks for sample in chunk.samples])
        store.counts(n)

All files but those in `writing` are parts: written atomically, named by the hash of their bytes, and never changed; small ones are
merged when a writer ends, by one process at a time. So a store that is killed, copied, restored or merged with a copy of itself is
a set of complete parts, and missing samples are generated again. A part with other bytes, or with other samples of a chunk than
another part has, is an error that names it. All columns that depend on no clock (all but `latency_s`) are the same for any order,
number of writers and interruptions, if the sampler is a function of the seed. Several processes may write where the file system
has locks and hard links.
`pandas.read_parquet(folder / "samples")`, DuckDB and `datasets` read the samples as they were generated.
"""

from sage_rlvr.evaluation.repeats import Repeat
from sage_rlvr.evaluation.store.folder import is_store
from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.sample import CHUNK, Chunk, PromptAndGold, Sample, prompt_hash, seed_of
from sage_rlvr.evaluation.store.samples import Counts, SampleStore

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
