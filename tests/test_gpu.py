"""On a GPU: every operation as on the CPU; compiled passes and recorded ones say what eager ones say.

Skipped without one. With one: `python -m pytest tests/test_gpu.py`, a minute with -n 8.
"""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
import rounding
from compiled_networks import MANY, ONE, Attention, Residual, agree
from operation_cases import BATCH, BY_NAME, FEATURES, explainer_of

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor's own imports
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # which are left alone on purpose
]

TARGETS: dict[str, Any] = {
    "top": None,
    "one": ONE,
    "another": 2,
    "many": MANY,
    "weights": torch.tensor([[1.0, 0.5, 0.0, -1.0], [0.0, 1.0, 1.0, -0.5]]),
    "margin": dt.margin(),
}


@pytest.fixture(autouse=True)
def _full_precision() -> None:
    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def placed(target: Any) -> Any:
    return target.cuda() if isinstance(target, Tensor) else target


def explainer(bias: str = "neuron") -> dt.Explainer:
    torch.manual_seed(3)
    network = Residual().eval()
    nn.init.constant_(network.fc.bias, 2.0)  # every class has a positive score
    return dt.Explainer(network.cuda(), torch.rand(1, 3, 6, 6, device="cuda"), dt.Box(0, 1), bias=bias)


def batch(seed: int, size: int = 2) -> Tensor:
    return torch.rand(size, 3, 6, 6, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_operation_as_on_the_cpu(name: str, bias: str) -> None:
    x = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    there = copy.deepcopy(explainer_of(name, True, bias)).cuda()
    ours, theirs = there.explain(x.cuda()), explainer_of(name, True, bias).explain(x)
    bound = 1e-7 if "Hards" in name else 1e-9  # torch's own kernels have 1/6 in float32 on GPUs
    pairs = [(e.score, e.relevance, e.ledger.entries) for e in (ours, theirs)]
    for a, b in zip(*pairs, strict=True):
        assert float((a.cpu() - b).abs().max()) <= bound * float(theirs.score.abs().max())


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_attention_in_narrow_types(bias: str) -> None:
    torch.manual_seed(3)
    made, x = dt.Explainer(Attention().eval(), torch.rand(1, 3, 4), dt.Real(), bias=bias), torch.rand(5, 3, 4)
    with torch.no_grad():
        top = made.model(x).argmax(1)
    for dtype in (torch.float16, torch.bfloat16):
        found = copy.deepcopy(made).to("cuda", dtype)(x.to("cuda", dtype), top.cuda())[1].cpu()
        exact = copy.deepcopy(made).double()
        kappa = rounding.condition(exact.captured.engine, (x,), top)
        expected = exact(x.to(dtype).double(), top)[1]
        assert rounding.off([found], [expected]) <= rounding.bound(exact.captured.engine, dtype, kappa)


@pytest.mark.parametrize("graphs", [None, True, False])
def test_compiled_says_what_eager_says(graphs: bool | None) -> None:
    eager, compiled = explainer(), explainer().compile(graphs)
    for target in TARGETS.values():
        for seed in (1, 2):  # the second time recorded, and with other values
            agree(compiled(batch(seed), placed(target)), eager(batch(seed), placed(target)))
    agree(compiled(batch(3, 5), 1), eager(batch(3, 5), 1))
    agree(compiled(batch(4), placed(ONE)), eager(batch(4), placed(ONE)))  # the first size again


def test_a_recorded_pass_keeps_its_ledger_and_what_was_asked_within() -> None:
    eager, compiled = explainer("spread"), explainer("spread").compile(graphs=True)
    for seed in (1, 2):
        ours, theirs = compiled.explain(batch(seed), placed(MANY)), eager.explain(batch(seed), placed(MANY))
        torch.testing.assert_close(ours.ledger.entries, theirs.ledger.entries, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.at("pool"), theirs.at("pool"), rtol=0, atol=1e-5)


def test_results_are_the_callers_own() -> None:
    compiled = explainer().compile(graphs=True)
    compiled(batch(1), 0)
    score, relevance = compiled(batch(2), 0)
    kept = score.clone(), relevance.clone()
    compiled(batch(3), 0)
    assert torch.equal(score, kept[0])
    assert torch.equal(relevance, kept[1])
    relevance.fill_(7.0)
    assert torch.equal(compiled(batch(2), 0)[1], kept[1])


def test_a_pass_recorded_in_inference_mode_runs_outside() -> None:
    compiled, eager = explainer().compile(graphs=True), explainer()
    with torch.inference_mode():
        agree(compiled(batch(1), 0), eager(batch(1), 0))
    agree(compiled(batch(2), 0), eager(batch(2), 0))


def test_a_class_that_does_not_exist_is_no_number() -> None:
    score, relevance = explainer()(batch(1), torch.tensor([1, 9], device="cuda"))
    assert score.isnan().tolist() == [False, True]
    assert relevance.isnan().flatten(1).any(1).tolist() == [False, True]


@pytest.mark.parametrize("graphs", ["eager", False])
def test_what_is_computed_again_is_not_kept(graphs: str | bool) -> None:
    torch.manual_seed(0)
    layers = [m for _ in range(24) for m in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())]
    network = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), *layers, nn.Flatten(), nn.Linear(32 * 32**2, 4))
    nn.init.constant_(network[-1].bias, 1.0)
    x = torch.rand(32, 3, 32, 32, device="cuda")
    made = dt.Explainer(network.eval().cuda(), x, dt.Box(0, 1), bias="neuron")
    found = []
    for again in (False, True):
        made.recompute(again)
        if graphs is False:
            made.compile(graphs)
        for _ in range(2):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, result = torch.cuda.memory_allocated(), made(x, 0)
        found.append((torch.cuda.max_memory_allocated() - before, result))
    agree(found[1][1], found[0][1])
    assert found[1][0] < 0.7 * found[0][0]  # compiled passes keep less to begin with


def test_a_network_that_changed_is_recorded_again() -> None:
    compiled = explainer().compile(graphs=True)
    compiled(batch(1), 0)
    model = compiled.model
    with torch.no_grad():
        model.fc.weight.mul_(2.0)
    with pytest.raises(dt.StaleModelError):
        compiled(batch(1), 0)
    compiled.refresh()
    expected = dt.Explainer(model, batch(1), dt.Box(0, 1), bias="neuron")(batch(1), 0)
    agree(compiled(batch(1), 0), expected)
    wide = compiled.double()(batch(1).double(), 0)
    assert wide[0].dtype is torch.float64
    agree((wide[0].float(), wide[1].float()), expected)


def test_threads_with_streams_of_their_own_share_a_recording() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, padding=1), *(nn.Conv2d(64, 64, 3, padding=1) for _ in range(6))]
    network = nn.Sequential(*(m for c in layers for m in (c, nn.ReLU())), nn.Flatten(), nn.Linear(64 * 64 * 64, 4))
    nn.init.constant_(network[-1].bias, 1.0)
    xs = [torch.rand(16, 3, 64, 64, device="cuda") for _ in range(2)]
    made = dt.Explainer(network.eval().cuda(), xs[0], dt.Box(0, 1), bias="neuron")
    expected = [made(x, 0)[1] for x in xs]
    made.compile(graphs=True)(xs[0], 0)
    found: list[list[Tensor]] = [[], []]

    def work(k: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found[k] += [made(xs[k], 0)[1] for _ in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for k in range(2):
        assert len(found[k]) == 20
        for relevance in found[k]:
            torch.testing.assert_close(relevance, expected[k], rtol=1e-3, atol=1e-5 * float(expected[k].max()))


@pytest.mark.parametrize("graphs", ["eager", True, False])
def test_a_batch_that_does_not_fit_is_explained_in_parts(graphs: str | bool) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
                            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)).eval().cuda()  # fmt: skip
    x = torch.rand(32, 3, 128, 128, device="cuda")
    made = dt.Explainer(network, x[:1], dt.Box(0, 1), bias="neuron")
    expected = made(x, 0)
    if isinstance(graphs, bool):
        made.compile(graphs)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 250 * 2**20) / total)
    try:
        with pytest.warns(dt.DeepTaylorWarning, match="does not fit into memory; it was explained"):
            found = made(x, 0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    agree(found, expected)


def test_a_run_over_a_data_set_says_what_it_says_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    from small_runs import BOX, Squares, network, run

    here = run(Squares(40), tmp_path / "cpu")
    there = dt.explain_dataset(Squares(40), network().cuda(), tmp_path / "gpu", domain=BOX)
    assert there.complete
    torch.testing.assert_close(torch.tensor(there.heatmaps[:]), torch.tensor(here.heatmaps[:]), rtol=1e-2, atol=1e-3)
