"""Requests with which nothing is wrong."""

ASK = [{"role": "user", "content": "what is in the box"}]
GOOD = {"model": "policy", "messages": ASK}
