"""Each guide by hand: weights of Token, percentiles of Branch, frequencies of Random, refusals."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.core import Branch, Compose, Constant, Flat, Key, Placebo, Random, Signals, Token
from sage_rlvr.core.guides import Guide, band_of, base, clamped, factors, is_clamped, is_flat
from sage_rlvr.core.guides.base import batch_quantiles, row_quantiles
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.guides.token import minmax_weights, rank_weights, zscore_weights
from sage_rlvr.errors import ConfigError, DataError

KEY = Key(3407)


def signals_of(surprisals, entropies=None, ref_entropies=None, mask=None) -> Signals:
    logps = -torch.tensor(surprisals)
    mask = torch.ones_like(logps) if mask is None else torch.tensor(mask)
    extra = {"entropies": entropies, "ref_entropies": ref_entropies}
    tensors = {name: None if value is None else torch.tensor(value) for name, value in extra.items()}
    return Signals(logps, logps, mask, torch.arange(logps.shape[0]), **tensors)


def q_of(guide, signals, step=0, total_steps=1000) -> torch.Tensor:
    return guide(signals, step=step, total_steps=total_steps, key=KEY).exp()


SHARES = (0.0, 0.05, 0.5, 0.8, 0.95, 1.0)


def test_row_quantiles_agree_with_torch():
    drawn = torch.Generator().manual_seed(0)
    values, lengths = torch.rand(6, 12, generator=drawn), [1, 2, 5, 8, 11, 12]
    mask = torch.arange(12)[None] < torch.tensor(lengths)[:, None]
    for share, found in zip(SHARES, row_quantiles(values, mask, SHARES), strict=True):
        wanted = torch.stack([torch.quantile(values[i, :n], share) for i, n in enumerate(lengths)])
        assert torch.allclose(found[:, 0], wanted, atol=1e-6)


@pytest.mark.slow
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=33, max_size=33), st.integers(1, 4))
def test_quantiles_of_a_batch_are_exact_on_any_split(numbers: list[float], ranks: int):
    """To the bit the sorted values at whole ranks, and the line between two of them elsewhere; values off the mask do not count,
    and ranks that hold some of the rows each find the same from sums of counts."""
    ordered = torch.tensor(numbers).sort().values
    values = torch.tensor([*numbers, math.nan, 3e38])[None]
    mask = torch.tensor([True] * 33 + [False] * 2)[None]
    assert torch.equal(torch.stack(batch_quantiles(values, mask, [n / 32 for n in range(33)])), ordered)
    (between,) = batch_quantiles(values, mask, [0.3])
    assert torch.equal(between, torch.lerp(ordered[9], ordered[10], 0.3 * 32 - 9))
    parts = [(values[:, rank::ranks], mask[:, rank::ranks]) for rank in range(ranks)]
    assert all(torch.equal(found, between) for found in _in_turns(parts, 0.3))


def _in_turns(parts: list[tuple[torch.Tensor, torch.Tensor]], share: float) -> list[torch.Tensor]:
    """The quantile as each of several processes finds it, whose sums wait for each other."""
    meeting, sums = threading.Barrier(len(parts)), [torch.zeros(1)] * len(parts)

    def rank(number: int) -> torch.Tensor:
        def total(counts: torch.Tensor) -> torch.Tensor:
            sums[number] = counts
            meeting.wait()
            added = torch.stack(list(sums)).sum(0)
            meeting.wait()
            return added

        return batch_quantiles(*parts[number], [share], total)[0]

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(rank, range(len(parts))))


def test_quantiles_of_a_batch_read_it_in_chunks(monkeypatch: pytest.MonkeyPatch):
    values, mask = torch.rand(7, 13), torch.rand(7, 13) < 0.7
    whole = batch_quantiles(values, mask, SHARES)
    assert torch.allclose(torch.stack(whole), torch.quantile(values[mask], torch.tensor(SHARES)), atol=1e-6)
    monkeypatch.setattr(base, "CHUNK", 8)
    assert all(torch.equal(*pair) for pair in zip(batch_quantiles(values, mask, SHARES), whole, strict=True))
    assert [float(one) for one in batch_quantiles(values, mask & False, [0.5])] == [math.inf]


def test_minmax_by_hand():
    """Surprisals 0..4: the 5 % and 95 % quantiles are .2 and 3.8, so the weights are 0, .8/3.6, 1.8/3.6, 2.8/3.6, 1."""
    row, mask = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, math.nan]]), torch.tensor([[1, 1, 1, 1, 1, 0]]).bool()
    wanted = [0.0, 0.8 / 3.6, 0.5, 2.8 / 3.6, 1.0]
    assert minmax_weights(row, mask)[0, :5].tolist() == pytest.approx(wanted, abs=1e-6)


def test_rank_by_hand_ties_share_their_mean_rank():
    row, mask = torch.tensor([[2.0, 7.0, 2.0, 9.0, 1.0, math.nan]]), torch.tensor([[1, 1, 1, 1, 1, 0]]).bool()
    assert rank_weights(row, mask)[0, :5].tolist() == [0.375, 0.75, 0.375, 1.0, 0.0]


def test_zscore_by_hand():
    """1, 3: mean 2, population std 1, so z = -1, 1."""
    row, mask = torch.tensor([[1.0, 3.0, math.nan]]), torch.tensor([[1, 1, 0]]).bool()
    wanted = [1 / (1 + math.e), 1 / (1 + math.exp(-1))]
    assert zscore_weights(row, mask)[0, :2].tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("weights", "value"), [(minmax_weights, 0.0), (rank_weights, 0.5), (zscore_weights, 0.5)])
def test_six_equal_surprisals_get_six_equal_weights(weights, value):
    assert weights(torch.full((1, 6), 0.1), torch.ones(1, 6).bool()).tolist() == [[value] * 6]


@pytest.mark.parametrize("weights", [minmax_weights, rank_weights, zscore_weights])
def test_weights_of_one_token_and_of_none_are_finite(weights):
    mask = torch.tensor([[1, 0], [0, 0]]).bool()
    found = weights(torch.tensor([[3.0, math.nan], [math.nan, math.nan]]), mask)
    assert bool(found[mask].isfinite().all()) and 0 <= float(found[0, 0]) <= 1


def test_token_without_noise_is_one_plus_alpha_times_weight():
    q = q_of(Token(alpha=0.3, sigma=0.0, norm="rank"), signals_of([[0.1, 0.5, 0.9]]))
    assert q[0].tolist() == pytest.approx([1.0, 1.15, 1.3])


def test_token_noise_has_the_right_spread():
    surprisals = torch.arange(4000.0).reshape(1, -1).tolist()
    q = q_of(Token(alpha=0.1, sigma=0.1, norm="rank", q_min=1e-6, q_max=100.0), signals_of(surprisals))[0, 3000:]
    assert float(q.mean()) == pytest.approx(1 + 0.1 * 0.875, abs=0.01)
    assert float(q.std()) == pytest.approx(0.1 * 0.875, rel=0.1)


def test_token_from_the_reference_reads_the_reference():
    base = signals_of([[0.1, 0.5, 0.9]])
    flipped = Signals(base.old_logps, base.old_logps.flip(1), base.mask, base.row_ids)
    guide = Token(alpha=0.3, sigma=0.0, norm="rank", signal="reference")
    assert q_of(guide, flipped)[0].tolist() == pytest.approx([1.3, 1.15, 1.0])
    assert guide.needs == {"ref_logps"} and Token().needs == frozenset()


def test_random_touches_a_share_eps_with_mean_one():
    guide = Random(eps=0.25, sigma=0.1)
    q = q_of(guide, signals_of(torch.zeros(40, 500).tolist()))
    changed = q != 1
    assert float(changed.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(q[changed].mean()) == pytest.approx(1.0, abs=0.01)
    assert float(q[changed].std()) == pytest.approx(0.1, rel=0.1)


def test_random_follows_its_schedule_and_refuses_a_probability_above_one():
    signals = signals_of(torch.zeros(4, 50).tolist())
    assert not torch.equal(q_of(Random(), signals), torch.ones(4, 50))
    assert torch.equal(q_of(Random(), signals, step=1000), torch.ones(4, 50)), "eps has fallen to 0"
    with pytest.raises(ConfigError, match="probability"):
        q_of(Random(eps=1.5), signals)


def test_branch_with_a_percentile_threshold():
    """Entropies 0, 1, 2, 3, 4 over two rows: p75 is 3, so only H = 4 is raised, by .3 * 1."""
    signals = signals_of(
        [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]], [[0.0, 4.0, 1.0], [3.0, 2.0, math.nan]], mask=[[1, 1, 1], [1, 1, 0]]
    )
    assert q_of(Branch(threshold="p75"), signals).flatten().tolist() == pytest.approx([1, 1.3, 1, 1, 1, 1])
    assert (Branch(threshold="p75").depends_on, Branch().depends_on) == ("batch", "state")


def test_branch_from_the_reference():
    signals = signals_of([[0.5, 0.5]], entropies=[[0.0, 0.0]], ref_entropies=[[2.2, 0.0]])
    assert q_of(Branch(signal="reference"), signals)[0].tolist() == pytest.approx([1.3, 1.0])
    assert Branch(signal="reference").needs == {"ref_entropies"} and Branch().needs == {"entropies"}


def test_a_missing_signal_is_named():
    with pytest.raises(DataError, match="entropies"):
        q_of(Branch(), signals_of([[0.5]]))


def test_clamped_share_by_hand():
    signals = signals_of([[0.5, 0.5, 0.5]], entropies=[[4.0, 2.0, 0.0]])
    log_q = q_of(Branch(), signals).log()
    assert is_clamped(Branch(), log_q).tolist() == [[True, False, False]]
    assert not is_clamped(Flat(), torch.zeros(1, 3)).any()


def test_in_a_product_one_factor_at_its_own_edge_is_enough():
    """H = 4 clamps Branch at 1.4; a Token that adds nothing is inside its band, and so is the product's 1.4 in its own.

    H = 2.2 gives 1.3, inside; the last token is not counted.
    """
    signals = signals_of([[0.5] * 4], entropies=[[4.0, 2.2, 0.0, 4.0]], mask=[[1, 1, 1, 0]])
    product = Branch() * Token(alpha=0.0, sigma=0.0) * Flat()
    where = {"step": 0, "total_steps": 10, "key": KEY}

    def held(guide: Guide) -> torch.Tensor:
        return clamped(guide, signals, **where, log_q=guide(signals, **where))

    assert held(product).tolist() == [[True, False, False, False]]
    assert not is_clamped(product, product(signals, **where)).any(), "the product alone does not tell"
    assert torch.equal(held(Branch()), held(product))
    assert not held(Flat()).any() and not held(Compose(())).any()


def test_two_factors_inside_their_bands_are_not_clamped_at_the_edge_of_one():
    """Two Branch of q = 1.2 make 1.44 > 1.4; neither is at its edge."""
    signals = signals_of([[0.5]], entropies=[[1.2 + 0.2 / 0.3]])
    where = {"step": 0, "total_steps": 1, "key": KEY}
    assert not clamped(Branch() * Branch(), signals, **where, log_q=(Branch() * Branch())(signals, **where)).any()


def test_the_parts_of_a_product_have_its_noise():
    signals = signals_of(torch.zeros(4, 9).tolist(), entropies=torch.arange(36.0).reshape(4, 9).tolist())
    product = Compose((Random(1.0, sigma=0.1), Branch(threshold="p50"), Random(1.0, sigma=0.1)))
    parts = [log_q for _, log_q in product.each(signals, 0, 10, KEY)]
    assert torch.equal(sum(parts), product(signals, 0, 10, KEY)) and not torch.equal(parts[0], parts[2])


def test_factors_leave_out_the_neutral_one():
    assert factors(Branch() * Flat() * Token()) == (Branch(), Token())
    assert factors(Branch()) == (Branch(),) and factors(Flat()) == factors(Compose((Flat(),))) == ()


def test_products():
    product = Branch() * Token() * Random()
    assert isinstance(product, Compose) and [type(part) for part in product.guides] == [Branch, Token, Random]
    assert product.depends_on == "token" and product.needs == {"entropies"}
    assert band_of(product) == pytest.approx((0.6**3, 1.4**3))
    assert (Branch() * Flat()).depends_on == "state" and (Branch() * Placebo(Token())).depends_on == "batch"
    with pytest.raises(TypeError):
        Branch() * 2.0


def test_two_guides_of_a_kind_draw_independent_noise():
    signals, noisy = signals_of(torch.zeros(30, 50).tolist()), Random(eps=1.0, sigma=0.1)
    one, both = q_of(noisy, signals).log(), q_of(noisy * noisy, signals).log()
    pairs = torch.stack([one.flatten(), (both - one).flatten()])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.1


TWELVE = signals_of(torch.arange(12.0).div(4).reshape(3, 4).tolist(), mask=[[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]])
NUMBERED = Rarity(power=1.0, cap=1e6, q_max=1e9)  # log q is the surprisal, so that a quarter of a nat names a token


@pytest.mark.parametrize(
    ("within", "centered", "wanted"),
    [
        ("batch", False, [7, 6, 8, 2, 9, 4, 1, 5, 0]),
        ("length", False, [1, 0, 2, 7, 5, 4, 6, 8, 9]),
        ("batch", True, [n - 14 / 3 for n in (7, 6, 8, 2, 9, 4, 1, 5, 0)]),
        ("row", True, [0, -1, 1, 1.5, -0.5, -1.5, 0.5, -0.5, 0.5]),
    ],
)
def test_where_a_placebo_puts_nine_values(within, centered, wanted):
    """The first is as runs before `within` and `centered` had it; the mean of 0, 1, 2, 4 to 9 is 14/3."""
    where = Signals(TWELVE.old_logps, None, TWELVE.mask, torch.tensor([7, 2, 5]))
    found = Placebo(NUMBERED, within=within, centered=centered)(where, 3, 10, KEY)
    assert (4 * found[where.mask]).tolist() == pytest.approx(wanted, abs=2e-6)


def test_what_a_placebo_says_of_itself():
    assert [Placebo(Branch(), within=within).depends_on for within in ("batch", "length", "row")] == [
        "batch",
        "batch",
        "token",
    ]
    assert Placebo(Branch(threshold="p80"), within="row").depends_on == "batch"
    assert Placebo(Branch(), within="row").looks_ahead and not Placebo(Branch(), within="length").looks_ahead
    assert Placebo(Branch(), centered=True).pays_nothing and not Placebo(Branch()).pays_nothing | Flat().pays_nothing
    assert band_of(Placebo(Branch(), centered=True)) == pytest.approx((0.6 / 1.4, 1.4 / 0.6))
    assert Placebo(Branch(), within="length", centered=True).equation.endswith(
        "permuted over the counted tokens of the batch's rows of one length, over its geometric mean there"
    )


def test_is_flat():
    assert is_flat(Flat()) and is_flat(Flat() * Flat()) and is_flat(Compose(()))
    assert not is_flat(Branch() * Flat()) and not is_flat(Placebo(Flat()))


def test_guides_are_values():
    swapped = {Branch: (0.3, "p80"), Token: (0.2, 0.3), Random: (0.1, 0.2), Rarity: (0.5, 2.0), Placebo: (Branch(), "row")}
    for kind, values in swapped.items():
        with pytest.raises(TypeError, match="positional"):  # two numbers in another order would pass unseen
            kind(*values)
    assert Branch() == Branch(ratio=0.3, threshold=1.2, q_min=0.6, q_max=1.4) and hash(Branch()) == hash(Branch())
    assert Token() == Token(alpha=Token().alpha) and Random(eps=Constant(0.1)) != Random(eps=0.2)
    assert isinstance(Branch(), Guide) and not isinstance(3, Guide)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Branch(q_min=0.0),
        lambda: Branch(q_min=1.2),
        lambda: Token(q_max=math.inf),
        lambda: Branch(threshold="80"),
        lambda: Branch(threshold="p101"),
        lambda: Branch(threshold=math.nan),
        lambda: Branch(ratio=math.inf),
        lambda: Branch(signal="base"),
        lambda: Token(norm="max"),
        lambda: Token(low_quantile=0.9, high_quantile=0.1),
        lambda: Token(alpha="high"),
        lambda: Random(eps=None),
        lambda: Placebo("branch"),
        lambda: Placebo(Branch(), within="rows"),
        lambda: Compose((Branch(), 3)),
    ],
)
def test_refusals(make):
    with pytest.raises(ConfigError):
        make()
