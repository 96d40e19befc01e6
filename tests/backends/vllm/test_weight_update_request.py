"""When an attempt to put weights in place that was given up ends."""

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.weight_update_request import Swap


def test_a_swap_that_was_given_up_ends_between_any_two_calls(engine):
    paths = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    for number in range(len(paths)):
        swap, server = Swap(2, group="a"), Server(engine.url)
        plain, made = server.call, []

        def call(path, *args, plain=plain, made=made, swap=swap, number=number, **params):
            made.append(path)
            if len(made) == number + 1:
                swap.give_up()
            return plain(path, *args, **params)

        server.call = call
        if number == len(paths) - 1:
            assert server.swap(swap) == 1  # it was done by then
        else:
            with pytest.raises(EngineError, match="given up"):
                server.swap(swap)
        assert made == paths[: number + 1]
