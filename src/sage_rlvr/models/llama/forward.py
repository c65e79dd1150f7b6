"""Forward and backward of a Llama-shaped model over rows, written out: `states` is one node in the graph of the parameters.

A forward keeps of each layer what backward reads (`Record`, 10 numbers a row and hidden unit) and nothing else; norms, gates and attention weights
are computed again. The same record can be filled by the sampler (`decoder.py`), whose activations then serve the update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sage_rlvr.models.llama.attention import attend, attend_backward
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Layer, Net, stacked
from sage_rlvr.models.llama.pieces import gated, gated_backward, norm, norm_backward, turn

Attend = Callable[[int, Tensor], Tensor]


class Record:
    """What backward reads of a forward over `rows` rows: of each layer its input x, q k v (turned; of Qwen3 also before their
    norms), what attention gave, x behind it, gate and up; at last the x before the final norm. Rows may be filled in parts.
    """

    NAMES = ("x", "qkv", "attended", "middle", "gate_up", "plain")

    def __init__(self, net: Net, rows: int) -> None:
        hidden, asked = net.embedding.shape[1], net.heads * net.width
        turned = asked + net.kv_heads * net.width
        widths = [hidden, turned + net.kv_heads * net.width, asked, hidden, 2 * len(net.layers[0].down.t())]
        if net.layers[0].head_norms is not None:
            widths.append(turned)
        new = net.embedding.new_empty
        self.layers = [[new(rows, width) for width in widths] for _ in net.layers]
        self.last = new(rows, hidden)

    def keep(self, layer: int, part: slice, **values: Tensor) -> None:
        """Values of some rows of a layer, by `NAMES`."""
        for name, value in values.items():
            self.layers[layer][self.NAMES.index(name)][part] = value


@torch.no_grad()
def run(net: Net, ids: Tensor, positions: Tensor, attention: Attend, record: Record | None = None) -> Tensor:
    """ids, positions (N,) -> (N, hidden) behind the last layer, before the final norm.

    attention(layer, qkv): q and k turned (N, (heads + 2 kv heads) * D) -> (N, heads * D).
    """
    cos, sin = (table[positions] for table in net.angles(int(positions.max()) + 1))
    x = F.embedding(ids, net.embedding)
    whole = slice(0, len(ids))
    for number, layer in enumerate(net.layers):
        qkv = F.linear(norm(x, layer.attention_norm, net.eps), stacked(layer.qkv), _bias(layer))
        heads = qkv.view(len(x), -1, net.width)[:, : net.heads + net.kv_heads]
        plain = None
        if layer.head_norms is not None:
            plain = heads.flatten(1).clone()  # a flattened view of one row would change with it
            heads.copy_(normed_heads(net, layer, plain))
        turn(heads, cos, sin)
        attended = attention(number, qkv)
        middle = _added(x, attended, layer.out)
        if layer.out_bias is not None:
            middle += layer.out_bias
        gate_up = F.linear(norm(middle, layer.mlp_norm, net.eps), stacked(layer.gate_up))
        if record is not None:
            kept = {} if plain is None else {"plain": plain}
            record.keep(number, whole, x=x, qkv=qkv, attended=attended, middle=middle, gate_up=gate_up, **kept)
        x = _added(middle, gated(gate_up), layer.down)
    if record is not None:
        record.last[whole] = x
    return x


def _bias(layer: Layer) -> Tensor | None:
    return None if layer.qkv_bias is None else stacked(layer.qkv_bias)


def _added(x: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """x + inputs @ weight.T"""
    return torch.addmm(x, inputs, weight.t())


def normed_heads(net: Net, layer: Layer, plain: Tensor) -> Tensor:
    """(N, (heads + kv heads) * D), each head of q and of k normed by its own weight -> (N, heads + kv heads, D)."""
    assert layer.head_norms is not None
    q, k = plain.view(len(plain), -1, net.width).split([net.heads, net.kv_heads], 1)
    return torch.cat([norm(part.contiguous(), weight, net.eps) for part, weight in zip((q, k), layer.head_norms, strict=True)], 1)


def states(net: Net, layout: Layout) -> Tensor:
    """(M, hidden) final states that predict the counted tokens (`layout.outputs`), in the graph of the parameters."""
    return _States.apply(net, layout, None, *net.tensors)


def recorded_states(net: Net, layout: Layout, record: Record) -> Tensor:
    """`states` whose forward has been done already, by whoever filled the record."""
    return _States.apply(net, layout, record, *net.tensors)


class _States(Function):
    @staticmethod
    def forward(ctx: Any, net: Net, layout: Layout, record: Record | None, *tensors: Tensor) -> Tensor:
        if record is None:
            record = Record(net, len(layout.ids)) if any(ctx.needs_input_grad) else None
            last = run(net, layout.ids, layout.positions, lambda _, qkv: attend(net, qkv, layout.tiles), record)
        else:
            last = record.last
        ctx.net, ctx.layout, ctx.record = net, layout, record
        return norm(last.index_select(0, layout.outputs), net.final_norm, net.eps)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_states: Tensor) -> tuple[Tensor | None, ...]:
        """Weights moved since the forward would give a wrong gradient silently; autograd's own check does not see them here."""
        net, layout, record = ctx.net, ctx.layout, ctx.record
        ctx.record = None
        outputs = layout.outputs
        by_last, _, by_final = norm_backward(record.last.index_select(0, outputs), by_states, net.final_norm, net.eps, None)
        by_x = record.last.new_zeros(record.last.shape).index_copy_(0, outputs, by_last)
        cos, sin = (table[layout.positions] for table in net.angles(int(layout.positions.max()) + 1))
        found: list[tuple[Tensor, ...]] = []
        for layer in reversed(net.layers):
            by_x, grads = _layer_backward(net, layer, record.layers.pop(), layout, by_x, (cos, -sin))
            found.append(grads)
        wide = by_x.float()
        if net.padding is not None:  # as in the stock pass, whose embedding has no gradient there
            wide.masked_fill_((layout.ids == net.padding)[:, None], 0.0)
        by_embedding = torch.zeros(net.embedding.shape, device=wide.device).index_add_(0, layout.ids, wide)
        flat = [by_embedding, by_final, *(grad for grads in reversed(found) for grad in grads)]
        typed = (grad.to(weight.dtype) for grad, weight in zip(flat, net.tensors, strict=True))
        return (None, None, None, *typed)


def _layer_backward(
    net: Net, layer: Layer, kept: list[Tensor], layout: Layout, by_x: Tensor, back: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(gradient by the layer's input, gradients of `layer.tensors`); back: cos and -sin of the rows."""
    x, qkv, attended, middle, gate_up, *plain = kept
    by_gate_up, opened = gated_backward(gate_up, by_x @ layer.down)
    by_down = by_x.t() @ opened
    by_middle, normed, by_mlp_norm = norm_backward(middle, by_gate_up @ stacked(layer.gate_up), layer.mlp_norm, net.eps, by_x)
    by_both = (by_gate_up.t() @ normed).split([len(w) for w in layer.gate_up])
    by_out = by_middle.t() @ attended
    by_out_bias = () if layer.out_bias is None else (by_middle.sum(0, dtype=torch.float32),)
    by_qkv = attend_backward(net, qkv, layout.tiles, by_middle @ layer.out)
    heads = by_qkv.view(len(x), -1, net.width)[:, : net.heads + net.kv_heads]
    turn(heads, *back)
    by_head_norms: tuple[Tensor, ...] = ()
    if layer.head_norms is not None:
        split = [net.heads, net.kv_heads]
        pairs = zip(plain[0].view(heads.shape).split(split, 1), heads.split(split, 1), layer.head_norms, strict=True)
        pulled = [norm_backward(p.contiguous(), g.contiguous(), weight, net.eps, None) for p, g, weight in pairs]
        heads.copy_(torch.cat([part for part, _, _ in pulled], 1))
        by_head_norms = tuple(by_weight for _, _, by_weight in pulled)
    by_input, normed, by_attention_norm = norm_backward(x, by_qkv @ stacked(layer.qkv), layer.attention_norm, net.eps, by_middle)
    sizes = [len(w) for w in layer.qkv]
    by_projections = (by_qkv.t() @ normed).split(sizes)
    by_biases = () if layer.qkv_bias is None else by_qkv.sum(0, dtype=torch.float32).split(sizes)
    return by_input, (
        by_attention_norm, *by_projections, *by_biases, *by_head_norms, by_out, *by_out_bias, by_mlp_norm, *by_both, by_down,
    )  # fmt: skip
