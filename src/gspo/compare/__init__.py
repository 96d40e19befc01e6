"""`gspo compare`: runs several configurations and compares them, with statistics."""
