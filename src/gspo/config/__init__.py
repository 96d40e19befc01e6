"""The configuration of a run: its fields, reading and writing, and checks across fields. Importing it loads no torch."""
