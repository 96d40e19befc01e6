"""Tests with SmolLM2-135M, a pretrained model: `make test-real` fetches it."""
