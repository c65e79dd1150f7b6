"""Forward and backward of a Llama-shaped model over the nodes of a layout, written out: one operation for autograd (`states`).

A forward keeps what backward reads (`Activations`) and nothing else: for each node and layer 10 C numbers for SmolLM2-135M, 15 C
for Qwen2.5-0.5B. Backward computes norms and gates again, and the attention weights if they were too many to keep. Decoding
(`decoder.py`) can fill the same record, so that the update needs no forward. Gradients are called grad_x = dL/dx.
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
"""(number of the layer, qkv (N, (H + 2 K) * D) with q and k turned) -> the output of attention (N, H * D)."""


class Activations:
    """Record of a forward, which one backward reads and frees.

    layers: of each layer, in the dtype of the weights,

        x         (N, C)               its input
        plain     (N, (H + K) * D)     q and k before their norm; Qwen3 only
        qkv       (N, (H + 2 K) * D)   q and k turned, q not scaled
        attended  (N, H * D)           the output of attention, before the output projection
        middle    (N, C)               x after attention
        gate_up   (N, 2 F)             both products, before the activation

    attention_weights: of each layer those of its tiles, (I K, R J, U) each; empty if they are not kept. last (N, C): x after the
    last layer, before the final norm.

    room: None for one forward, whose tensors are kept as they are; for a sampler, which fills some nodes at a time, the maximum
    number of nodes.
    """

    def __init__(self, net: Net, room: int | None = None) -> None:
        self.room = room
        self.taken = False
        """True once a graph uses it, whose backward frees it; another graph must not."""
        self.layers: list[dict[str, Tensor]] = [{} for _ in net.layers]
        self.attention_weights: list[list[Tensor]] = [[] for _ in net.layers]
        self.last = net.embedding.new_empty(room or 0, net.embedding.shape[1])

    def store(self, layer: int, part: slice, **values: Tensor) -> None:
        """Store values of a slice of the nodes in a layer: as they are for one forward, copied for a sampler."""
        kept = self.layers[layer]
        for name, value in values.items():
            if self.room is None:
                kept[name] = value
            else:
                whole = kept.get(name)
                if whole is None:  # on a CPU, pages that are never written take no memory
                    whole = kept[name] = self.last.new_empty(self.room, value.shape[1])
                whole[part] = value

    def end(self, part: slice, last: Tensor) -> None:
        """Store x (m, C) after the last layer of a slice of the nodes."""
        if self.room is None:
            self.last = last
        else:
            self.last[part] = last

    def filled(self, nodes: int) -> Activations:
        """Cut the record, in place, to its first nodes, those that have been filled; return it."""
        self.layers = [{name: value[:nodes] for name, value in kept.items()} for kept in self.layers]
        self.last, self.room = self.last[:nodes], nodes
        return self


@dataclass(frozen=True, eq=False)
class Trace:
    """Record of a sampler. The sampler makes it; training scores by it without a second forward. It serves one update.

    record: of the N nodes of `Layout.of(..., distinct=False)`. logits (M, V): what was sampled from, in the order of the layout's
    outputs; None if they would have been more than `lm_head.KEPT_LOGITS`, or if two prompts are equal. ids, positions (N,): of the
    nodes. versions: of the weights that sampled.
    """

    record: Activations
    logits: Tensor | None
    ids: Tensor
    positions: Tensor
    versions: Versions

    def fits(self, net: Net, layout: Layout) -> bool:
        """Return True if this is the forward of these weights over these tokens, and has not been used."""
        same = torch.equal(self.ids, layout.ids) and torch.equal(self.positions, layout.positions)
        return same and self.versions == net.versions and not self.record.taken


@torch.no_grad()
def run(net: Net, ids: Tensor, positions: Tensor, attention: Attend, record: Activations | None = None) -> Tensor:
    """ids, positions (N,) -> x (N, C) after the last layer, before the final norm. record: to be filled, if any."""
    cos, sin = (table[positions] for table in net.angles(int(positions.max()) + 1))
    x = F.embedding(ids, net.embedding)
    whole = slice(0, len(ids))
    for number, layer in enumerate(net.layers):
        weight, norm = _projection(layer.qkv, layer.attention_norm)
        qkv = F.linear(unit(x, net.eps, norm), weight, _bias(layer))
        heads = qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads]
        kept = {}
        if layer.head_norms is not None:
            plain = heads.flatten(1).clone()  # of a single node, `flatten` returns a view, which the next line would overwrite
            heads.copy_(normed_heads(net, layer, plain))
            kept = {"plain": plain}
        turn(heads, cos, sin)
        attended = attention(number, qkv)
        middle = torch.addmm(x, attended, layer.out.t())
        if layer.out_bias is not None:
            middle += layer.out_bias
        weight, norm = _projection(layer.gate_up, layer.mlp_norm)
        gate_up = F.linear(unit(middle, net.eps, norm), weight)
        if record is not None:
            record.store(number, whole, x=x, qkv=qkv, attended=attended, middle=middle, gate_up=gate_up, **kept)
        x = torch.addmm(middle, gated(gate_up), layer.down.t())
    if record is not None:
        record.end(whole, x)
    return x


def _projection(parts: tuple[Tensor, ...], norm: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the projections that follow a norm as one matrix (outputs, C), and the norm's weight if still to be applied.

    In float32 the matrix contains the norm's weight (None is returned for it), which saves C multiplications per node. In bfloat16
    that would round the weights once more.
    """
    weight = stacked(parts)
    return (weight * norm.detach(), None) if weight.dtype == torch.float32 else (weight, norm.detach())


def _bias(layer: Layer) -> Tensor | None:
    """Return the biases of q, k and v as one, ((H + 2 K) * D,), or None."""
    return None if layer.qkv_bias is None else stacked(layer.qkv_bias)


def normed_heads(net: Net, layer: Layer, plain: Tensor) -> Tensor:
    """q and k (N, (H + K) * D) of a layer with `head_norms` -> the same, each head normed, (N, H + K, D)."""
    assert layer.head_norms is not None
    q, k = plain.view(len(plain), -1, net.head_dim).split([net.query_heads, net.kv_heads], 1)
    return torch.cat([unit(part, net.eps, weight.detach()) for part, weight in zip((q, k), layer.head_norms, strict=True)], 1)


def states(net: Net, layout: Layout) -> Tensor:
    """Return the final states (M, C), after the final norm, that predict the counted tokens (`layout.outputs`).

    They are in the graph of the parameters, which allows one backward; it raises RuntimeError if the weights have changed.
    """
    return _States.apply(net, layout, None, torch.is_grad_enabled(), *net.tensors)


def recorded_states(net: Net, layout: Layout, trace: Trace) -> Tensor:
    """Return `states` from a sampler's record, without a forward. In the graph they use the trace up.

    Raises RuntimeError for a trace of other weights or tokens, or one that was used.
    """
    if not trace.fits(net, layout):
        raise RuntimeError("the trace of the sampler is of other weights or completions, or was used before; run a forward instead")
    trace.record.taken = torch.is_grad_enabled()
    return _States.apply(net, layout, trace.record, torch.is_grad_enabled(), *net.tensors)


class _States(Function):
    """Autograd function of `states` and `recorded_states`. tensors: `net.tensors`, passed only for their gradients.

    net, layout and record are read from the arguments and not through `save_for_backward`, so that `backward` can free the record
    layer by layer, and checks the weights itself.
    """

    @staticmethod
    def forward(ctx: Any, net: Net, layout: Layout, record: Activations | None, graph: bool, *tensors: Tensor) -> Tensor:
        """record: that of a sampler, or None to run. graph: whether a backward may follow; grad mode is always off in here."""
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
        grads_of_layers: list[tuple[Tensor, ...]] = []
        for layer in reversed(net.layers):
            kept, weights = record.layers.pop(), record.attention_weights.pop()
            grad_x, grads = _layer_backward(net, layer, kept, weights, grids, grad_x, (cos, -sin))
            grads_of_layers.append(grads)
        grad_embedded = grad_x.float()
        if net.padding is not None:  # as in the stock path, whose embedding has no gradient there
            grad_embedded = grad_embedded.masked_fill((layout.ids == net.padding)[:, None], 0.0)
        grad_embedding = torch.zeros(net.embedding.shape, device=grad_x.device).index_add_(0, layout.ids, grad_embedded)
        flat = [grad_embedding, grad_final, *(grad for grads in reversed(grads_of_layers) for grad in grads)]
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
    """grad_x (N, C) of the layer's output -> (that of its input (N, C), gradients of `layer.tensors` in their order).

    kept, weights: of the layer in `Activations`. back: cos and -sin (N, 1, D / 2) of the nodes, which undo the rotation.
    """
    x, middle = kept["x"], kept["middle"]
    grad_gate_up, gated_again = gated_backward(kept["gate_up"], grad_x @ layer.down)
    grad_down = grad_x.t() @ gated_again
    grad_middle, grad_mlp_norm, grad_both = _projection_backward(net, middle, grad_gate_up, layer.gate_up, layer.mlp_norm, grad_x)
    grad_out = grad_middle.t() @ kept["attended"]
    grad_out_bias = () if layer.out_bias is None else (grad_middle.sum(0, dtype=torch.float32),)
    grad_qkv = attend_backward(net, kept["qkv"], grids, grad_middle @ layer.out, weights)
    heads = grad_qkv.view(len(x), -1, net.head_dim)[:, : net.query_heads + net.kv_heads]
    turn(heads, *back)  # in place, as `_heads_backward`: grad_qkv becomes the gradient of the product
    grad_head_norms: tuple[Tensor, ...] = ()
    if layer.head_norms is not None:
        grad_head_norms = _heads_backward(net, layer, kept["plain"], heads)
    grad_input, grad_norm, grad_projections = _projection_backward(net, x, grad_qkv, layer.qkv, layer.attention_norm, grad_middle)
    grad_biases = () if layer.qkv_bias is None else grad_qkv.sum(0, dtype=torch.float32).split([len(w) for w in layer.qkv])
    return grad_input, (
        grad_norm, *grad_projections, *grad_biases, *grad_head_norms,
        grad_out, *grad_out_bias, grad_mlp_norm, *grad_both, grad_down,
    )  # fmt: skip


def _projection_backward(
    net: Net, x: Tensor, grad_projected: Tensor, parts: tuple[Tensor, ...], norm: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return gradients of (unit(x) * norm) @ W.T, W the parts as one: of x (N, C), plus `grad_out`; of the norm; of each part.

    With Z = grad_projected.T @ unit(x), (outputs, C), the latter two need no sum over nodes: (Z * W).sum(0) and Z * norm.
    """
    weight, remaining_norm = _projection(parts, norm)
    grad_input = unit_backward(x, grad_projected @ weight, net.eps, remaining_norm, grad_out)
    z = (grad_projected.t() @ unit(x, net.eps)).float()
    grad_norm = (z * stacked(parts)).sum(0)
    grad_parts = z.mul_(norm.detach()).to(weight.dtype).split([len(part) for part in parts])
    return grad_input, grad_norm, grad_parts


def _heads_backward(net: Net, layer: Layer, plain: Tensor, grad_heads: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients (D,) of the two `head_norms`. plain (N, (H + K) * D): q and k before the norms.

    In place, grad_heads (N, H + K, D), the gradient of the normed heads, becomes that of `plain`.
    """
    assert layer.head_norms is not None
    q_and_k = [net.query_heads, net.kv_heads]
    parts = zip(plain.view(grad_heads.shape).split(q_and_k, 1), torch.split(grad_heads, q_and_k, 1), layer.head_norms, strict=True)
    grad_norms, grad_plain = [], []
    for before, grad, norm in parts:
        grad_norms.append((unit(before, net.eps).float() * grad).sum((0, 1)))
        grad_plain.append(unit_backward(before, grad, net.eps, norm.detach()))
    grad_heads.copy_(torch.cat(grad_plain, 1))
    return grad_norms[0], grad_norms[1]
