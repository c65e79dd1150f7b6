"""Parts and commands that no job of the core needs. No module outside this folder imports it, while it may import everything.

sage_rlvr/names.py lists all of its parts. A module is imported when one of its parts is used by name, or when all parts are
listed.

methods/    methods of later papers, one file per paper; self_reward/ methods whose reward the policy computes itself
replay/     stored right answers and the losses on them
tasks/      repair of programs, word problems, Knights and Knaves, reasoning-gym and its grade-school templates
audit/      checks of a verifier before training: ceilings, false accepts, guess floors
io/         from and to the files of other tools
analysis/   measurements that only a command uses
"""
