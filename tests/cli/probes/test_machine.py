"""Reading what Linux tells, from texts as Linux writes them."""

from pathlib import Path

import pytest

from shorthaul.cli.probes.machine import (
    Mount,
    choose_notable_features,
    find_mount,
    find_openmp_libraries,
    read_available_bytes,
    read_busy_share,
    read_last_level_cache_bytes,
    read_processor_limit,
)

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw,size=8g
41 22 0:40 / /mnt/my\040disk rw - xfs /dev/nvme0n1 rw
42 22 0:41 / /srv rw - ext4 /dev/vdb rw
43 22 0:42 /export /srv rw - nfs4 server:/export rw
a line that is no mount
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/tmp", Mount(Path("/"), "ext4", "/dev/vda")),
        ("/dev/shm/spool", Mount(Path("/dev/shm"), "tmpfs", "tmpfs")),
        ("/dev/shmall", Mount(Path("/"), "ext4", "/dev/vda")),
        ("/mnt/my disk/a", Mount(Path("/mnt/my disk"), "xfs", "/dev/nvme0n1")),
        ("/srv/a", Mount(Path("/srv"), "nfs4", "server:/export")),  # the later covers the earlier
    ],
)
def test_the_deepest_mount_holds_the_path(path: str, mount: Mount) -> None:
    assert find_mount(MOUNTS, Path(path)) == mount


def test_no_mounts_no_answer() -> None:
    assert find_mount("", Path("/tmp")) is None


def test_this_machine_has_a_mount_for_its_root() -> None:
    found = find_mount(Path("/proc/self/mountinfo").read_text(), Path("/"))
    assert found is not None
    assert found.point == Path("/")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max 100000\n", 8.0),
        ("200000 100000\n", 2.0),
        ("50000 100000\n", 0.5),
        ("3200000 100000\n", 8.0),  # a quota above the machine
        ("", 8.0),  # no control groups
        ("100000 0\n", 8.0),
    ],
)
def test_a_quota_limits_the_processors(text: str, limit: float) -> None:
    assert read_processor_limit(text, usable=8) == limit


def test_each_openmp_runtime_is_found_once() -> None:
    maps = """\
7f0000000000-7f0000001000 r--p 00000000 08:01 11 /opt/torch/lib/libgomp.so.1
7f0000001000-7f0000002000 r-xp 00001000 08:01 11 /opt/torch/lib/libgomp.so.1
7f0000002000-7f0000003000 r-xp 00000000 08:01 12 /opt/sklearn.libs/libgomp-a34b3233.so.1.0.0
7f0000003000-7f0000004000 r-xp 00000000 08:01 13 /opt/intel/libiomp5.so
7f0000004000-7f0000005000 r-xp 00000000 08:01 14 /usr/lib/llvm/libomp.so.5
7f0000005000-7f0000006000 r-xp 00000000 08:01 15 /usr/lib/libompitrace.txt
7f0000006000-7f0000007000 rw-p 00000000 00:00 0 [heap]
"""
    assert find_openmp_libraries(maps) == (
        "/opt/intel/libiomp5.so",
        "/opt/sklearn.libs/libgomp-a34b3233.so.1.0.0",
        "/opt/torch/lib/libgomp.so.1",
        "/usr/lib/llvm/libomp.so.5",
    )


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        # user nice system idle iowait irq softirq steal guest guest_nice
        ("100 0 50 800 50 0 0 0 0 0", "110 0 55 870 60 0 0 5 0 0", 0.2),
        ("100 0 50 800 50 0 0 0 0 0", "100 0 50 900 50 0 0 0 0 0", 0.0),
        ("100 0 50 800 50 0 0 0 0 0", "200 0 50 800 50 0 0 0 100 0", 1.0),  # guests are users
        ("100 0 50 800 50 0 0 0 0 0", "100 0 50 800 50 0 0 0 0 0", 0.0),  # no time has passed
    ],
)
def test_the_share_of_time_that_others_use(before: str, after: str, share: float) -> None:
    texts = [f"cpu  {each}\ncpu0 1 2 3 4 5\nintr 7\n" for each in (before, after)]
    assert read_busy_share(*texts) == pytest.approx(share)


def test_a_system_that_does_not_tell_is_not_busy() -> None:
    assert read_busy_share("", "") == 0.0


def test_available_memory() -> None:
    meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   22000000 kB\n"
    assert read_available_bytes(meminfo) == 22_000_000 * 1024
    assert read_available_bytes("") == 0


def test_last_level_caches_are_summed_once_per_group_of_sharers(tmp_path: Path) -> None:
    def add(cpu: int, index: int, level: int, size: str, sharers: str) -> None:
        directory = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        directory.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", sharers)):
            (directory / name).write_text(f"{text}\n")

    for cpu in range(4):
        add(cpu, 0, 1, "32K", str(cpu))
        add(cpu, 3, 3, "32768K", "0-1" if cpu < 2 else "2-3")
    assert read_last_level_cache_bytes(tmp_path) == 2 * 32 * 2**20
    assert read_last_level_cache_bytes(tmp_path / "nothing") == 0


def test_features_that_kernels_use_in_the_order_of_the_list() -> None:
    assert choose_notable_features(("fma", "3dnow", "avx2", "avx")) == ("avx", "avx2", "fma")
