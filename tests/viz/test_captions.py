"""What stands above and below a picture is what the ledger says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.viz.captions import class_title, contrast_title, describe_account, describe_split


def with_bias(share: float) -> nn.Module:
    """f = Σ relu(x) + b with a bias that absorbs `share` of the score of two pixels, x = (1, 1)."""
    first, last = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.fill_(1.0)
        last.weight.fill_(1.0)
        last.bias.fill_(2 * share / (1 - share))
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), last).eval()


def said(share: float, bias: str) -> str:
    e = dt.explain(with_bias(share), torch.ones(1, 1, 1, 2), domain=dt.NonNegative(), bias=bias)
    return describe_account(e.ledger, 0, 0, "pixels")


@pytest.mark.parametrize(
    ("share", "bias", "words"),
    [
        (0.006, "neuron", "The pixels account for 99.4 % of the score; biases absorbed 0.6 %."),
        (0.75, "neuron", "The pixels account for only 25.0 % of the score; biases absorbed 75.0 %."),
        (0.0, "neuron", "The pixels account for the whole score."),
        (0.3, "spread", "The pixels account for the whole score."),
        (0.25, "returned", "Biases absorbed 25.0 % of the score; the map is rescaled to the score."),
        (0.75, "returned", "Biases absorbed 75.0 % of the score; the map is rescaled to the score."),
        (0.0, "returned", "The pixels account for the whole score."),
    ],
)
def test_where_the_score_went(share: float, bias: str, words: str) -> None:
    assert said(share, bias) == words


def test_of_several_samples_and_targets_the_one_that_is_shown() -> None:
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.copy_(torch.tensor([1.0, 3.0]))
    x = torch.tensor([[1.0], [3.0]])
    e = dt.explain(model.eval(), x, torch.tensor([[0, 1]] * 2), dt.NonNegative(), bias="neuron")
    shares = [[describe_account(e.ledger, s, t, "inputs").split("biases absorbed ")[1] for t in (0, 1)] for s in (0, 1)]
    assert shares == [["50.0 %.", "75.0 %."], ["25.0 %.", "50.0 %."]]


def test_an_empty_map_and_other_methods() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(-1.0)
    x = torch.ones(1, 1)
    e = dt.explain(model.eval(), x, domain=dt.NonNegative())
    assert describe_account(e.ledger, 0, 0, "pixels").startswith("The score is not positive")
    with torch.no_grad():
        model.weight.fill_(2.0)
    e = dt.sensitivity(model, x)  # 4 for a score of 2
    assert describe_account(e.ledger, 0, 0, "inputs", e.method) == (
        "The inputs sum to 200.0 % of the score; sensitivity does not share out the rest."
    )


def test_both_parts_of_a_contrast() -> None:
    x = torch.eye(2)[:1] + 1  # (2, 1)
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 3.0]]))
    c = dt.Explainer(model.eval(), x, dt.NonNegative()).contrast(x, 0, against=1, power=1)
    # N_c = (2/3, 1/3), N_q = (0, 1): p = (1, 1/4); R = (2, 1): 2.25 of 3 sets it apart.
    assert (
        describe_split(c.ledger, 0, 0)
        == "75.0 % of the class's relevance is distinctive; 25.0 % is shared with its rivals."
    )


@pytest.mark.parametrize(
    ("target", "titles", "sample", "which", "name"),
    [
        (3, (), 0, 0, "class 3"),
        (torch.tensor([3, 4]), (), 1, 0, "class 4"),
        (torch.tensor([3]), (), 1, 0, "class 3"),
        (torch.tensor([[3, 4], [5, 6]]), (), 1, 1, "class 6"),
        (None, (), 0, 0, ""),
        (torch.ones(1, 3), (), 0, 0, ""),
        (dt.margin(0, 1), (), 0, 0, "class 0 rather than class 1"),
        (dt.margin(0), (), 0, 0, ""),
        (None, (("cat", "dog"),), 0, 1, "dog"),
    ],
)
def test_the_class_by_name_or_number(target: object, titles: tuple, sample: int, which: int, name: str) -> None:
    assert class_title(target, titles, sample, which) == name


def test_titles_of_contrasts() -> None:
    assert contrast_title("cat", [(2, 1.0)], ()) == "What sets cat apart from class 2"
    assert contrast_title("cat", [], ()) == "Relevance for cat, which has no rival"
    many = [(k, 0.25) for k in range(4)]
    assert contrast_title("cat", many, ["a", "b", "c", "d"]) == (
        "What sets cat apart from a (25 %), b (25 %), c (25 %) and 1 more"
    )
