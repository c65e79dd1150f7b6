"""Parts and commands that no job of the core needs. Nothing outside this folder imports it, while it may import everything.

Read entry_points.txt first: it lists all that is here, and the registries read it as they read the entry points of an installed
package (registry.py). So a module here is imported when a part of it is asked for by name, or when all parts are listed.

methods/    methods of later papers, one file per paper
tasks/      repair of programs, word problems, Knights and Knaves, reasoning-gym and its grade-school templates
audit/      checks of a verifier before training: ceilings, false accepts, guess floors
io/         from and to the files of other tools
analysis/   instruments that only a command reads
"""
