"""Verifiers: completion -> `Verdict` (right, wrong or undecided, with a reason).

verdict.py has `Verdict`, registry.py has `VERIFIERS`. Read answers.py first (where the answer of a completion is), then math.py
(mathematics, by kind of answer: algebra.py, quantities.py, units.py) and countdown.py. pool.py runs a verifier in processes with
time and memory limits; rewards.py turns verdicts into rewards of TRL; sandbox.py runs unit tests of generated code; exact.py is an
independent check; versions.py has the version of each verifier. A verifier returns a verdict for every text, quickly, and never
raises.
"""

from sage_rlvr.verifiers.registry import VERIFIERS, Reading, reads
from sage_rlvr.verifiers.verdict import UNANSWERED, Label, Verdict

__all__ = ["UNANSWERED", "VERIFIERS", "Label", "Reading", "Verdict", "reads"]
