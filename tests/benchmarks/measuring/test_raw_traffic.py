"""The traffic moves what it says, each time it is entered."""

from benchmarks.measuring.raw_traffic import PIECE_BYTES, RawTraffic


def test_bytes_are_written_and_read_each_time() -> None:
    traffic = RawTraffic(PIECE_BYTES + 1)
    assert traffic.length_bytes == 2 * PIECE_BYTES
    for times in (1, 2):
        with traffic:
            pass
        assert traffic.moved_bytes == times * 2 * traffic.length_bytes
    traffic.close()
