"""Predictions against the votes of several people about each input.

With v_k the votes for class k, q = v / Σ v, p a predictive distribution, and u, h two numbers per
input, such as mutual information and vote entropy::

    vote entropy = H(q)          vote NLL = −Σ_k q_k log p_k ≥ H(q)
    Spearman's ρ = correlation of the ranks of u and h, equal values sharing their mean rank
    Kendall's τ_b = (C − D) / √((P − P_u)(P − P_h))
        over the P pairs of inputs: C ranked alike by both, D ranked oppositely, P_u equal in u

Entropies in nats. ρ and τ_b lie in −1 … 1 and are 0 where one of the two is constant, which ranks
nothing. A bootstrap sample holds some inputs several times; such copies are equal, and so are pairs
of them. What agreement can be expected is limited by how few people voted.

Source: Peterson, Battleday, Griffiths, Russakovsky 2019, "Human uncertainty makes classification
more robust", ICCV, arXiv 1908.07086 (votes); Kendall 1945, "The treatment of ties in ranking
problems", Biometrika 33.
"""

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_probs, check_scores
from bayes_dc.metrics._kind import Kind, mean_kind, tie_groups
from bayes_dc.metrics.uncertainty import entropy

SIGN_ELEMENTS = 1 << 23
"""Signs of pairs that are held at once; 32 MiB of float32."""

_VOTES = (
    "votes must be counts [B, C], whole and not negative, at least one vote in every row{same}; "
    "got {got}."
)
_PAIRS = "{name} must have one number for each of the {n} of {other}; got {got}."


def vote_distribution(votes: Tensor) -> Tensor:
    """Share of the votes for each class.

    Args:
        votes: Counts ``[B, C]``, integers or whole floats.

    Returns:
        Float64 ``[B, C]``, rows sum to 1.

    Raises:
        ValueError: If ``votes`` holds something else, or a row has no vote.
    """
    return _shares(votes, None)


def vote_entropy(votes: Tensor) -> Tensor:
    """Entropy of the votes: how far people disagree about an input.

    ::

        H(v / Σ_k v_k)

    The plug-in estimate: with V votes low by about (classes voted for − 1) / 2V.

    Args:
        votes: Counts ``[B, C]``, integers or whole floats.

    Returns:
        Float64 ``[B]``, nats, 0 … log C, higher where people disagree more.

    Source:
        Peterson et al. 2019, "Human uncertainty makes classification more robust", ICCV, arXiv
        1908.07086.
    """
    return entropy(vote_distribution(votes))


def vote_nll_per_sample(probs: Tensor, votes: Tensor) -> Tensor:
    """Cross-entropy of a prediction with the votes.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        votes: Counts ``[B, C]``, integers or whole floats.

    Returns:
        Float64 ``[B]``, nats, at least the entropy of the votes; ∞ where a class that somebody
        voted for has probability 0.
    """
    probs = check_probs(probs)
    shares = _shares(votes, probs)
    # 0 votes for a class of probability 0 cost nothing
    return -torch.special.xlogy(shares, probs).sum(dim=1)


def vote_nll(probs: Tensor, votes: Tensor) -> Tensor:
    """Mean cross-entropy of predictions with the votes.

    ::

        mean −Σ_k q_k log p_k    q = v / Σ_k v_k

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        votes: Counts ``[B, C]``, integers or whole floats.

    Returns:
        Float64 scalar, nats, lower is better; at least the mean of ``vote_entropy``, its value for
        a network that predicts the votes.

    Source:
        Peterson et al. 2019, "Human uncertainty makes classification more robust", ICCV, arXiv
        1908.07086.
    """
    return VOTE_NLL(probs, votes)


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rank correlation with ties.

    ::

        correlation of the ranks of first and second, equal values at their mean rank

    Args:
        first: One number for each input ``[n]``, floating; may be infinite, not NaN.
        second: The other, ``[n]``.

    Returns:
        Float64 scalar, −1 … 1, symmetric; 1 where both rank the inputs alike, 0 without relation
        and where one of them is constant.

    Source:
        Spearman 1904, "The proof and measurement of association between two things", American
        Journal of Psychology 15.
    """
    return SPEARMAN(first, second)


def kendall_tau_b(first: Tensor, second: Tensor) -> Tensor:
    """Kendall's rank correlation τ_b with ties.

    ::

        (C − D) / √((P − P_1)(P − P_2))    of P pairs C ranked alike, D oppositely, P_i equal in i

    Args:
        first: One number for each input ``[n]``, floating; may be infinite, not NaN.
        second: The other, ``[n]``.

    Returns:
        Float64 scalar, −1 … 1, symmetric; 1 where both rank every pair alike, 0 without relation
        and where one of them is constant. Takes n² steps; a bootstrap interval of R resamples R n².

    Source:
        Kendall 1945, "The treatment of ties in ranking problems", Biometrika 33.
    """
    return KENDALL_TAU_B(first, second)


def _shares(votes: Tensor, probs: Tensor | None) -> Tensor:
    """Shares of the votes, on the device of probs if given, of its shape, or raise."""
    same = "" if probs is None else f", and of the shape of probs, {list(probs.shape)}"
    what = f"{type(votes).__name__}"
    if isinstance(votes, Tensor):
        what = f"shape {list(votes.shape)}, dtype {votes.dtype}"
    known = isinstance(votes, Tensor) and votes.ndim == 2 and votes.numel() > 0
    if not known or votes.dtype == torch.bool or votes.is_complex():
        raise ValueError(_VOTES.format(same=same, got=what))
    if probs is not None and votes.shape != probs.shape:
        raise ValueError(_VOTES.format(same=same, got=what))
    counted = votes.to(device=None if probs is None else probs.device, dtype=torch.float64)
    whole = (counted >= 0) & (counted == counted.floor()) & counted.isfinite()
    wrong = ~(whole.all(dim=1) & (counted > 0).any(dim=1))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        got = f"row {row} with {counted[row].tolist()}"
        raise ValueError(_VOTES.format(same=same, got=got))
    return counted / counted.sum(dim=1, keepdim=True)


def _pair_rows(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two checked vectors of one length."""
    first = check_scores(first, "first", empty=False)
    second = check_scores(second, "second", empty=False).to(first.device)
    if len(first) != len(second):
        text = _PAIRS.format(name="second", n=len(first), other="first", got=len(second))
        raise ValueError(text)
    return first, second


def _mean_ranks(values: Tensor, weights: Tensor) -> Tensor:
    """Ranks less their mean, [R, n], of samples that occur weights [R, n] times."""
    order = values.argsort(stable=True)
    (first, last), ranked = tie_groups(values[order][None]), weights[:, order]
    running = torch.nn.functional.pad(ranked.cumsum(dim=1), (1, 0))  # whole numbers: exact
    # Twice the mean rank of a group is whole, too, and so is its distance from the middle.
    doubled = running[:, first[0]] + running[:, last[0] + 1] - running[:, -1:]
    centred = torch.empty_like(doubled)
    centred[:, order] = doubled
    return centred


def _spearman(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Spearman's ρ of data sets given by weights [R, n]."""
    a, b = _mean_ranks(first, weights), _mean_ranks(second, weights)
    product, own = (weights * a * b).sum(dim=1), (weights * a * a).sum(dim=1)
    return _ratio(product, own, (weights * b * b).sum(dim=1))


def _kendall_tau_b(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Kendall's τ_b of data sets given by weights [R, n]."""
    n = len(first)
    ranks = [value.unique(return_inverse=True)[1].float() for value in (first, second)]
    wide, step = weights.float(), max(1, SIGN_ELEMENTS // n)
    alike = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for start in range(0, n, step):
        part = slice(start, start + step)
        signs = torch.ones((), device=weights.device)
        for rank in ranks:
            signs = signs * (rank[part, None] - rank[None, :]).sign()
        # Sums of n signs times weights: whole, and far below 2**24, so float32 is exact.
        alike += (weights[:, part] * (wide @ signs.T).double()).sum(dim=1)
    pairs = [_untied_pairs(value, weights) for value in (first, second)]
    return _ratio(alike, *pairs)


def _untied_pairs(values: Tensor, weights: Tensor) -> Tensor:
    """Ordered pairs with different values, [R]."""
    group = values.unique(return_inverse=True)[1]
    sizes = weights.new_zeros(len(weights), int(group.max()) + 1).index_add_(1, group, weights)
    return weights.sum(dim=1) ** 2 - (sizes**2).sum(dim=1)


def _ratio(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Quotient product / √(a b), 0 where a or b is."""
    ranks = (a > 0) & (b > 0)
    scale = torch.where(ranks, a * b, 1.0).sqrt()  # one root: exactly a where b is a
    return torch.where(ranks, product / scale, 0.0).clamp(-1.0, 1.0)


VOTE_NLL = mean_kind(vote_nll_per_sample)
SPEARMAN = Kind(_pair_rows, _spearman, weighted=True)
KENDALL_TAU_B = Kind(_pair_rows, _kendall_tau_b, weighted=True)
