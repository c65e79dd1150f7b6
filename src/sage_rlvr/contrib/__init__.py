"""Parts that no job of the core needs: further tasks. Nothing outside this folder imports it, while it may import everything.

Read entry_points.txt first: it lists every part here, and the registries read it as they read the entry points of an installed
package (registry.py). So a module here is imported when a part of it is asked for by name, or when all parts are listed.

tasks/      repair of programs, word problems, Knights and Knaves, reasoning-gym and its grade-school templates
"""
