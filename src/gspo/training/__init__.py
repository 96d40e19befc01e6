"""The training loop (sample, score, learn, sync, log) and the loop of supervised fine-tuning."""
