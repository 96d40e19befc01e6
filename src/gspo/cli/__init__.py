"""The command line: a module for each command. Nothing heavy is imported until a command runs."""
