import pytest
import torch

from gspo.backends.hf.critic import Critic
from tests.backends.hf.families import tiny


def read(model, critic, tokens):
    states = model.hidden(input_ids=tokens).flatten(0, 1)
    return critic(states, torch.arange(tokens.numel()), {"input_ids": tokens})


@pytest.mark.parametrize("trunk", ["shared", "copy"])
def test_values_begin_at_zero_are_linear_in_the_states_and_train_their_trunk(trunk):
    model, tokens = tiny("llama"), torch.arange(2, 14).view(2, 6)
    critic = Critic(model, trunk)
    values = read(model, critic, tokens)
    assert values.shape == (12,) and values.dtype == torch.float32 and not values.any()
    torch.nn.init.normal_(critic.head.weight)
    critic.head.bias.data.fill_(2.0)
    states, values = model.hidden(input_ids=tokens).flatten(0, 1), read(model, critic, tokens)
    torch.testing.assert_close(values, (states @ critic.head.weight[0]) + 2.0)
    values.sum().backward()
    policys = any(p.grad is not None and p.grad.any() for p in model.model.parameters())
    its_own = any(p.grad is not None and p.grad.any() for p in getattr(critic, "body", torch.nn.Module()).parameters())
    assert (policys, its_own) == ((True, False) if trunk == "shared" else (False, True))
