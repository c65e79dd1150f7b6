"""Forward and backward of a Llama-shaped model over the nodes of a layout, written out: one operation for autograd (`states`).

A forward keeps of each layer what backward reads (`Activations`) and nothing else: of each node 10 C numbers a layer for
SmolLM2-135M, 15 C for Qwen2.5-0.5B. Backward computes norms and gates again, and attention weights where there were too many to
keep. The sampler (`decoder.py`) can fill the same record, so that its activations serve the update. Gradients are called
grad_x = dL/dx.
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

from sage_rlvr.models.llama.attention import Grid, attend, attend_backward, few_weights, grids_of
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Layer, Net, Versions, stacked
from sage_rlvr.models.llama.pieces import gated, gated_backward, turn, unit, unit_backward

Attend = Callable[[int, Tensor], Tensor]


class Activations:
    """Record of a forward that backward reads.

    It has of each layer the input x, q k v (turned), the output of attention, x after it, gate and up, and, if heads are normed
    (Qwen3), q and k before that norm; and x before the final norm.

    room: None for one forward, whose tensors are kept as they are; else the most nodes, if a sampler fills some at a time.
    """

    def __init__(self, net: Net, room: int | None = None) -> None:
        self.room = room
        self.taken = False
        """True if a backward will use it up: two of them would read what the first one frees."""
        self.layers: list[dict[str, Tensor]] = [{} for _ in net.layers]
        self.attention_weights: list[list[Tensor]] = [[] for _ in net.layers]
        """Attention weights of the tiles of each layer, if they were few enough to be kept."""
        self.last = net.embedding.new_empty(room or 0, net.embedding.shape[1])

    def store(self, layer: int, part: slice, **values: Tensor) -> None:
        """Values of some nodes of a layer."""
        kept = self.layers[layer]
        for name, value in values.items():
            if self.room is None:
                kept[name] = value
            else:
                whole = kept.get(name)
                if whole is None:  # on a CPU, memory that is never written takes no memory of the machine
                    whole = kept[name] = self.last.new_empty(self.room, value.shape[1])
                whole[part] = value

    def end(self, part: slice, last: Tensor) -> None:
        """x of some nodes after the last layer."""
        if self.room is None:
            self.last = last
        else:
            self.last[part] = last

    def filled(self, nodes: int) -> Activations:
        """The record of its first nodes, those that have been filled."""
        self.layers = [{name: value[:nodes] for name, value in kept.items()} for kept in self.layers]
        self.last, self.room = self.last[:nodes], nodes
        return self


@dataclass(frozen=True, eq=False)
class Trace:
    """Record of a sampler. The sampler makes it; training scores by it without a second forward.

    It has the record of the N nodes of `Layout.of(..., distinct=False)`, and the logits (M, V) that were sampled from, in the order
    of the layout's outputs; None if they would have been more than `head.KEPT_LOGITS`. A trace serves one update.

    ids, positions (N,): of the nodes. versions: of the weights that sampled.
    """

    record: Activations
    logits: Tensor | None
    ids: Tensor
    positions: Tensor
    versions: Versions

    def fits(self, net: Net, layout: Layout) -> bool:
        """Return True if it is the forward of these weights over these tokens, and has not been used."""
        same = torch.equal(self.ids, layout.ids) and torch.equal(self.positions, layout.positions)
        return same and self.versions == net.versions and not self.record.taken


@torch.no_grad()
def run(net: Net, ids: Tensor, positions: Tensor, attention: Attend, record: Activations | None = None) -> Tensor:
    """ids, positions (N,) -> x (N, C) after the last layer, before the final norm.

    attention(layer, qkv): (N, (H + 2 K) * D), q and k turned -> (N, H * D).
    """
    cos, sin = (table[positions] for table in net.angles(int(positions.max()) + 1))
    x = F.embedding(ids, net.embedding)
    whole = slice(0, len(ids))
    for number, layer in enumerate(net.layers):
        weight, norm = _behind(layer.qkv, layer.attention_norm)
        qkv = F.linear(unit(x, net.eps, norm), weight, _bias(layer))
        heads = qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads]
        kept = {}
        if layer.head_norms is not None:
            plain = heads.flatten(1).clone()  # flattening a single node may return a view, which would change with it
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
            record.store(number, whole, x=x, qkv=qkv, attended=attended, middle=middle, gate_up=gate_up, **kept)
        x = torch.addmm(middle, gated(gate_up), layer.down.t())
    if record is not None:
        record.end(whole, x)
    return x


def _behind(parts: tuple[Tensor, ...], norm: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights of the projections after a norm as one matrix, and the norm's weight if it is not multiplied into them.

    In float32 it is: outputs x inputs products once save C products a node. In bfloat16 that would round the weights anew.
    """
    weight = stacked(parts)
    return (weight * norm.detach(), None) if weight.dtype == torch.float32 else (weight, norm.detach())


def _bias(layer: Layer) -> Tensor | None:
    return None if layer.qkv_bias is None else stacked(layer.qkv_bias)


def normed_heads(net: Net, layer: Layer, plain: Tensor) -> Tensor:
    """(N, (H + K) * D), each head of q and of k normed by the weight of its kind -> (N, H + K, D)."""
    assert layer.head_norms is not None
    q, k = plain.view(len(plain), -1, net.head_dim).split([net.query_heads, net.kv_heads], 1)
    return torch.cat([unit(part, net.eps, weight.detach()) for part, weight in zip((q, k), layer.head_norms, strict=True)], 1)


def states(net: Net, layout: Layout) -> Tensor:
    """(M, C) final states that predict the counted tokens (`layout.outputs`), in the graph of the parameters."""
    return _States.apply(net, layout, None, torch.is_grad_enabled(), *net.tensors)


def recorded_states(net: Net, layout: Layout, trace: Trace) -> Tensor:
    """`states` whose forward the sampler has done. RuntimeError for a trace of other weights or tokens, or one that was used."""
    if not trace.fits(net, layout):
        raise RuntimeError("the trace of the sampler is of other weights or completions, or was used before; run a forward instead")
    trace.record.taken = torch.is_grad_enabled()
    return _States.apply(net, layout, trace.record, torch.is_grad_enabled(), *net.tensors)


class _States(Function):
    @staticmethod
    def forward(ctx: Any, net: Net, layout: Layout, record: Activations | None, graph: bool, *tensors: Tensor) -> Tensor:
        """graph: whether a backward may follow; passed in, since grad mode is always off inside `Function.forward`."""
        if record is None:
            record = Activations(net) if graph and any(ctx.needs_input_grad) else None
            grids = grids_of(net, layout)
            kept = None if record is None or not few_weights(grids) else record.attention_weights

            def attention(number: int, qkv: Tensor) -> Tensor:
                return attend(net, qkv, grids, None if kept is None else kept[number])

            last = run(net, layout.ids, layout.positions, attention, record)
        else:
            last = record.last
        ctx.net, ctx.layout, ctx.record = net, layout, record
        ctx.versions = net.versions
        return unit(last.index_select(0, layout.outputs), net.eps, net.final_norm.detach())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        net, layout, record = ctx.net, ctx.layout, ctx.record
        if record is None:
            raise RuntimeError("the forward has been used for a backward already, which frees its record; run the forward again")
        if net.versions != ctx.versions:  # the products below read the weights again
            raise RuntimeError("the weights changed between forward and backward; take the optimizer step after backward")
        ctx.record = None
        outputs, final = layout.outputs, net.final_norm.detach()
        last = record.last.index_select(0, outputs)
        grad_last = unit_backward(last, grad_states, net.eps, final)
        grad_final = (unit(last, net.eps).float() * grad_states).sum(0)
        grad_x = record.last.new_zeros(record.last.shape).index_copy_(0, outputs, grad_last)
        cos, sin = (table[layout.positions] for table in net.angles(int(layout.positions.max()) + 1))
        grids = grids_of(net, layout)
        of_layers: list[tuple[Tensor, ...]] = []
        for layer in reversed(net.layers):
            kept, weights = record.layers.pop(), record.attention_weights.pop()
            grad_x, grads = _layer_backward(net, layer, kept, weights, grids, grad_x, (cos, -sin))
            of_layers.append(grads)
        wide = grad_x.float()
        if net.padding is not None:  # as in the stock pass, whose embedding has no gradient there
            wide = wide.masked_fill((layout.ids == net.padding)[:, None], 0.0)
        grad_embedding = torch.zeros(net.embedding.shape, device=wide.device).index_add_(0, layout.ids, wide)
        flat = [grad_embedding, grad_final, *(grad for grads in reversed(of_layers) for grad in grads)]
        typed = (grad.to(weight.dtype) for grad, weight in zip(flat, net.tensors, strict=True))
        return (None, None, None, None, *typed)


def _layer_backward(
    net: Net,
    layer: Layer,
    kept: dict[str, Tensor],
    weights: list[Tensor],
    grids: list[Grid],
    grad_x: Tensor,
    back: tuple[Tensor, Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """grad_x of the layer's output -> (that of its input, gradients of `layer.tensors`); back: cos and -sin of the nodes."""
    x, middle = kept["x"], kept["middle"]
    grad_gate_up, opened = gated_backward(kept["gate_up"], grad_x @ layer.down)
    grad_down = grad_x.t() @ opened
    grad_middle, grad_mlp_norm, grad_both = _behind_backward(net, middle, grad_gate_up, layer.gate_up, layer.mlp_norm, grad_x)
    grad_out = grad_middle.t() @ kept["attended"]
    grad_out_bias = () if layer.out_bias is None else (grad_middle.sum(0, dtype=torch.float32),)
    grad_qkv = attend_backward(net, kept["qkv"], grids, grad_middle @ layer.out, weights)
    heads = grad_qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads]
    turn(heads, *back)
    grad_head_norms: tuple[Tensor, ...] = ()
    if layer.head_norms is not None:
        grad_head_norms = _heads_backward(net, layer, kept["plain"], heads)
    grad_input, grad_norm, grad_projections = _behind_backward(net, x, grad_qkv, layer.qkv, layer.attention_norm, grad_middle)
    grad_biases = () if layer.qkv_bias is None else grad_qkv.sum(0, dtype=torch.float32).split([len(w) for w in layer.qkv])
    return grad_input, (
        grad_norm, *grad_projections, *grad_biases, *grad_head_norms,
        grad_out, *grad_out_bias, grad_mlp_norm, *grad_both, grad_down,
    )  # fmt: skip


def _behind_backward(
    net: Net, x: Tensor, grad_projected: Tensor, parts: tuple[Tensor, ...], norm: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return gradients of (unit(x) * norm) @ parts.T: of x, plus `grad_out`; of the norm; and of each of the parts.

    With Z = grad_projected.T @ unit(x) the latter two are sums over Z and not over nodes: (Z * W).sum(0) and Z * norm.
    """
    weight, left = _behind(parts, norm)
    grad_input = unit_backward(x, grad_projected @ weight, net.eps, left, grad_out)
    both = (grad_projected.t() @ unit(x, net.eps)).float()
    grad_norm = torch.linalg.vecdot(both, stacked(parts), dim=0) if both.dtype == weight.dtype else (both * stacked(parts)).sum(0)
    grad_parts = both.mul_(norm.detach()).to(weight.dtype).split([len(part) for part in parts])
    return grad_input, grad_norm, grad_parts


def _heads_backward(net: Net, layer: Layer, plain: Tensor, grad_heads: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the two norms of the heads; grad_heads (N, H + K, D) becomes the gradient of what they norm."""
    assert layer.head_norms is not None
    split, of_norms, pulled = [net.query_heads, net.kv_heads], [], []
    parts = (whole.split(split, 1) for whole in (plain.view(grad_heads.shape), grad_heads))
    for before, grad, norm in zip(*parts, layer.head_norms, strict=True):
        of_norms.append((unit(before, net.eps).float() * grad).sum((0, 1)))
        pulled.append(unit_backward(before, grad, net.eps, norm.detach()))
    grad_heads.copy_(torch.cat(pulled, 1))
    return of_norms[0], of_norms[1]
