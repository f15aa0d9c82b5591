"""The contract suite of storage engines as the package ships it, and interrupts at every line of ours."""

from __future__ import annotations

import numpy as np

from shorthaul.storage.testing import contract
from shorthaul.storage.testing.contract import content_of, wait_until
from tests.injected_interrupts import find_places, run_interrupted


class StorageEngineContract(contract.StorageEngineContract):
    def test_an_interrupt_at_any_line_arrives_and_leaves_nothing(self, engine, scratch):
        content = np.frombuffer(content_of(3 * 4096), np.uint8)
        offsets, back = np.arange(3) * 4096, np.empty_like(content)

        def work():
            engine.write(scratch, 0, content).wait()
            ticket = engine.read_many(scratch, offsets, 4096, back, offsets)
            engine.cancel(engine.read(scratch, 0, np.empty(4096, np.uint8)))
            ticket.wait()

        work()
        arrived = 0
        for place in find_places(work, "storage/"):
            arrived += run_interrupted(work, place)
            back[:] = 0
            work()
            assert np.array_equal(back, content), place
        assert arrived > 20
        wait_until(lambda: engine.stats().in_flight_bytes == 0 and scratch._requests == 0)
