"""The policy behind an OpenAI-compatible endpoint, and the model that trains on what was asked there."""
