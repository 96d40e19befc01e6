"""The command line: one module per command. Heavy imports wait until a command runs."""
