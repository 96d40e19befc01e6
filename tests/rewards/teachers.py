"""The other side of a teacher's endpoint: a real HTTP server that answers as vLLM's, with the numbers of a real model."""

from contextlib import closing, contextmanager

import torch
from fastapi.responses import JSONResponse

from gspo.config.policy import TeacherConfig
from gspo.rewards.teacher_endpoint import TeacherEndpoint
from tests.rewards.endpoint import listening

NAME = "large"


def refused(message, status=400):
    return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": status}}, status)


class Teacher:
    """answer(body) of tests/rewards/endpoint.py. change(answer, body): what it says instead of the truth."""

    def __init__(self, tiny, context=64, change=lambda answer, body: answer):
        self.tiny, self.context, self.change = tiny, context, change
        self.models = [{"id": NAME, "object": "model", "max_model_len": context}]

    @torch.no_grad()
    def positions(self, ids):
        logp = self.tiny.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        told = [
            {
                "logprob": float(row[id]),
                "rank": int((row > row[id]).sum()) + 1,
                "decoded_token": self.tiny.tokenizer.decode([id]),
            }
            for row, id in zip(logp, ids[1:])
        ]
        return [None, *({str(id): each} for id, each in zip(ids[1:], told))]

    def __call__(self, body):
        ids = body["prompt"]
        if max(ids) >= self.tiny.config.vocab_size:
            return refused(f"Token id {max(ids)} is out of vocabulary")
        if len(ids) + body["max_tokens"] > self.context:
            return refused(f"This model's maximum context length is {self.context} tokens")
        positions = None if body.get("prompt_logprobs") is None else self.positions(ids)
        choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length", "prompt_logprobs": positions}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        answer = {"id": "c", "object": "text_completion", "created": 0, "model": NAME, "choices": [choice], "usage": usage}
        return self.change(answer, body)


@contextmanager
def served(teacher, **settings):
    """A client of this teacher, and the server."""
    with listening(teacher) as server:
        config = TeacherConfig(**{"path": NAME, "url": server.url, "retries": 0} | settings)
        with closing(TeacherEndpoint(config)) as client:
            yield client, server
