"""Attacks on the whole program, for a maintainer: `make battery`, or `python -m tests.battery kills --count 20`.

world.py     a folder with a tiny policy, recipes, data, a run, a record and a store
kills.py     SIGKILL at random instants of every command that writes; the same command again must end as if undisturbed
damages.py   every kind of file, damaged in every way, given to every command that reads it: a sentence, never a traceback
hostile.py   answers that try to hang, crash or fill the verifiers

Each attack is drawn from (seed, number), so that one that fails can be repeated alone. Nothing here is imported by the tests but
`tests/test_battery.py`, which runs a few of each.
"""
