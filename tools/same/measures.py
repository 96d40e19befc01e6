"""A reward that differs between the completions of a model that has learned nothing."""


def digits(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Share of digits."""
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in completions]
