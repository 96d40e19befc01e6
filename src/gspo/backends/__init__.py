"""What samples and what learns, on engines that exist. Only build imports them, and the demo, which makes its own model."""
