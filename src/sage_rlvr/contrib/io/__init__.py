"""From and to the files of other tools, with the commands that convert.

lm_eval/ converts samples of lm-evaluation-harness, documents.py regenerates the documents of generated problems, archive.py writes
a sample store as one Parquet file and reads it back, import_config.py reads settings of TRL and verl. samples.py and export.py are
the commands `samples`, `import-config`, `export verl` and `push`.
"""
