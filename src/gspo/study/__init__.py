"""`gspo compare`: algorithms x settings x seeds, as ordinary runs, on equal terms."""
