"""Steps and disks for hypothesis to draw: sizes and times small enough to read in a failure."""

from hypothesis import strategies as st

from shorthaul.offload.policy.simulation import Disk, Unit


@st.composite
def steps(draw: st.DrawFn, max_units: int = 8, regions: int = 2) -> list[Unit]:
    """Up to `max_units` units, some in regions that can be recomputed, some inputs of those."""
    units = []
    for index in range(draw(st.integers(0, max_units))):
        size_bytes = draw(st.integers(0, 50))
        times = sorted(draw(st.tuples(*[st.integers(0, 40)] * 3)))
        region = draw(st.sampled_from([None, *(f"region {i}" for i in range(regions))]))
        seconds = None if region is None else draw(st.sampled_from([None, 0.5, 1.0, 4.0]))
        units.append(
            Unit(
                f"unit {index}",
                size_bytes,
                max(1, size_bytes // draw(st.integers(1, 2))),
                float(times[0]),
                float(times[1]),
                float(times[2]),
                region,
                seconds,
            )
        )
    return units


def disks() -> st.SearchStrategy[Disk]:
    rates = st.sampled_from([0.5, 1.0, 5.0, 20.0, 1000.0])
    return st.builds(Disk, rates, rates, st.sampled_from([0.0, 0.25]))
