"""`gspo compare`: runs of several settings, side by side, with statistics."""
