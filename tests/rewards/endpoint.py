"""A real HTTP server that speaks the OpenAI wire format and does what a script says."""

import json
import re
import threading
import time
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response


def material(body):
    """The parts of a request's material by title."""
    return dict(re.findall(r"<<<\w+ ([A-Z0-9 ]+)>>>\n(.*?)\n<<<\w+ END OF \1>>>", body["messages"][1]["content"], re.S))


def said(text, **fields):
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | fields
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def score(value):
    return said(json.dumps({"reason": "so", "score": value}))


class Endpoint:
    """answer(body) -> a body, a Response, or seconds to be silent and then a body. asked: what came in."""

    def __init__(self, answer):
        self.answer, self.asked, self.keys = answer, [], []
        self.at_work = self.most = 0
        self.lock = threading.Lock()
        self.app = FastAPI()
        for path in ("/v1/chat/completions", "/v1/completions", "/classify"):
            self.app.post(path)(self.completion)
        self.app.get("/v1/models")(lambda: {"object": "list", "data": getattr(answer, "models", [])})

    def questions(self):
        """The requests but for the first small one."""
        return [body for body in self.asked if material(body).get("QUESTION") != "1 + 1 = ?"]

    def completion(self, request: Request, body: dict):
        with self.lock:
            self.asked.append(body)
            self.keys.append(request.headers.get("authorization"))
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        try:
            response = self.answer(body)
            if isinstance(response, tuple):
                time.sleep(response[0])
                response = response[1]
            return response if isinstance(response, Response) else JSONResponse(response)
        finally:
            with self.lock:
                self.at_work -= 1


@contextmanager
def listening(answer):
    """A script behind an address; `url` is the endpoint's."""
    endpoint = Endpoint(answer)
    server = uvicorn.Server(uvicorn.Config(endpoint.app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    endpoint.root = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    endpoint.url = f"{endpoint.root}/v1"
    try:
        yield endpoint
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(5.0)
