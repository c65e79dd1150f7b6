"""Verifiers: completion -> `Verdict` (right, wrong or undecided, with a reason).

verdict.py has `Verdict`. Read answers.py first (where the answer of a completion is), then math.py (mathematics, by kind of answer:
algebra.py, quantities.py, units.py) and countdown.py. pool.py runs a verifier in processes with time and memory limits, with
worker.py in each process; rewards.py turns verdicts into rewards of TRL; sandbox.py runs unit tests of generated code; exact.py is
an independent check; versions.py has the version of each verifier. A verifier returns a verdict for every text, quickly, and never
raises. These modules import only `errors` and `process` of sage_rlvr; the registry of verifiers is in tasks/verifiers.py.
"""

from sage_rlvr.verifiers.reading import Reading, reads
from sage_rlvr.verifiers.verdict import UNANSWERED, Label, Verdict

__all__ = ["UNANSWERED", "Label", "Reading", "Verdict", "reads"]
