"""The demos: with GSPO, a tiny mixture of experts learns to work out answers instead of guessing, or to look with a tool."""
