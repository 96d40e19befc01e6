"""One update: completions in, a step of the optimizer and a few sums out. How rows are laid out is decided here."""
