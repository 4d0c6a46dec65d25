"""Tokens that are picked behind a linear layer are picked before it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.secant_walk import list_steps
from deeptaylor.secants.arithmetic import gather_then_linear


class Says(nn.Module):
    """The logits of tokens at some places."""

    def __init__(self, way: str, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 6, bias=bias)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.inner(x)))
        if self.way == "capped":
            logits = torch.tanh(logits)
        index = places.unsqueeze(-1)
        found = logits.gather(1, index if self.way == "one feature" else index.expand(-1, -1, logits.shape[-1]))
        return found.sum(1) + (logits.mean(1) if self.way == "read twice" else 0)


@pytest.mark.parametrize(
    ("way", "sooner"), [("plain", True), ("capped", False), ("one feature", False), ("read twice", False)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_tokens_are_picked_before_a_layer_that_nothing_else_reads(
    way: str, sooner: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, places = Says(way, bias).double(), torch.tensor([[4, 1], [0, 4]])
    x, x0 = torch.randn(2, 2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    explainer = dt.Explainer(net).make_unplanned()
    found = explainer.between((x, places), (x0, None), 0)
    steps = list_steps(explainer.captured.open((x, places))[0])
    assert (gather_then_linear in {step.op for step in steps}) == sooner
    monkeypatch.setattr("deeptaylor.engine.secant_walk.find_gathered_layer", lambda *_: None)
    wanted = dt.Explainer(net).make_unplanned().between((x, places), (x0, None), 0)
    torch.testing.assert_close(found.relevance[0], wanted.relevance[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        found.relevance[0].sum((1, 2)), (net(x, places) - net(x0, places))[:, 0], rtol=1e-11, atol=1e-12
    )
