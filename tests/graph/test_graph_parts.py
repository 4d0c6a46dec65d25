"""Every module of graph by itself: what surrounds an export, in-place operations, and where a node comes from."""

from __future__ import annotations

import contextlib
import logging
import signal

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.graph import capture, editing, modes
from deeptaylor.graph.failure import explain_capture_failure
from deeptaylor.graph.node import describe_node, find_source_line, module_path
from graphs import Function, captured_of, node_of, operations, value_of


def test_autocast_is_set_aside_and_comes_back() -> None:
    x = torch.rand(2, 2)
    assert not modes.is_autocast_enabled(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert modes.is_autocast_enabled((x, x))
        with modes.disable_autocast(x):
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is torch.bfloat16


def test_eval_mode_lowers_every_flag_and_puts_each_back() -> None:
    network = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU()))
    network[1].eval()
    with contextlib.suppress(ZeroDivisionError), modes.eval_mode(network):
        assert not any(m.training for m in network.modules())
        raise ZeroDivisionError
    assert [m.training for m in network.modules()] == [True, True, False, False]


def test_exporting_keeps_interrupts_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before, interrupted = signal.getsignal(signal.SIGINT), RuntimeError("export failed")
    interrupted.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), modes.isolate_export():
        raise interrupted
    assert signal.getsignal(signal.SIGINT) is before
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = log.level
    with modes.isolate_export():
        log.error("pages about a network")
    assert log.level == level
    assert capsys.readouterr() == ("", "")


def test_functionalise_leaves_nothing_that_writes() -> None:
    def written(x: Tensor) -> Tensor:
        y = x + 1
        y[:, 0].mul_(3)
        return y.relu_()

    x = torch.tensor([[1.0, -2.0]])
    program = torch.export.export(Function(written), (x,), strict=False)
    assert any(capture.is_mutating(n) for n in program.graph.nodes if n.op == "call_function")
    flat = capture.functionalise(program)
    assert not any(capture.is_mutating(n) for n in flat.graph.nodes if n.op == "call_function")
    assert flat.module()(x).tolist() == [[6, 0]]


def test_places_name_the_module_and_the_users_line() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x)  # here

    captured = captured_of(lambda s, x: s.inner(x) + 1, torch.rand(2, 3), inner=Inner())
    node = node_of(captured, "tanh")
    assert module_path(node) == "inner"
    line = find_source_line(node)
    assert line.startswith(__file__)
    assert line.endswith("return torch.tanh(x)  # here")
    assert describe_node(node) == f"tanh in module 'inner' ({line})"
    said = explain_capture_failure(RuntimeError("Could not guard on data-dependent expression"))
    assert "torch.where" in said
    assert "torch.export" in explain_capture_failure(RuntimeError("something else"))


def test_capture_gives_a_flat_graph_with_named_constants_and_a_free_batch() -> None:
    x = torch.rand(2, 3)
    captured = captured_of(lambda s, x: s.layer(x).relu(), x, layer=nn.Linear(3, 4))
    assert operations(captured) == ["linear", "relu"]
    assert sorted(tuple(t.shape) for t in captured.constants.values()) == [(4,), (4, 3)]
    assert not isinstance(captured.batch_size, int)
    assert captured.module_outputs["layer"] == "linear"
    assert value_of(captured, torch.rand(5, 3)).shape == (5, 4)
    assert not capture.is_random(node_of(captured, "linear"))


def test_editing_replaces_inserts_and_retires_without_losing_names() -> None:
    x = torch.tensor([[1.0, -2.0]])
    captured = captured_of(lambda x: (x * 2).relu(), x)
    relu, product = node_of(captured, "relu"), node_of(captured, "mul")
    new = editing.replace_call(captured, relu, torch.ops.aten.tanh.default, (product,))
    assert captured.current_name("relu") == new.name
    scaled = editing.replace_by_scale_shift(captured, product, captured.inputs[0], torch.tensor(3.0), torch.tensor(1.0))
    assert captured.current_name("mul") == scaled.name
    torch.testing.assert_close(value_of(captured, x), torch.tanh(3 * x + 1))
    editing.replace_node(captured, new, scaled)
    assert operations(captured) == ["scale_shift"]
    torch.testing.assert_close(value_of(captured, x), 3 * x + 1)
