"""`accelerate_loader`: PyG's own loaders, with their sampler replaced by ours."""

from __future__ import annotations

from typing import Any, TypeVar

from shorthaul.errors import SamplingError

Loader = TypeVar("Loader")


def accelerate_loader(loader: Loader) -> Loader:
    """The same loader of PyG, which draws with shorthaul's sampler from now on.

    Batches have the structure that PyG gives them: `n_id`, `e_id`, `input_id`, `batch`, times, counts
    of sampled nodes and edges. Transforms, workers and `filter_per_worker` stay as they are, and
    neither `pyg-lib` nor `torch-sparse` is needed::

        loader = sh.graphs.accelerate_loader(NeighborLoader(data, [15, 10], input_nodes=train))

    Args:
        loader: A `NeighborLoader`, a `LinkNeighborLoader`, of `Data`, `HeteroData` or of shorthaul's
            stores, or an `HGTLoader` of `HeteroData`; it is changed in place.
    """
    from shorthaul.graphs.interop.pyg_hgt_sampler import PyGHGTSampler, is_hgt_sampler
    from shorthaul.graphs.interop.pyg_sampler import PyGSampler

    changed: Any = loader
    for name in ("node_sampler", "link_sampler"):
        if hasattr(changed, name):
            theirs = getattr(changed, name)
            if not isinstance(theirs, PyGSampler | PyGHGTSampler):
                ours = PyGHGTSampler if is_hgt_sampler(theirs) else PyGSampler
                setattr(changed, name, ours(theirs, changed.data))
            return loader
    raise SamplingError(
        f"{type(loader).__name__} has no sampler that could be replaced: pass PyG's NeighborLoader, "
        "LinkNeighborLoader or HGTLoader."
    )
