"""What the verbs of the command line print: lines and tables for a terminal, from recipes, records and sample stores."""
