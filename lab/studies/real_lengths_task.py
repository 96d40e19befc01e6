"""The task of real_lengths.py: a reward that texts of any length can earn step by step."""

TOPICS = (
    "a river", "a lost key", "winter", "an old clock", "the moon", "a market", "a train", "bread", "a storm", "a garden",
    "a letter", "the sea", "a bridge", "a dog", "a mountain", "rain", "a painter", "an island", "a school", "fire",
    "a violin", "a forest", "a secret", "snow", "a lighthouse", "a horse", "a city", "a dream", "honey", "a library",
    "a balloon", "the desert", "a mirror", "a ship", "an orchard", "a candle", "a race", "a king", "night", "a kite",
)  # fmt: skip
KINDS = "a story", "a poem", "a diary entry", "a speech", "a description", "a letter", "a lesson", "a dialogue"


def training() -> list[dict[str, str]]:
    """320 prompts."""
    return [{"prompt": f"Write {kind} about {topic}."} for kind in KINDS for topic in TOPICS]


def short_words(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """The share of words of at most four letters."""
    words = [[word for word in text.split() if word.isalpha()] for text in completions]
    return [sum(len(word) <= 4 for word in each) / max(len(each), 1) for each in words]
