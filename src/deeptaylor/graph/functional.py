"""In-place operations of an exported network become ordinary ones, whoever else reads the memory they write to.

functionalise(program)
├── _take_out_identities   dropout in eval mode returns the very tensor it was given
├── _plain_in_place        a tensor that nothing shares memory with: the operation's twin without the underscore
└── torch's own pass       everything else (views, and views of views)
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from deeptaylor.graph.exporting import exporting

__all__ = ["functionalise", "inline_regions", "mutates"]

Node = Any

aten = torch.ops.aten
_DROPOUTS = {
    aten.dropout.default,
    aten.alpha_dropout.default,
    aten.feature_dropout.default,
    aten.feature_alpha_dropout.default,
}
_FRESH = {aten.batch_norm.default, aten.instance_norm.default}  # they may write to their statistics, but share nothing
_MAY_RETURN_ITS_ARGUMENT = {aten.pad.default, aten.type_as.default}  # as aten's schemas do not say


def functionalise(program: Any) -> Any:
    """The same program without in-place operations; those left carry their ordinary twin in meta["functional"]."""
    mutating = [n for n in program.graph.nodes if n.op == "call_function" and mutates(n)]
    if mutating:
        _take_out_identities(program.graph)
    if all(_plain_in_place(n) for n in mutating):
        for node in mutating:
            node.meta["functional"] = _functional_twin(node)
        return program
    with exporting():
        return program.run_decompositions({})


def inline_regions(module: fx.GraphModule) -> None:
    """Operations under an autocast or a grad mode of the network's own, which export puts into a graph of their own."""
    regions = {torch.ops.higher_order.wrap_with_autocast: 4, torch.ops.higher_order.wrap_with_set_grad_enabled: 1}
    for node in list(module.graph.nodes):
        if node.target not in regions:
            continue
        inner = getattr(module, str(node.args[regions[node.target]].target))
        inline_regions(inner)
        given = dict(zip(inner.graph.find_nodes(op="placeholder"), node.args[regions[node.target] + 1 :], strict=True))
        with module.graph.inserting_before(node):
            results: Any = module.graph.graph_copy(inner.graph, given)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])  # a getitem
            module.graph.erase_node(user)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def _take_out_identities(graph: fx.Graph) -> None:
    """Take out dropout in eval mode: torch's own pass holds its result for a copy, and it is the tensor itself."""
    for node in list(graph.nodes):
        if node.target not in _DROPOUTS or node.args[2] or any(user.op == "output" for user in node.users):
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def mutates(node: Node) -> bool:
    """True for an operation that writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _functional_twin(node: Node) -> Any:
    """aten.relu for aten.relu_ and so on, or None."""
    target: Any = node.target
    name, overload = target._schema.name.split("::")[1], target._overloadname
    if not name.endswith("_") or not target._schema.name.startswith("aten::"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, overload, None) if packet is not None else None


def _plain_in_place(node: Node) -> bool:
    """True if the mutated tensor is fresh: neither a view, nor viewed, nor a parameter or an input."""
    mutated = node.args[0]
    if not isinstance(mutated, fx.Node) or mutated.op != "call_function" or _functional_twin(node) is None:
        return False
    return not _is_view(mutated) and not any(_is_view(user) for user in mutated.users)


def _is_view(node: Node) -> bool:
    """True if a node's result may share memory with its first argument without being the in-place result itself."""
    if node.target is operator.getitem:  # one of several tensors: of chunk, split, unbind
        return _is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None or mutates(node):
        return False
    aliases = any(r.alias_info is not None for r in schema.returns)
    maybe = torch.Tag.maybe_aliasing_or_mutating in node.target.tags and node.target not in _FRESH
    return aliases or maybe or node.target in _MAY_RETURN_ITS_ARGUMENT
