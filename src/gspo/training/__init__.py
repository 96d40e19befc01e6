"""The loop that drives a run: sample, score, learn, sync, log; and the supervised one."""
