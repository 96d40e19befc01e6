"""The settings of a run: their fields, the files they stand in, and what they may be together. No torch is loaded here."""
