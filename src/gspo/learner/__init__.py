"""One update: completions in; an optimizer step and a few sums out. Also decides how completions are laid out as rows."""
