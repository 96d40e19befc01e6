"""A policy small enough to check by hand: the next token depends on the last one alone. Float64."""

import torch

from gspo.types import Batch, Outputs


class Bigram:
    """ports.Policy with logits[last token] as its only parameters, [V, V]."""

    shares_prompts = False
    sparse = False
    device = torch.device("cpu")

    def __init__(self, vocabulary=12, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocabulary, vocabulary, generator=g, dtype=torch.float64).requires_grad_()

    def parameters(self):
        return [self.table]

    def weights(self):
        return [("table", self.table)]

    def logp_of(self, completion):
        """The log-probabilities of the tokens that end a completion, from its first sampled one on, the plain way."""
        first = int(completion.sampled.long().argmax())
        rows = self.table[completion.tokens[first - 1 : -1]].log_softmax(-1)
        return rows.gather(-1, completion.tokens[first:, None])[:, 0]

    def forward(self, batch: Batch, *, entropy=False, routing=False, replay=False):
        tokens, parent = batch.forest.tokens, batch.forest.parent
        logp = self.table[tokens[parent[batch.node]]].log_softmax(-1)
        chosen = logp.gather(-1, tokens[batch.node][:, None])[:, 0]
        return Outputs(chosen, -(logp.exp() * logp).sum(-1) if entropy else None)
