"""`gspo plan`: predicts the memory and network traffic of a run before anything is loaded."""
