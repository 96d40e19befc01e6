"""Starts the processes of a run: ranks on this machine, under torchrun or on Ray."""
