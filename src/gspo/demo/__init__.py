"""The demos: a tiny mixture of experts learns by GSPO that working a question out pays, or looking with a tool."""
