"""Which tokens survive top-k, top-p, typical-p and min-p: four bounds a row instead of a filtered copy of its scores.

In this order, each on the renormalised survivors of the one before, and each leaving one token at least. With u as in
`_sampling`:

    top-k      the k smallest u, and whatever equals the k-th
    top-p      the fewest tokens of smallest u whose probability reaches p; of several that equal the last one, those of
               the highest ids (Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020)
    typical-p  the tokens of smallest |u - mean(u)| until their probability reaches the mass, and whatever equals the
               last: |u - mean(u)| is |-log p - H|, the distance from the entropy (Meister et al., "Locally Typical
               Sampling", TACL 2023)
    min-p      p >= min_p * max(p) (Nguyen et al., "Turning Up the Heat", 2024)

Layouts: `scores` float32 `[N, vocab]` and `best` float32 `[N, splits]` of `logits_process`; `bounds` float32 `[N, 4]`:
(largest, first_id, centre, radius) says that v survives if

    (u < largest, or u = largest and v >= first_id) and |u - centre| <= radius

Rows without a filter get bounds that keep every token that is not excluded.

Called once a step. Bytes floor: N * vocab * 4 for the rows with a filter.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ._register import register
from ._sampling import LARGEST, Flags, Floats, Ints, distance, mass, survives


def survivors_torch(scores: Tensor, best: Tensor, rows: Tensor, floats: Tensor, ints: Tensor, bounds: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Sorts."""
    bounds.copy_(torch.tensor([LARGEST, 0.0, 0.0, torch.inf]))
    highest = best.amax(dim=1)
    chosen = ((ints[rows, Ints.FLAGS] & Flags.FILTERS != 0) & highest.isfinite()).nonzero().squeeze(1)
    if chosen.numel() == 0:
        return
    parameters, found = floats[rows[chosen]], bounds[chosen]
    u = distance(scores[chosen], highest[chosen], parameters[:, Floats.TEMPERATURE])
    _top_k(u, ints[rows[chosen], Ints.TOP_K].to(torch.int64), found)
    _top_p(u, parameters[:, Floats.TOP_P], found)
    _typical_p(u, parameters[:, Floats.TYPICAL_P], found)
    _min_p(u, parameters[:, Floats.MIN_P], found)
    bounds[chosen] = found


def _top_k(u: Tensor, k: Tensor, bounds: Tensor) -> None:
    wanted = k > 0
    if not wanted.any():
        return
    k = k.clamp(1, u.shape[1])
    smallest = u.topk(int(k[wanted].max()), dim=1, largest=False).values
    last = smallest.gather(1, k.clamp(max=smallest.shape[1]).unsqueeze(1) - 1).squeeze(1)
    bounds[:, 0] = torch.where(wanted, last.clamp(max=LARGEST), bounds[:, 0])


def _top_p(u: Tensor, p: Tensor, bounds: Tensor) -> None:
    for i in (p < 1).nonzero().squeeze(1).tolist():
        left, weights = _ascending(u[i], survives(u[i : i + 1], bounds[i : i + 1])[0])
        cumulative = weights.cumsum(0)
        target = share(cumulative[-1], p[i])
        last = left[torch.searchsorted(cumulative, target)]
        before = weights[left < last].sum()
        kept = torch.ceil((target - before).double() / mass(last).double()).to(torch.int64)
        bounds[i, 0] = last
        bounds[i, 1] = (u[i] == last).nonzero().squeeze(1)[-int(kept)]


def _typical_p(u: Tensor, typical_p: Tensor, bounds: Tensor) -> None:
    for i in (typical_p < 1).nonzero().squeeze(1).tolist():
        left = u[i][survives(u[i : i + 1], bounds[i : i + 1])[0]]
        weights = mass(left)
        centre = ((weights.double() * left).sum() / weights.sum()).float()
        distances, order = (left - centre).abs().sort()
        cumulative = weights[order].cumsum(0)
        bounds[i, 2] = centre
        bounds[i, 3] = distances[torch.searchsorted(cumulative, share(cumulative[-1], typical_p[i]))]


def _min_p(u: Tensor, min_p: Tensor, bounds: Tensor) -> None:
    wanted = min_p > 0
    if not wanted.any():
        return
    smallest = u.masked_fill(~survives(u, bounds), torch.inf).amin(dim=1)
    limit = smallest - min_p.clamp(min=torch.finfo(torch.float32).tiny).log()
    tighter = wanted & (limit < bounds[:, 0])
    bounds[:, 0] = torch.where(tighter, limit, bounds[:, 0])
    bounds[:, 1] = torch.where(tighter, 0.0, bounds[:, 1])


def _ascending(u: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The survivors' u in ascending order with their masses."""
    left = u[kept].sort().values
    return left, mass(left)


def share(total: Tensor, fraction: Tensor) -> Tensor:
    """The integer mass that reaches `fraction` of `total`: at least one unit, at most all."""
    return (total.double() * fraction.double()).ceil().to(torch.int64).clamp(min=torch.ones_like(total), max=total)


survivors = register(survivors_torch, mutates=("bounds",))
"""survivors(scores, best, rows, floats, ints, bounds)"""
