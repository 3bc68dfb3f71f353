"""One alignment from two: that of the translation model and that of the model of the other direction.

intersection    links that both have
union           links that either has
grow_diag       the intersection, grown by links of the union that touch one already there, also by a corner, while they
                cover a word that is not covered yet (Och and Ney 2003, section 5; Koehn, Och and Marcu 2003, section 4)
"""

from __future__ import annotations

from collections.abc import Callable

from seq2seq.alignment.links import Links

NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, backward: Links) -> Links:
    """Links that both have."""
    return forward & backward


def union(forward: Links, backward: Links) -> Links:
    """Links that either has."""
    return forward | backward


def grow_diag(forward: Links, backward: Links) -> Links:
    """The intersection and its neighbours in the union, over and over until nothing is added; links are visited in their order.

    >>> sorted(grow_diag(frozenset({(0, 0), (1, 1), (5, 0)}), frozenset({(0, 0), (2, 1)})))
    [(0, 0), (1, 1), (2, 1)]
    """
    candidates, grown = sorted(forward | backward), set(forward & backward)
    sources, targets = {i for i, _ in grown}, {j for _, j in grown}
    size = -1
    while len(grown) > size:
        size = len(grown)
        for i, j in candidates:
            if (i, j) not in grown:
                continue
            for down, right in NEIGHBOURS:
                link = source, target = i + down, j + right
                if link in forward | backward and (source not in sources or target not in targets):
                    grown.add(link)
                    sources.add(source)
                    targets.add(target)
    return frozenset(grown)


SYMMETRIZATIONS: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag": grow_diag,
}
