"""Slow float64 versions of the whole decomposition, written from `docs/theory.md` alone.

Nothing here imports the package: this is what the package is judged by. A test adds a network to a `Graph` node by
node; it finds the detection blocks, writes every path of a block as one dense matrix, and hands the relevance down by
the rules of `reference_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from reference_rules import Array, Average, Bias, box_shares, detect, divide, sign_of

MaxPool = Literal["proportional", "winner"]


def materialise(op: Callable[[torch.Tensor], torch.Tensor], in_shape: Sequence[int]) -> tuple[Array, Array]:
    """W (inputs, units) and b of an affine op on (batch, *in_shape): row i is op(e_i) − op(0)."""
    n = int(np.prod(in_shape))
    with torch.no_grad():
        b = op(torch.zeros(1, *in_shape, dtype=torch.float64)).reshape(-1)
        W = op(torch.eye(n, dtype=torch.float64).reshape(n, *in_shape)).reshape(n, -1) - b
    return W.numpy(), b.numpy()


@dataclass(frozen=True)
class Domain:
    """Where the network's input lives; `low` and `high` broadcast to one sample."""

    kind: Literal["real", "nonnegative", "box"]
    low: Array | float = 0.0
    high: Array | float = 0.0


Op = Callable[..., torch.Tensor]
WEIGHTED = {"linear", "convolution"}
MIXING = WEIGHTED | {"average", "centring", "layer_norm"}
AFFINE = MIXING | {"diagonal", "sum", "structural"}


@dataclass(frozen=True)
class Node:
    """One tensor: `op(*operands, *gates)`; relevance flows to the operands, never to the gates."""

    name: str
    kind: str
    op: Op
    operands: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    rectifier: bool = False
    phi: Op | None = None
    window: tuple[int, int, int, int] = (1, 1, 0, 1)


@dataclass
class Part:
    """One affine step inside a block, `Σ_k operand_k @ W_k + b`; an operand is another part or the name of a leaf."""

    kind: str
    matrices: list[Array]
    b: Array
    operands: list[Part | str]

    def paths(self) -> Iterator[tuple[str, Array]]:
        """Every path from a leaf to this step, each with its own dense matrix."""
        for W, operand in zip(self.matrices, self.operands, strict=True):
            if isinstance(operand, str):
                yield operand, W
            else:
                yield from ((leaf, V @ W) for leaf, V in operand.paths())

    def offset(self) -> Array:
        """The value when all leaves are zero."""
        return self.b + sum(
            p.offset() @ W for W, p in zip(self.matrices, self.operands, strict=True) if isinstance(p, Part)
        )

    def reached(self) -> Array:
        """1 for each element that depends on a leaf, 0 for each that is a constant."""
        return (sum((W != 0).sum(axis=0) for _, W in self.paths()) > 0).astype(float)

    def kinds(self) -> set[str]:
        """The kinds of all steps."""
        return {self.kind}.union(*(p.kinds() for p in self.operands if isinstance(p, Part)))

    def reached_from(self, free: Callable[[str], Array]) -> Array:
        """1 for each element that depends on a free element of a leaf."""
        return (sum(free(leaf) @ (W != 0) for leaf, W in self.paths()) > 0).astype(float)

    def fall_back(self, R: Array, free: Callable[[str], Array]) -> list[Array]:
        """Split R over the paths by convention (`bias="spread"`, Σq = 0); R is 0 at constants."""
        shares = []
        for W, operand in zip(self.matrices, self.operands, strict=True):
            alive = operand.reached_from(free) if isinstance(operand, Part) else free(operand)
            # Outside a mixing operation each element reads one element an operand: `+` splits evenly, others pass on.
            shares.append(alive[:, None] * (W**2 if self.kind in MIXING else W != 0))
        total = sum(V.sum(axis=0) for V in shares)
        split: list[Array] = []
        for V, operand in zip(shares, self.operands, strict=True):
            r = V @ divide(R, total)
            split += [r] if isinstance(operand, str) else operand.fall_back(r, free)
        return split


@dataclass
class Relevances:
    """What a decomposition gives: relevance at every block boundary, and the ledger, per sample."""

    at: dict[str, Array]
    score: Array
    bias: Array
    dropped: Array
    fallbacks: int = 0


class Graph:
    """A network written node by node, in order; the last node added is its output."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.domain = Domain("real")
        self._matrices: dict[str, tuple[list[Array], Array]] = {}

    # -- building ----------------------------------------------------------------------------------------------------

    def _add(self, node: Node) -> str:
        missing = [o for o in (*node.operands, *node.gates) if o not in self.nodes]
        if missing or node.name in self.nodes:
            raise ValueError(f"node {node.name!r}: unknown operands {missing}, or a name used twice")
        self.nodes[node.name] = node
        return node.name

    def input(self, name: str, domain: Domain) -> str:
        """The network's input."""
        self.domain = domain
        return self._add(Node(name, "input", lambda: torch.empty(0)))

    def affine(self, name: str, op: Op, *operands: str, kind: str, gates: Sequence[str] = ()) -> str:
        """An affine op; kind is one of `AFFINE`; gates are read as constants (attention weights)."""
        if kind not in AFFINE:
            raise ValueError(f"node {name!r}: {kind!r} is not one of {sorted(AFFINE)}")
        return self._add(Node(name, kind, op, operands, tuple(gates)))

    def norm(self, name: str, operand: str, groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float,
             kind: str = "centring") -> str:  # fmt: skip
        """Layer, group or instance norm over `groups` consecutive groups: u = x/σ as `name/u`, then the centring."""

        def scaled(x: torch.Tensor) -> torch.Tensor:
            g = x.reshape(len(x), groups, -1)
            return (g / (g.var(dim=2, unbiased=False, keepdim=True) + eps).sqrt()).reshape(x.shape)

        def centred(u: torch.Tensor) -> torch.Tensor:
            g = u.reshape(len(u), groups, -1)
            return (g - g.mean(dim=2, keepdim=True)).reshape(u.shape) * weight + bias

        self.gate(f"{name}/u", scaled, operand)
        return self.affine(name, centred, f"{name}/u", kind=kind)

    def activation(self, name: str, op: Op, operand: str, rectifier: bool = False, phi: Op | None = None) -> str:
        """An elementwise nonlinearity; `phi` where the op is φ times a constant (softmax: exp)."""
        return self._add(Node(name, "activation", op, (operand,), rectifier=rectifier, phi=phi))

    def gate(self, name: str, op: Op, signal: str, *gates: str) -> str:
        """A product or quotient: all relevance goes to the signal."""
        return self._add(Node(name, "gate", op, (signal,), gates))

    def function(self, name: str, op: Op, *operands: str) -> str:
        """Anything that only feeds gates."""
        return self._add(Node(name, "function", op, operands))

    def max_pool(self, name: str, operand: str, kernel: int, stride: int, padding: int = 0, dilation: int = 1) -> str:
        """Max pooling of (channels, height, width)."""

        def op(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.max_pool2d(x, kernel, stride, padding, dilation)

        return self._add(Node(name, "max_pool", op, (operand,), window=(kernel, stride, padding, dilation)))

    def lp_pool(self, name: str, operand: str, p: int, kernel: int, stride: int) -> str:
        """L^p pooling of (channels, height, width): (Σ x^p)^(1/p)."""

        def op(x: torch.Tensor) -> torch.Tensor:
            windows = x.unfold(2, kernel, stride).unfold(3, kernel, stride)
            return (windows**p).sum(dim=(-1, -2)) ** (1 / p)

        return self._add(Node(name, "lp_pool", op, (operand,), window=(kernel, stride, 0, 1)))

    # -- using -------------------------------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """The name of the network's output."""
        return next(reversed(self.nodes))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every tensor of the network, by name."""
        values: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, node in self.nodes.items():
                read = [values[o] for o in (*node.operands, *node.gates)]
                values[name] = x if node.kind == "input" else node.op(*read)
        return values

    def active_readers(self) -> dict[str, list[str]]:
        """For each tensor that receives relevance, the nodes through which it does; one entry for each reading."""
        readers: dict[str, list[str]] = {self.output: []}
        for name in reversed(self.nodes):
            for operand in self.nodes[name].operands if name in readers else ():
                readers.setdefault(operand, []).append(name)
        return readers

    def explain(self, x: torch.Tensor, target: int | Sequence[int] | Array | None = None, bias: Bias = "neuron",
                max_pool: MaxPool = "proportional", local: bool = True) -> Relevances:  # fmt: skip
        """Decompose each score; target: a class, one per sample, weights (B, units), or None for the top class."""
        samples = []
        for n in range(len(x)):
            values = self.forward(x[n : n + 1])
            outputs = values[self.output].numpy().reshape(-1)
            if target is None:
                v = np.eye(len(outputs))[outputs.argmax()]
            elif isinstance(target, int):
                v = np.eye(len(outputs))[target]
            else:
                t = np.asarray(target)[n]
                v = np.eye(len(outputs))[t] if np.ndim(t) == 0 else np.asarray(t, dtype=float).reshape(-1)
            samples.append(_Sample(self, values, bias, max_pool, local).decompose(v))
        return Relevances(
            {name: np.stack([s.R[name].reshape(s.shapes[name]) for s in samples]) for name in samples[0].R},
            np.array([s.score for s in samples]),
            np.array([s.bias_taken for s in samples]),
            np.array([s.dropped for s in samples]),
            sum(s.fallbacks for s in samples),
        )


@dataclass
class _Sample:
    """The backward pass of one sample; vectors are flat."""

    graph: Graph
    tensors: dict[str, torch.Tensor]
    bias: Bias
    max_pool: MaxPool
    local: bool = True
    R: dict[str, Array] = field(default_factory=dict)
    score: float = 0.0
    bias_taken: float = 0.0
    dropped: float = 0.0
    fallbacks: int = 0

    def __post_init__(self) -> None:
        self.x: dict[str, Array] = {name: t.numpy().reshape(-1) for name, t in self.tensors.items()}
        self.shapes = {name: tuple(t.shape[1:]) for name, t in self.tensors.items()}
        self.readers = self.graph.active_readers()

    def decompose(self, v: Array) -> _Sample:
        """Hand max(0, Σ_j v_j z_j) down to the input."""
        self._score(v)
        for name in reversed(self.graph.nodes):
            node = self.graph.nodes[name]
            if name not in self.R or node.kind == "input":
                continue
            if node.kind in AFFINE:
                self._block(node)
            elif node.kind == "gate":
                self._give(node.operands[0], self.R[name])
            elif node.kind == "activation":
                self._activation(node)
            elif node.kind in ("max_pool", "lp_pool"):
                self._pool(node)
            else:
                raise ValueError(f"relevance reached {name!r}, a {node.kind} without a rule")
        return self

    def _give(self, name: str, R: Array) -> None:
        self.R[name] = self.R.get(name, np.zeros(len(self.x[name]))) + R

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _matrices(self, node: Node) -> tuple[list[Array], Array]:
        """One dense matrix an operand, and the offset; gates stand at this sample's values."""
        cached = self.graph._matrices.get(node.name)
        if cached is not None:
            return cached
        shapes = [self.shapes[o] for o in node.operands]
        gates = [self.tensors[g] for g in node.gates]
        matrices = []
        for k in range(len(shapes)):

            def alone(t: torch.Tensor, k: int = k) -> torch.Tensor:
                others = [torch.zeros(len(t), *s, dtype=torch.float64) for s in shapes]
                return node.op(*others[:k], t, *others[k + 1 :], *gates)

            W, b = materialise(alone, shapes[k])
            matrices.append(W)
        if not gates:
            self.graph._matrices[node.name] = matrices, b
        return matrices, b

    def _is_input(self, name: str) -> bool:
        """The network's input, or the input through structural and, in a box, diagonal operations."""
        node = self.graph.nodes[name]
        through = {"structural", "diagonal"} if self.graph.domain.kind == "box" else {"structural"}
        return node.kind == "input" or (node.kind in through and all(self._is_input(o) for o in node.operands))

    def _transforms_box(self, node: Node) -> bool:
        return self.graph.domain.kind == "box" and node.kind == "diagonal" and self._is_input(node.name)

    def _closes_weighted(self, node: Node) -> bool:
        """A diagonal folded into the weighted operation before it (section 3, 1): the two are one mixing operation."""
        if node.kind != "diagonal" or len(self.readers[node.operands[0]]) != 1:
            return False
        before = self.graph.nodes[node.operands[0]]
        return before.kind in WEIGHTED or self._closes_weighted(before)

    def _inside(self, node: Node, mixed: bool) -> bool:
        """Does an operand belong to the block of its reader? `mixed`: a mixing operation stands above it."""
        if node.kind not in AFFINE or len(self.readers[node.name]) != 1 or self._transforms_box(node):
            return False
        return not mixed or node.kind == "structural"

    def _moves(self, below: Node, node: Node) -> bool:
        """A rearrangement that loses and repeats nothing, read by this node alone."""
        read = [r.name for r in self.graph.nodes.values() for o in (*r.operands, *r.gates) if o == below.name]
        if below.kind != "structural" or len(below.operands) != 1 or read != [node.name]:
            return False
        (P,), c = self._matrices(below)
        return len(P) == len(P.T) and not c.any() and bool(np.array_equal(P @ P.T, np.eye(len(P))))

    def _folds(self, below: Node, node: Node) -> bool:
        """Section 3, 2 and 3: a diagonal or a LayerNorm that this weighted operation alone reads, gates included."""
        read = [r.name for r in self.graph.nodes.values() for o in (*r.operands, *r.gates) if o == below.name]
        if read != [node.name]:
            return False
        if below.kind == "layer_norm":
            return node.kind == "linear"
        return below.kind == "diagonal" and not self._transforms_box(below) and not self._closes_weighted(below)

    def _grow(self, node: Node, mixed: bool = False) -> Part:
        """The block that ends in this node."""
        matrices, b = self._matrices(node)
        matrices, operands = list(matrices), list(node.operands)
        mixed = mixed or node.kind in MIXING
        below = node
        while node.kind in WEIGHTED:
            # What folds into a weighted operation becomes part of its matrix, also when squared.
            reader, below = below, self.graph.nodes[operands[0]]
            moves = [np.eye(len(matrices[0]))]
            while self._moves(below, reader):
                moves.append(self._matrices(below)[0][0])
                reader, below = below, self.graph.nodes[below.operands[0]]
            if not self._folds(below, reader) or (below.kind == "layer_norm" and len(moves) > 1):
                break
            W = np.linalg.multi_dot([*moves[::-1], matrices[0]])
            (D,), c = self._matrices(below)
            matrices, b, operands = [D @ W], b + c @ W, list(below.operands)
        parts: list[Part | str] = []
        for o in operands:
            below = self.graph.nodes[o]
            parts.append(self._grow(below, mixed) if self._inside(below, mixed) else o)
        return Part(node.kind, matrices, b, parts)

    def _box(self, name: str) -> tuple[Array, Array]:
        """The box of a leaf that is the input through structural and diagonal operations."""
        node = self.graph.nodes[name]
        if node.kind == "input":
            domain, shape = self.graph.domain, self.shapes[name]
            return np.broadcast_to(domain.low, shape).reshape(-1), np.broadcast_to(domain.high, shape).reshape(-1)
        matrices, b = self._matrices(node)
        low, high = b.copy(), b.copy()
        for W, o in zip(matrices, node.operands, strict=True):
            l, h = self._box(o)  # noqa: E741
            low += l @ np.maximum(0, W) + h @ np.minimum(0, W)
            high += h @ np.maximum(0, W) + l @ np.minimum(0, W)
        return low, high

    def _free(self, leaf: str) -> Array:
        """1 for each element of a leaf, 0 where its box makes it a constant."""
        if self.graph.domain.kind != "box" or not self._is_input(leaf):
            return np.ones(len(self.x[leaf]))
        low, high = self._box(leaf)
        return (high > low).astype(float)

    def _shares(self, paths: list[tuple[str, Array]], s: Array) -> tuple[list[Array], bool]:
        """q_ij for each path, and whether the block has a bias neuron."""
        domain = self.graph.domain.kind
        if domain == "real" and all(self._is_input(leaf) for leaf, _ in paths):
            return [W**2 for _, W in paths], False
        q = []
        for leaf, W in paths:
            if domain == "box" and self._is_input(leaf):
                low, high = self._box(leaf)
                x = np.clip(self.x[leaf], low, high)
                if np.abs(x - self.x[leaf]).max() > 1e-6:  # less is rounding, where the box was transformed
                    raise ValueError(f"{leaf!r} leaves its box")
                # On a bound means on it: a rounding error there would pass for a contribution.
                x = np.where(np.abs(x - low) < 1e-12, low, np.where(np.abs(x - high) < 1e-12, high, x))
                q.append(box_shares(s * W, x, low, high))
            else:
                q.append(np.maximum(0, s * W * self.x[leaf][:, None]))
        return q, True

    def _hand_down(
        self, paths: list[tuple[str, Array]], s: Array, b: Array, R: Array, fall_back: Callable[[Array], list[Array]]
    ) -> None:
        """Apply the rule of a block and, under `spread`, its fallback."""
        q, has_bias = self._shares(paths, s)
        stacked = np.concatenate([*q, np.zeros((0, len(R)))])
        R_in, taken, left = detect(stacked, s * b if has_bias else np.zeros(len(b)), R, self.bias)
        self.bias_taken += taken
        ends = np.cumsum([len(W) for _, W in paths])
        for (leaf, _), r in zip(paths, np.split(R_in, ends[:-1]) if paths else [], strict=True):
            self._give(leaf, r)
        if self.bias == "neuron":
            # Without a bias neuron, a unit without weights is a constant all the same.
            constant = ~np.full(len(R), has_bias) & (s * b > 0)
            self.bias_taken += left[constant].sum()
            self.dropped += left[~constant].sum()
            return
        reached = sum((self._free(leaf) @ (W != 0) for leaf, W in paths), np.zeros(len(R))) > 0
        self.bias_taken += left[~reached & (s * b > 0)].sum()
        self.dropped += left[~reached & (s * b <= 0)].sum()
        left = np.where(reached, left, 0.0)
        self.fallbacks += int((left > 0).sum())
        if left.any():
            for (leaf, _), r in zip(paths, fall_back(left), strict=True):
                self._give(leaf, r)

    def _block(self, node: Node) -> None:
        """Hand the relevance of a block's output to its leaves."""
        block, R = self._grow(node), self.R[node.name]
        paths = list(block.paths())
        if block.kinds() == {"structural"} or self._transforms_box(node):
            reached = block.reached() > 0
            for leaf, W in paths:
                self._give(leaf, (W != 0) @ R)
            self.bias_taken += R[~reached].sum()
            return
        rectified = all(self.graph.nodes[r].rectifier for r in self.readers[node.name])
        s = np.ones(len(R)) if rectified else sign_of(self.x[node.name])
        average = self._below(block, {leaf for leaf, _ in paths})
        if average is not None:
            self._places_block(average, block, s, rectified, R)
            return
        self._hand_down(paths, s, block.offset(), R, lambda left: block.fall_back(left, self._free))

    def _score(self, v: Array) -> None:
        """The block of the network's output, completed by the target: one unit."""
        node = self.graph.nodes[self.graph.output]
        self.score = float(v @ self.x[node.name])
        R = np.array([max(0.0, self.score)])
        weights: dict[str, Array] = {}
        if node.kind in AFFINE:
            block = self._grow(node)
            for leaf, W in block.paths():
                weights[leaf] = weights.get(leaf, 0.0) + (W @ v)[:, None]
            b = np.array([block.offset() @ v])
        else:
            weights[node.name] = v[:, None]
            b = np.zeros(1)
        paths = list(weights.items())
        average = self._below(block, set(weights)) if node.kind in AFFINE else None
        if average is not None:
            (u,) = weights.values()
            self._places_score(average, u, float(b[0]), R)
            return

        def by_squares(left: Array) -> list[Array]:
            total = sum((u**2).sum() for _, u in paths)
            return [(u**2)[:, 0] * divide(left, np.array([total]))[0] for _, u in paths]

        self._hand_down(paths, np.ones(1), b, R, by_squares)

    def _below(self, block: Part, leaves: set[str]) -> Average | None:
        """Section 8: what a block reads, if that is nothing but an average over whole axes that nothing else reads."""
        if not self.local or len(leaves) != 1 or not block.kinds() & MIXING:
            return None
        (leaf,) = leaves
        leaf, factor = self._behind_gates(leaf)
        average = self.graph.nodes[leaf]
        if len(self.readers[leaf]) != 1 or average.kind != "average" or average.gates or len(average.operands) != 1:
            return None
        (operand,) = average.operands
        (A,), c = self._matrices(average)
        if c.any() or ((A != 0).sum(axis=1) != 1).any() or not np.allclose(A[A != 0], A.max()):
            return None
        shape = self.shapes[operand]
        at = np.stack(np.unravel_index(np.arange(len(A)), shape))
        first = at[:, A[:, 0] != 0]  # where the elements are that make one average
        axes = [d for d in range(len(shape)) if len(set(first[d])) > 1]
        features = [n for d, n in enumerate(shape) if d not in axes and n > 1]
        whole = first.shape[1] == np.prod([shape[d] for d in axes])
        if not whole or len(axes) in (0, len(shape)) or len(features) > 1:
            return None
        return Average(operand, factor * A, np.ravel_multi_index([at[d] for d in axes], [shape[d] for d in axes]))

    def _behind_gates(self, leaf: str) -> tuple[str, float]:
        """What a leaf is one number times, where gates alone stand between that nothing else reads, and the number."""
        factor = 1.0
        while self.graph.nodes[leaf].kind == "gate" and len(self.readers[leaf]) == 1:
            (below,) = self.graph.nodes[leaf].operands
            y, x = self.x[leaf], self.x[below]
            if len(y) != len(x) or not x.any():
                break
            number = float(y @ x / (x @ x))
            if not np.allclose(y, number * x, rtol=1e-12, atol=1e-14):
                break
            leaf, factor = below, factor * number
        return leaf, factor

    def _places_score(self, average: Average, u: Array, b: float, R: Array) -> None:
        """The score's block behind an average: a unit at every place."""
        W = average.at_places(u)
        count = average.count
        t = np.maximum(0, self.x[average.operand] @ W + b / count)
        self._hand_down(
            [(average.operand, W)],
            np.ones(count),
            np.full(count, b / count),
            t * divide(R, t.sum(keepdims=True)),
            lambda left: [W**2 @ divide(left, (W**2).sum(axis=0))],
        )

    def _places_block(self, average: Average, block: Part, s: Array, rectified: bool, R: Array) -> None:
        """A block inside the network behind an average: all of its units at every place."""
        ((_, W),) = block.paths()
        V, b = average.at_places(W), np.tile(block.offset() / average.count, average.count)
        t = self.x[average.operand] @ V + b
        same = np.maximum(0, s * t.reshape(average.count, -1))
        shares = np.where(same.sum(axis=0) > 0, divide(same, same.sum(axis=0)), 1 / average.count)

        def by_places(left: Array) -> list[Array]:
            split = np.zeros(len(V))
            for p, r in enumerate(left.reshape(average.count, -1)):
                here = (average.place == p)[:, None] * (average.A != 0)  # which element is which of the average's
                split += here @ block.fall_back(r, lambda _, here=here: self._free(average.operand) @ here)[0]
            return [split]

        signs = np.ones(len(t)) if rectified else sign_of(t)
        self._hand_down([(average.operand, V)], signs, b, (shares * R).reshape(-1), by_places)

    # -- between blocks ----------------------------------------------------------------------------------------------

    def _activation(self, node: Node) -> None:
        (operand,) = node.operands
        phi = node.phi or node.op
        z = self.tensors[operand]
        value = phi(z).numpy().reshape(-1)
        at_zero = phi(torch.zeros_like(z)).numpy().reshape(-1)
        R = self.R[node.name]
        if self.bias == "spread" or not at_zero.any():
            self._give(operand, R)
            return
        s = sign_of(value)
        d, zero = np.maximum(0, s * (value - at_zero)), np.maximum(0, s * at_zero)
        share = np.where(at_zero == 0, 1.0, divide(d, d + zero))
        self._give(operand, share * R)
        self.bias_taken += ((1 - share) * R).sum()

    def _pool(self, node: Node) -> None:
        (operand,) = node.operands
        x, R = self.x[operand], self.R[node.name]
        R_in = np.zeros(len(x))
        for j, window in enumerate(self._windows(node)):
            values = x[window]
            shares = np.abs(values) if node.kind == "lp_pool" else self._max_shares(values)
            if shares.sum() > 0:
                R_in[window] += shares / shares.sum() * R[j]
            elif self.bias == "spread":
                R_in[window] += R[j] / len(window)
            else:
                self.dropped += R[j]
        self._give(operand, R_in)

    def _max_shares(self, values: Array) -> Array:
        if self.max_pool == "proportional" and values.max() > 0:
            return np.maximum(0, values)
        if self.max_pool == "proportional" and values.max() == 0 and self.bias == "spread":
            return np.ones(len(values))
        return np.eye(len(values))[values.argmax()]

    def _windows(self, node: Node) -> list[list[int]]:
        """For each output element the flat indices of its window, row by row, padding left out."""
        kernel, stride, padding, dilation = node.window
        C, H, W = self.shapes[node.operands[0]]
        _, rows, columns = self.shapes[node.name]
        steps = [k * dilation - padding for k in range(kernel)]
        return [
            [
                (c * H + i * stride + di) * W + j * stride + dj
                for di in steps
                for dj in steps
                if 0 <= i * stride + di < H and 0 <= j * stride + dj < W
            ]
            for c in range(C)
            for i in range(rows)
            for j in range(columns)
        ]
