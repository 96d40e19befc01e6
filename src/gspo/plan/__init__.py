"""`gspo plan`: what a run needs of memory and networks, before anything is loaded."""
