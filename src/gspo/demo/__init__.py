"""The demo: a tiny mixture of experts learns by GSPO that working a question out pays."""
