"""Attacks on the whole program, for a maintainer: `python -m lab.stress.battery all`, or `... kills --count 20`.

world.py     a folder with a tiny policy, recipes, data, runs, records and a store; commands in forked children
commands.py  the commands that are repeated, and what each leaves as digests
kills.py     SIGKILL and SIGTERM at random instants of every command that writes; repeated, it must end as if undisturbed
damages.py   every kind of file, damaged in every way, given to the commands that read it: the same result or a message
hostile.py   answers that try to hang, crash, fill or fool the verifiers
page.py      the figures as lab/pages/results/battery.md

Each attack is drawn from (seed, number), so that one that fails can be repeated. They need Linux (fork, /proc).
`lab/tests/test_battery.py` runs a few of each.
"""
