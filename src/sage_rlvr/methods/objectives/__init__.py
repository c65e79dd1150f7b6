"""Methods that share a file by family.

losses.py has other surrogates and token weights; utilities.py functions of P(correct) such as pass@k; right_answers.py
preferences among correct answers; stored.py replay of stored answers; verifier_free.py rewards without a verifier.
"""
