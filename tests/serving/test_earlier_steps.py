"""`NAME@STEP`: the weights of that step, whatever happens meanwhile."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.patience import PATIENCE
from tests.serving.served import GOOD, post, serving, tiny
from tests.serving.test_model import body, collected

GREEDY = GOOD | {"temperature": 0, "max_tokens": 8}


def text(model, name):
    """What the policy answers under this name, and the version of the weights that did."""
    response = post(model, "/chat/completions", GREEDY | {"model": name})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"], response.json()["system_fingerprint"]


def step(model):
    """A step with a rate at which every answer changes."""
    response = post(model, "/train", body(asyncio.run(collected(model, 1))) | {"learning_rate": 0.3})
    assert response.status_code == 200, response.text


@pytest.fixture(scope="module", params=["whole", "adapters"])
def trained(request, tmp_path_factory):
    """A model with checkpoints of steps 2 and 3, and what it answered after each step."""
    folder = tmp_path_factory.mktemp("steps")
    tiny().save(folder / "model")
    sections = {"lora": {"rank": 4}} if request.param == "adapters" else {}
    model = {"path": str(folder / "model")}
    with serving(folder / "run", given=False, model=model, train={"save_every": 9}, **sections) as served:
        answers = {0: text(served, "policy")}
        for number in (1, 2, 3):
            step(served)
            answers[number] = text(served, "policy")
            if number > 1:
                served.save()
        yield served, answers


def test_each_step_answers_as_it_did(trained):
    model, answers = trained
    assert len({words for words, _ in answers.values()}) == 4
    for number in (3, 2, 0, 3, 2):
        assert text(model, f"policy@{number}") == answers[number]
    assert len(model.earlier._loaded) == 1
    model.earlier.drop()
    assert not model.earlier._loaded


def test_a_step_that_is_held_stays_in_memory(trained):
    model, answers = trained
    with model.earlier.held(2):
        text(model, "policy@2")
        text(model, "policy@0")
        model.earlier.drop()
        assert list(model.earlier._loaded) == [2]
    model.earlier.drop(but=[2])
    assert list(model.earlier._loaded) == [2]
    model.earlier.drop()
    assert not model.earlier._loaded


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("policy@1", "the weights of step 1 are gone: there are checkpoints of steps 2, 3"),
        ("policy@4", "the weights of step 4 are gone"),
        ("policy@", "is not served here: it is 'policy', or policy@STEP"),
        ("policy@-1", "is not served here"),
        ("policy@two", "is not served here"),
        ("other@2", "is not served here"),
    ],
)
def test_what_is_not_there(trained, name, why):
    response = post(trained[0], "/chat/completions", GREEDY | {"model": name})
    assert response.status_code == 404 and why in response.json()["error"]["message"]


def test_weights_that_change_while_a_request_waits(tmp_path):
    """It is queued while a step is under way, and sampled by the weights after it: but not returned."""
    with serving(tmp_path / "run", train={"save_every": 1}) as model, ThreadPoolExecutor() as others:
        step(model)
        before = text(model, "policy@1")
        learner, completer = model.run.learner, model.chat.completer
        update, begin = learner.update, completer.begin
        reached, queued = threading.Event(), threading.Event()

        def waits(number):
            reached.set()
            assert queued.wait(PATIENCE)
            return update(number)

        def begins(*arguments):
            queued.set()
            return begin(*arguments)

        learner.update = waits
        request = body(asyncio.run(collected(model, 1))) | {"learning_rate": 0.3}
        completer.begin = begins
        trained = others.submit(post, model, "/train", request)
        assert reached.wait(PATIENCE)
        asked = others.submit(text, model, "policy@1")
        assert trained.result(PATIENCE).status_code == 200
        assert asked.result(PATIENCE) == before != text(model, "policy@2")
