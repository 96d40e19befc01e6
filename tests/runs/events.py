"""What a run has said."""

from gspo.report.read import read_lines


def texts(folder):
    """The texts of its events."""
    return [line["text"] for line in read_lines(folder / "events.jsonl")]
