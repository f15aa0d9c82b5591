"""Tasks of RelBench's form: seeds and pairs that train, and see nothing from the future."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shorthaul as sh
from shorthaul.errors import DatabaseError
from shorthaul.graphs.databases.relbench import TaskLinks, TaskSeeds

pytest.importorskip("duckdb")
pandas = pytest.importorskip("pandas")

START = pandas.Timestamp("2020-01-01")
RNG = np.random.default_rng(0)


def _days(low: int, high: int, count: int) -> Any:
    return START + pandas.to_timedelta(RNG.integers(low, high, count), "D")


USERS = pandas.DataFrame({"user": np.arange(20) + 50, "age": RNG.integers(18, 80, 20)})
THINGS = pandas.DataFrame({"thing": np.arange(8)[::-1], "size": RNG.random(8)})
SOLD = pandas.DataFrame(
    {
        "buyer": RNG.integers(50, 70, 300),
        "what": RNG.integers(0, 8, 300),
        "price": RNG.random(300),
        "date": _days(0, 100, 300),
    }
)
DATABASE = SimpleNamespace(
    table_dict={
        "users": SimpleNamespace(
            df=USERS, pkey_col="user", fkey_col_to_pkey_table={}, time_col=None
        ),
        "things": SimpleNamespace(
            df=THINGS, pkey_col="thing", fkey_col_to_pkey_table={}, time_col=None
        ),
        "sold": SimpleNamespace(
            df=SOLD,
            pkey_col=None,
            fkey_col_to_pkey_table={"buyer": "users", "what": "things"},
            time_col="date",
        ),
    }
)
ASKED = pandas.DataFrame({"user": RNG.integers(50, 70, 40), "date": _days(20, 80, 40)})


def _seen(row: int) -> int:
    """What a user had bought when the question was asked."""
    mine = SOLD["buyer"] == ASKED["user"][row]
    return int((mine & (SOLD["date"] <= ASKED["date"][row])).sum())


def test_an_entity_task_trains_with_nothing_from_the_future() -> None:
    asked = ASKED.assign(churn=RNG.integers(0, 2, 40))
    task = SimpleNamespace(
        entity_col="user",
        entity_table="users",
        time_col="date",
        target_col="churn",
        get_table=lambda split: SimpleNamespace(df=asked),
    )
    made = sh.graphs.from_relbench(DATABASE)
    rows = sh.graphs.read_task(made, task, "train")
    assert isinstance(rows, TaskSeeds)
    loader = sh.MiniBatchLoader(
        made.graph,
        made.features,
        seeds=rows.seeds,
        times=rows.times,
        seed_labels=rows.labels,
        batch_size=16,
        fan_outs=sh.NeighborSampler(made.graph, [-1], node_times="time"),
    )
    for batch in loader:
        assert batch.labels is not None
        assert batch.inputs is not None
        assert batch.labels.tolist() == asked["churn"].to_numpy()[batch.inputs].tolist()
        for place, row in enumerate(batch.inputs.tolist()):
            assert int(batch.blocks[0].degrees()[place]) == _seen(row)


def _link_task(asked: Any) -> SimpleNamespace:
    return SimpleNamespace(
        src_entity_col="user",
        src_entity_table="users",
        dst_entity_col="bought",
        dst_entity_table="things",
        time_col="date",
        get_table=lambda split: SimpleNamespace(df=asked),
    )


def test_a_recommendation_task_becomes_pairs_that_train() -> None:
    answers = [RNG.choice(8, int(count), replace=False) for count in RNG.integers(0, 4, 40)]
    asked = ASKED.assign(bought=answers)
    made = sh.graphs.from_relbench(DATABASE)
    links = sh.graphs.read_task(made, _link_task(asked), "train")
    assert isinstance(links, TaskLinks)
    assert tuple(links.relation) == ("users", "asked", "things")
    assert made.graph.num_relations == 4  # as it was
    expected = [(row, 7 - thing) for row, own in enumerate(answers) for thing in own.tolist()]
    things = made.graph.nodes_of("things").start
    assert [*zip(links.rows.tolist(), (links.targets - things).tolist(), strict=True)] == expected
    users = made.graph.nodes_of("users").start
    assert links.seeds.tolist() == (asked["user"].to_numpy() - 50 + users).tolist()
    loader = sh.LinkLoader(
        links.graph,
        made.features,
        pairs=links.pairs,
        relations=links.relation,
        times=links.pair_times,
        batch_size=16,
        fan_outs=sh.NeighborSampler(links.graph, [-1], node_times="time"),
        negatives=sh.NegativeSampler(links.graph),
    )
    checked = 0
    for batch in loader:
        assert batch.inputs is not None
        (block,), degrees = batch.blocks, batch.blocks[0].degrees()
        assert bool((block.relations < 4).all())
        for place, pair in enumerate(batch.inputs.tolist()):
            row, thing = expected[pair]
            assert int(degrees[batch.sources[place]]) == _seen(row)
            true, false = (batch.targets[each] for each in (place, place + batch.num_positives))
            assert int(batch.seeds[true]) == things + thing
            assert int(batch.seeds[false]) - things in {*range(8)} - {thing}
            checked += 1
    assert checked == len(expected) > 20


def test_hidden_answers_leave_the_questions() -> None:
    made = sh.graphs.from_relbench(DATABASE)
    links = sh.graphs.read_task(made, _link_task(ASKED), "test")
    assert isinstance(links, TaskLinks)
    assert len(links.seeds) == len(links.times) == 40
    assert links.rows.numel() == links.targets.numel() == 0


def test_a_name_that_a_foreign_key_has_is_not_taken_twice() -> None:
    table = SimpleNamespace(
        df=pandas.DataFrame({"user": [1, 2], "asked": [2, None]}),
        pkey_col="user",
        fkey_col_to_pkey_table={"asked": "users"},
        time_col=None,
    )
    made = sh.graphs.from_relbench(SimpleNamespace(table_dict={"users": table}))
    asked = pandas.DataFrame({"user": [1], "date": [START], "bought": [[2]]})
    task = _link_task(asked)
    task.dst_entity_table = "users"
    links = sh.graphs.read_task(made, task, "train")
    assert isinstance(links, TaskLinks)
    assert links.relation.name == "asked_again"


def test_what_is_no_task_is_named() -> None:
    made = sh.graphs.from_relbench(DATABASE)
    told = "it has no `entity_col`; entity tasks and recommendation tasks of RelBench are read"
    with pytest.raises(DatabaseError, match=told):
        sh.graphs.read_task(made, SimpleNamespace(), "train")
    with pytest.raises(DatabaseError, match="it has no `src_entity_col`"):
        sh.graphs.read_task(made, SimpleNamespace(src_entity_table="users"), "train")
