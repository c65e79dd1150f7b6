"""Forward and backward of a Llama-shaped model over rows, written out: `states` is one node in the graph of the parameters.

A forward keeps of each layer what backward reads (`Record`, 10 numbers a row and hidden unit) and nothing else; norms, gates and
attention weights are computed again. The sampler (`decoder.py`) can fill the same record, so that its activations serve the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sage_rlvr.models.llama.attention import Grid, attend, attend_backward, grids, keeps
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Layer, Net, Versions, stacked
from sage_rlvr.models.llama.pieces import gated, gated_backward, turn, unit, unit_backward

Attend = Callable[[int, Tensor], Tensor]


class Record:
    """What backward reads of a forward: of each layer its input x, q k v (turned), what attention gave, x behind it, gate and up,
    and, where heads are normed (Qwen3), q and k before that; at last the x before the final norm.

    rows: None for those of one forward, whose tensors are kept as they are; else the most that are filled in parts.
    """

    def __init__(self, net: Net, rows: int | None = None) -> None:
        self.rows = rows
        self.taken = False
        """Whether a backward will use it up: two of them would read what the first one frees."""
        self.layers: list[dict[str, Tensor]] = [{} for _ in net.layers]
        self.attention_weights: list[list[Tensor]] = [[] for _ in net.layers]
        """Attention weights of the tiles of each layer, where they were few enough to be kept."""
        self.last = net.embedding.new_empty(rows or 0, net.embedding.shape[1])

    def keep(self, layer: int, part: slice, **values: Tensor) -> None:
        """Values of some rows of a layer."""
        kept = self.layers[layer]
        for name, value in values.items():
            if self.rows is None:
                kept[name] = value
            else:
                whole = kept.get(name)
                if whole is None:  # memory that is never written costs nothing
                    whole = kept[name] = self.last.new_empty(self.rows, value.shape[1])
                whole[part] = value

    def end(self, part: slice, last: Tensor) -> None:
        """x behind the last layer of some rows."""
        if self.rows is None:
            self.last = last
        else:
            self.last[part] = last

    def filled(self, rows: int) -> Record:
        """Its first rows, all that have been filled."""
        self.layers = [{name: value[:rows] for name, value in kept.items()} for kept in self.layers]
        self.last, self.rows = self.last[:rows], rows
        return self


@dataclass(frozen=True, eq=False)
class Trace:
    """What a sampler computed on its way: the record of the N rows of `Layout.of(..., distinct=False)`, and the logits (M, V) that it
    drew from, in the order of the layout's outputs; None where they would have been more than `head.KEPT_LOGITS`.

    ids, positions (N,): of the rows. versions: of the weights that it drew with. A trace serves one update.
    """

    record: Record
    logits: Tensor | None
    ids: Tensor
    positions: Tensor
    versions: Versions

    def fits(self, net: Net, layout: Layout) -> bool:
        """Whether it is the forward of these weights over these rows, and has not been used."""
        same = torch.equal(self.ids, layout.ids) and torch.equal(self.positions, layout.positions)
        return same and self.versions == net.versions and not self.record.taken


@torch.no_grad()
def run(net: Net, ids: Tensor, positions: Tensor, attention: Attend, record: Record | None = None) -> Tensor:
    """ids, positions (N,) -> (N, hidden) behind the last layer, before the final norm.

    attention(layer, qkv): q and k turned (N, (heads + 2 kv heads) * D) -> (N, heads * D).
    """
    cos, sin = (table[positions] for table in net.angles(int(positions.max()) + 1))
    x = F.embedding(ids, net.embedding)
    whole = slice(0, len(ids))
    for number, layer in enumerate(net.layers):
        weight, norm = _behind(layer.qkv, layer.attention_norm)
        qkv = F.linear(unit(x, net.eps, norm), weight, _bias(layer))
        heads = qkv.view(len(x), -1, net.width)[:, : net.heads + net.kv_heads]
        kept = {}
        if layer.head_norms is not None:
            plain = heads.flatten(1).clone()  # a flattened view of one row would change with it
            heads.copy_(normed_heads(net, layer, plain))
            kept = {"plain": plain}
        turn(heads, cos, sin)
        attended = attention(number, qkv)
        middle = torch.addmm(x, attended, layer.out.t())
        if layer.out_bias is not None:
            middle += layer.out_bias
        weight, norm = _behind(layer.gate_up, layer.mlp_norm)
        gate_up = F.linear(unit(middle, net.eps, norm), weight)
        if record is not None:
            record.keep(number, whole, x=x, qkv=qkv, attended=attended, middle=middle, gate_up=gate_up, **kept)
        x = torch.addmm(middle, gated(gate_up), layer.down.t())
    if record is not None:
        record.end(whole, x)
    return x


def _behind(parts: tuple[Tensor, ...], norm: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights of the projections behind a norm as one matrix, and the norm's weight where it is not multiplied into them.

    In float32 it is: (outputs x inputs) products once save as many a row. In bfloat16 that would round the weights anew.
    """
    weight = stacked(parts)
    return (weight * norm.detach(), None) if weight.dtype == torch.float32 else (weight, norm.detach())


def _bias(layer: Layer) -> Tensor | None:
    return None if layer.qkv_bias is None else stacked(layer.qkv_bias)


def normed_heads(net: Net, layer: Layer, plain: Tensor) -> Tensor:
    """(N, (heads + kv heads) * D), each head of q and of k normed by the weight of its kind -> (N, heads + kv heads, D)."""
    assert layer.head_norms is not None
    q, k = plain.view(len(plain), -1, net.width).split([net.heads, net.kv_heads], 1)
    return torch.cat([unit(part, net.eps, weight.detach()) for part, weight in zip((q, k), layer.head_norms, strict=True)], 1)


def states(net: Net, layout: Layout) -> Tensor:
    """(M, hidden) final states that predict the counted tokens (`layout.outputs`), in the graph of the parameters."""
    return _States.apply(net, layout, None, torch.is_grad_enabled(), *net.tensors)


def recorded_states(net: Net, layout: Layout, trace: Trace) -> Tensor:
    """`states` whose forward the sampler has done. RuntimeError for a trace of other weights or tokens, and for one that was used."""
    if not trace.fits(net, layout):
        raise RuntimeError("the trace of the sampler is of other weights or completions, or was used before; run a forward instead")
    trace.record.taken = torch.is_grad_enabled()
    return _States.apply(net, layout, trace.record, torch.is_grad_enabled(), *net.tensors)


class _States(Function):
    @staticmethod
    def forward(ctx: Any, net: Net, layout: Layout, record: Record | None, graph: bool, *tensors: Tensor) -> Tensor:
        """graph: whether a backward may follow; passed in, since grad mode is always off inside `Function.forward`."""
        if record is None:
            record = Record(net) if graph and any(ctx.needs_input_grad) else None
            found = grids(net, layout)
            kept = None if record is None or not keeps(found) else record.attention_weights

            def attention(number: int, qkv: Tensor) -> Tensor:
                return attend(net, qkv, found, None if kept is None else kept[number])

            last = run(net, layout.ids, layout.positions, attention, record)
        else:
            last = record.last
        ctx.net, ctx.layout, ctx.record = net, layout, record
        ctx.versions = net.versions
        return unit(last.index_select(0, layout.outputs), net.eps, net.final_norm.detach())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_states: Tensor) -> tuple[Tensor | None, ...]:
        net, layout, record = ctx.net, ctx.layout, ctx.record
        if record is None:
            raise RuntimeError("the forward has been used for a backward already, which frees its record; run the forward again")
        if net.versions != ctx.versions:  # the products below read the weights again
            raise RuntimeError("the weights changed between forward and backward; take the optimizer step after backward")
        ctx.record = None
        outputs, final = layout.outputs, net.final_norm.detach()
        last = record.last.index_select(0, outputs)
        by_last = unit_backward(last, by_states, net.eps, final)
        by_final = (unit(last, net.eps).float() * by_states).sum(0)
        by_x = record.last.new_zeros(record.last.shape).index_copy_(0, outputs, by_last)
        cos, sin = (table[layout.positions] for table in net.angles(int(layout.positions.max()) + 1))
        places = grids(net, layout)
        found: list[tuple[Tensor, ...]] = []
        for layer in reversed(net.layers):
            kept, weights = record.layers.pop(), record.attention_weights.pop()
            by_x, grads = _layer_backward(net, layer, kept, weights, places, by_x, (cos, -sin))
            found.append(grads)
        wide = by_x.float()
        if net.padding is not None:  # as in the stock pass, whose embedding has no gradient there
            wide = wide.masked_fill((layout.ids == net.padding)[:, None], 0.0)
        by_embedding = torch.zeros(net.embedding.shape, device=wide.device).index_add_(0, layout.ids, wide)
        flat = [by_embedding, by_final, *(grad for grads in reversed(found) for grad in grads)]
        typed = (grad.to(weight.dtype) for grad, weight in zip(flat, net.tensors, strict=True))
        return (None, None, None, None, *typed)


def _layer_backward(
    net: Net,
    layer: Layer,
    kept: dict[str, Tensor],
    weights: list[Tensor],
    places: list[Grid],
    by_x: Tensor,
    back: tuple[Tensor, Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(gradient by the layer's input, gradients of `layer.tensors`); back: cos and -sin of the rows."""
    x, middle = kept["x"], kept["middle"]
    by_gate_up, opened = gated_backward(kept["gate_up"], by_x @ layer.down)
    by_down = by_x.t() @ opened
    by_middle, by_mlp_norm, by_both = _behind_backward(net, middle, by_gate_up, layer.gate_up, layer.mlp_norm, by_x)
    by_out = by_middle.t() @ kept["attended"]
    by_out_bias = () if layer.out_bias is None else (by_middle.sum(0, dtype=torch.float32),)
    by_qkv = attend_backward(net, kept["qkv"], places, by_middle @ layer.out, weights)
    heads = by_qkv.view(len(x), -1, net.width)[:, : net.heads + net.kv_heads]
    turn(heads, *back)
    by_head_norms: tuple[Tensor, ...] = ()
    if layer.head_norms is not None:
        by_head_norms = _heads_backward(net, layer, kept["plain"], heads)
    by_input, by_attention_norm, by_projections = _behind_backward(net, x, by_qkv, layer.qkv, layer.attention_norm, by_middle)
    by_biases = () if layer.qkv_bias is None else by_qkv.sum(0, dtype=torch.float32).split([len(w) for w in layer.qkv])
    return by_input, (
        by_attention_norm, *by_projections, *by_biases, *by_head_norms, by_out, *by_out_bias, by_mlp_norm, *by_both, by_down,
    )  # fmt: skip


def _behind_backward(
    net: Net, x: Tensor, by_projected: Tensor, parts: tuple[Tensor, ...], norm: Tensor, by_out: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Of (unit(x) * norm) @ parts.T: gradient by x, plus `by_out`; by the norm; by each of the parts.

    With G = by_projected.T @ unit(x) the latter two are sums over G and not over rows: (G * W).sum(0) and G * norm.
    """
    weight, left = _behind(parts, norm)
    by_input = unit_backward(x, by_projected @ weight, net.eps, left, by_out)
    both = (by_projected.t() @ unit(x, net.eps)).float()
    by_norm = torch.linalg.vecdot(both, stacked(parts), dim=0) if both.dtype == weight.dtype else (both * stacked(parts)).sum(0)
    by_parts = both.mul_(norm.detach()).to(weight.dtype).split([len(part) for part in parts])
    return by_input, by_norm, by_parts


def _heads_backward(net: Net, layer: Layer, plain: Tensor, by_heads: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by the two norms of the heads; by_heads (N, heads + kv heads, D) becomes the gradient before them."""
    assert layer.head_norms is not None
    split, found, pulled = [net.heads, net.kv_heads], [], []
    parts = (whole.split(split, 1) for whole in (plain.view(by_heads.shape), by_heads))
    for before, grad, norm in zip(*parts, layer.head_norms, strict=True):
        found.append((unit(before, net.eps).float() * grad).sum((0, 1)))
        pulled.append(unit_backward(before, grad, net.eps, norm.detach()))
    by_heads.copy_(torch.cat(pulled, 1))
    return found[0], found[1]
