"""From a SQLite file to a trained model: which functions of the standard library are documented?

    python -m examples.relational_database.train

Rows become nodes, foreign keys become edges, and PyG's heterogeneous GraphSAGE, accelerated, is
trained on samples that hold nothing defined after the function that is asked about.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv

import shorthaul as sh
from examples.relational_database.standard_library import write_database

WIDTH = 32
TABLES = {
    "modules": sh.graphs.Table(primary_key="id", columns={"name": "text", "lines": "number"}),
    "classes": sh.graphs.Table(
        primary_key="id",
        foreign_keys={"module": "modules"},
        time="line",
        columns={"name": "text", "bases": "number"},
    ),
    "functions": sh.graphs.Table(
        primary_key="id",
        foreign_keys={"module": "modules", "class": "classes"},
        time="line",
        columns={"name": "text", "arguments": "number", "lines": "number", "is_private": "number"},
    ),
    "calls": sh.graphs.Table(
        foreign_keys={"caller": "functions", "callee": "functions"},
        time="line",
        columns={"line": "number"},
    ),
}


class RelationalModel(nn.Module):
    """RelBench's baseline: a layer for the rows of each table, then GraphSAGE for each foreign key."""

    def __init__(self, made: sh.graphs.DatabaseGraph) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict(
            {f"of_{name}": nn.Linear(rows.shape[1], WIDTH) for name, rows in made.features.items()}
        )
        self.layers = nn.ModuleList(
            HeteroConv({tuple(each): SAGEConv(WIDTH, WIDTH) for each in made.graph.relations})
            for _ in range(2)
        )
        self.answer = nn.Linear(WIDTH, 1)

    def forward(self, batch: sh.graphs.MiniBatch) -> Tensor:
        """A score for each seed of a batch, as it was given."""
        typed = batch.to_hetero()
        assert typed.x_dict is not None
        x = {name: self.inputs[f"of_{name}"](rows) for name, rows in typed.x_dict.items()}
        for layer, block in zip(self.layers, typed.blocks, strict=True):
            found = layer(block.pairs(x), block.edge_index_dict)
            x = {name: rows.relu() for name, rows in found.items()}
        return self.answer(typed.seeds(x))[batch.seed_rows.long(), 0]


def main(epochs: int = 3, most_modules: int = 60) -> float:
    """Train, and return the share of functions in later modules that are told right."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.db"
        write_database(path, most_modules)
        made = sh.graphs.from_tables(TABLES, database=path)
        documented = torch.tensor(_read_column(path, "has_docstring"))
        module = torch.tensor(_read_column(path, "module"))
    print(made.graph.summary())
    is_train = module % 4 != 3  # whole modules are kept for the end
    functions = torch.arange(len(documented))
    sampler = sh.NeighborSampler(made.graph, [10, 5], node_times="time")
    model = RelationalModel(made)
    print(sh.relational.accelerate(model).summary())

    def load(rows: Tensor, *, shuffle: bool) -> sh.MiniBatchLoader:
        labels, seeds = documented[rows].float(), ("functions", rows)
        options = {"batch_size": 128, "fan_outs": sampler, "shuffle": shuffle}
        return sh.MiniBatchLoader(
            made.graph, made.features, seeds=seeds, seed_labels=labels, **options
        )

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for batch in load(functions[is_train], shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch.labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {float(loss.detach()):.3f}")
    with torch.no_grad():
        told = [
            (model(each) > 0) == each.labels.bool()
            for each in load(functions[~is_train], shuffle=False)
        ]
    accuracy = float(torch.cat(told).float().mean())
    share = float(documented[~is_train].float().mean())
    print(f"told right: {accuracy:.1%}; always the same answer: {max(share, 1 - share):.1%}")
    return accuracy


def _read_column(path: Path, column: str) -> list[int]:
    with sqlite3.connect(path) as database:
        rows = database.execute(f"SELECT {column} FROM functions ORDER BY id").fetchall()
    database.close()
    return [row[0] for row in rows]


if __name__ == "__main__":
    main()
