"""Sandboxes for programs that nobody trusts. Inside, this file is empty, and gspo a package of a few modules."""
