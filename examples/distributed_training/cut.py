"""Cut a graph into parts, once, on one machine; `train.py` trains on them.

    python examples/distributed_training/cut.py parts/ --parts 4

The graph is the source of the Python standard library on this machine, every relation also backwards; the
task is to tell what a function gives back. For a graph of your own `shorthaul partition` does the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shorthaul as sh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the parts are written")
    parser.add_argument("--parts", type=int, default=4, help="as many ranks may train, or fewer")
    parser.add_argument("--modules", type=int, default=150, help="of the standard library")
    options = parser.parse_args()
    data = sh.datasets.python_graph(options.modules).with_reversed()
    graph = sh.RelationalGraph.from_edge_index(
        data.edge_index, data.edge_type, num_nodes=data.num_nodes
    )
    report = sh.distributed.partition(
        graph,
        options.folder,
        options.parts,
        features=data.features,
        labels=data.labels,
        seeds=data.train,
        hot=0.05,
        fan_outs=(10, 10),
        batch_size=256,
    )
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {len(data.train):,} functions to learn "
        f"from; {report.cut_share:.1%} of the edges are between the {options.parts} parts"
    )


if __name__ == "__main__":
    main()
