"""The recipes: settings with names (`gspo train recipe:NAME`), and the tasks of those that need one. Copy them."""
