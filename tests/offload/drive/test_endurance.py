"""Ratings as users write them, counts that survive processes, and drives told apart."""

import datetime
import json
import logging
import math
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import EnduranceError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.offload.drive.endurance import (
    Device,
    Endurance,
    WearLimit,
    WriteLedger,
    estimate_bytes_per_day,
    identify_device,
)

TB = 10**12
DRIVE = Device("serial/with:odd characters", "nvme0n1")


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        (None, Endurance()),
        ({}, Endurance()),
        (Endurance(daily_bytes=5), Endurance(daily_bytes=5)),
        ({"tbw": "600TB"}, Endurance(rated_bytes=600 * TB)),
        ({"dwpd": 1, "capacity": "2TB"}, Endurance(rated_bytes=2 * TB * 365 * 5)),
        (
            {"dwpd": 0.5, "capacity": "2TB", "warranty_years": 3},
            Endurance(rated_bytes=TB * 365 * 3),
        ),
        (
            {"tbw": 10, "waf": 2, "already_written": "4B", "daily": "1kB"},
            Endurance(10, 1000, 2.0, 4),
        ),
    ],
)
def test_knobs_are_read(knobs, expected: Endurance) -> None:
    assert Endurance.parse(knobs) == expected


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"tbw": "lots"}, "endurance tbw: expected bytes such as 4096, '512 MB' or '4GiB'"),
        ({"tbw": 1, "dwpd": 1}, "give either tbw, or dwpd with capacity"),
        ({"dwpd": 1}, "give the drive's capacity too"),
        ({"capacity": "2TB"}, "capacity says nothing without dwpd"),
        ({"dwpd": -1, "capacity": 1}, "endurance dwpd must be a positive number, got -1"),
        ({"waf": "two"}, "endurance waf must be a positive number, got 'two'"),
        ({"tbv": 1}, "endurance has no knob tbv; there are tbw, dwpd"),
    ],
)
def test_knobs_that_say_nothing_usable_are_refused(knobs, message: str) -> None:
    with pytest.raises(EnduranceError, match=message):
        Endurance.parse(knobs)


def test_the_worked_case_of_a_small_model() -> None:
    # 948 MiB every 14.8 s: 5.8 TB a day, and a 600-TB drive lasts 103 days.
    per_day = estimate_bytes_per_day(948 * 2**20, 14.8)
    assert per_day == pytest.approx(5.8e12, rel=0.01)
    drive = Endurance.parse({"tbw": "600TB"})
    assert drive.days_left(bytes_per_day=per_day) == pytest.approx(103, abs=1)
    compressed = drive.days_left(bytes_per_day=per_day / 1.25)
    assert compressed == pytest.approx(129, abs=1)


@given(
    st.integers(1, 10**15),
    st.integers(0, 10**15),
    st.floats(0.5, 5),
    st.floats(1e6, 1e14),
)
def test_writing_until_the_day_that_is_named_uses_the_rating_up(
    rated_bytes: int, written_bytes: int, waf: float, per_day: float
) -> None:
    drive = Endurance(rated_bytes, write_amplification=waf)
    days = drive.days_left(bytes_per_day=per_day, written_bytes=written_bytes)
    assert days >= 0
    used = waf * (written_bytes + days * per_day)
    assert used == pytest.approx(max(rated_bytes, waf * written_bytes), rel=1e-6)


def test_without_a_rating_no_day_is_named_and_without_writes_no_day_comes() -> None:
    assert Endurance().days_left(bytes_per_day=1.0) is None
    assert Endurance().worn_share(5) is None
    assert Endurance(rated_bytes=1).days_left(bytes_per_day=0) == math.inf


def test_a_daily_limit_is_used_up_and_never_negative() -> None:
    limited = Endurance(daily_bytes=100)
    assert [limited.bytes_left_today(written) for written in (0, 40, 100, 200)] == [100, 60, 0, 0]
    assert Endurance().bytes_left_today(10**18) is None


class Calendar:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.day = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)

    def __call__(self) -> datetime.datetime:
        return self.day


def test_counts_survive_and_days_are_kept_apart(tmp_path: Path) -> None:
    calendar = Calendar()
    WriteLedger(DRIVE, tmp_path, calendar).add(10)
    calendar.day += datetime.timedelta(days=1)
    again = WriteLedger(DRIVE, tmp_path, calendar)
    assert again.written_today_bytes() == 0
    assert again.add(5).total_bytes == 15
    assert again.read().by_day == {"2024-05-01": 10, "2024-05-02": 5}
    assert again.written_today_bytes() == 5


def test_a_step_gets_its_share_of_what_is_left_today_before_all_of_it(tmp_path: Path) -> None:
    calendar = Calendar()  # noon
    ledger = WriteLedger(DRIVE, tmp_path, calendar)
    assert WearLimit(Endurance(), ledger).limits_per_step(1.0) == (None,)
    limit = WearLimit(Endurance(daily_bytes=43_200_000), ledger)
    assert limit.limits_per_step(2.0) == (2_000, 43_200_000)
    assert limit.limits_per_step(1e9) == (43_200_000, 43_200_000)


def test_days_are_forgotten_after_a_month_and_the_total_is_not(tmp_path: Path) -> None:
    calendar = Calendar()
    ledger = WriteLedger(DRIVE, tmp_path, calendar)
    for _ in range(40):
        ledger.add(1)
        calendar.day += datetime.timedelta(days=1)
    assert len(ledger.read().by_day) == 31
    assert ledger.read().total_bytes == 40


def test_drives_have_ledgers_of_their_own(tmp_path: Path) -> None:
    WriteLedger(DRIVE, tmp_path).add(10)
    assert WriteLedger(Device("another", "nvme1n1"), tmp_path).read().total_bytes == 0


def test_writers_that_count_at_once_lose_nothing(tmp_path: Path) -> None:
    # The lock belongs to an opened file, so ledgers in threads exclude each other as processes do.
    def add_often() -> None:
        ledger = WriteLedger(DRIVE, tmp_path)
        for _ in range(50):
            ledger.add(3)

    threads = [threading.Thread(target=add_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert WriteLedger(DRIVE, tmp_path).read().total_bytes == 4 * 50 * 3
    assert sorted(path.suffix for path in (tmp_path / "written").iterdir()) == [".json", ".lock"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"total_bytes": 1}', '{"by_day": 3}'])
def test_a_damaged_count_is_set_aside_and_said(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = WriteLedger(DRIVE, tmp_path)
    ledger.add(10)
    ledger.path.write_text(content)
    with caplog.at_level(logging.WARNING, "shorthaul"):
        assert ledger.add(7).total_bytes == 7
    assert "cannot be read" in caplog.text
    assert ledger.path.with_suffix(".damaged").read_text() == content


def test_the_file_can_be_read_by_people(tmp_path: Path) -> None:
    ledger = WriteLedger(DRIVE, tmp_path, Calendar())
    ledger.add(10)
    assert json.loads(ledger.path.read_text()) == {
        "device": {"key": DRIVE.key, "name": "nvme0n1"},
        "total_bytes": 10,
        "by_day": {"2024-05-01": 10},
    }


def test_negative_writes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnduranceError, match="cannot be negative"):
        WriteLedger(DRIVE, tmp_path).add(-1)


@pytest.fixture
def fake_sys(tmp_path: Path) -> Path:
    """A /sys in which the drive of `tmp_path` is partition 1 of an NVMe drive."""
    number = tmp_path.stat().st_dev
    drive = tmp_path / "sys" / "devices" / "nvme0n1"
    (drive / "device").mkdir(parents=True)
    (drive / "nvme0n1p1").mkdir()
    (drive / "nvme0n1p1" / "partition").write_text("1\n")
    links = tmp_path / "sys" / "dev" / "block"
    links.mkdir(parents=True)
    (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(drive / "nvme0n1p1")
    return tmp_path / "sys"


def test_a_partition_is_known_by_its_drive(tmp_path: Path, fake_sys: Path) -> None:
    drive = fake_sys / "devices" / "nvme0n1"
    (drive / "device" / "model").write_text("Fast Drive 2TB   \n")
    (drive / "device" / "serial").write_text("S123 \n")
    assert identify_device(tmp_path, fake_sys) == Device(
        "Fast Drive 2TB S123", "nvme0n1", "Fast Drive 2TB"
    )
    (drive / "wwid").write_text("eui.0025\n")  # surer than a serial number
    assert identify_device(tmp_path, fake_sys).key == "Fast Drive 2TB eui.0025"


def test_a_drive_without_a_number_is_known_by_its_name(tmp_path: Path, fake_sys: Path) -> None:
    assert identify_device(tmp_path, fake_sys) == Device("block-nvme0n1", "nvme0n1")


def test_a_file_system_without_a_drive_is_known_by_its_device_number(tmp_path: Path) -> None:
    assert identify_device(tmp_path, tmp_path / "no sys").key.startswith("filesystem-")


def test_the_drive_of_this_machine_is_found(tmp_path: Path) -> None:
    assert identify_device(tmp_path).key


def test_the_daily_limit_begins_again_at_midnight(tmp_path: Path) -> None:
    calendar = Calendar()
    limit = WearLimit(Endurance(daily_bytes=100), WriteLedger(DRIVE, tmp_path, calendar))
    limit.note_written(90)
    assert limit.refusal(20) is not None
    calendar.day += datetime.timedelta(days=1)
    assert limit.left_bytes == 100
    assert limit.refusal(20) is None
    limit.note_written(30)
    assert limit.left_bytes == 70
    limit.save()
    assert limit.ledger.read().by_day == {"2024-05-01": 90, "2024-05-02": 30}


def test_a_count_that_cannot_be_saved_goes_on_in_memory_and_that_is_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("a file where the directory should be")
    limit = WearLimit(Endurance(), WriteLedger(DRIVE, state))
    limit.note_written(WearLimit.SYNC_BYTES)
    limit.note_written(5)
    assert limit.save().total_bytes == WearLimit.SYNC_BYTES + 5
    assert any(str(state) in each.what for each in taken_fallbacks())
    state.unlink()
    assert limit.save().total_bytes == WearLimit.SYNC_BYTES + 5
    assert limit.ledger.read().total_bytes == WearLimit.SYNC_BYTES + 5


def test_a_limit_that_was_asked_for_is_held_to_without_the_file_and_refused_before(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    limit = WearLimit(Endurance(daily_bytes=100), WriteLedger(DRIVE, state))
    shutil.rmtree(state)
    state.write_text("in the way")
    limit.note_written(70)
    limit.save()
    assert limit.left_bytes == 30
    with pytest.raises(EnduranceError, match="cannot be counted"):
        WearLimit(Endurance(daily_bytes=100), WriteLedger(DRIVE, state))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_counts_only_what_it_wrote_itself(tmp_path: Path) -> None:
    limit = WearLimit(Endurance(), WriteLedger(DRIVE, tmp_path))
    limit.note_written(1000)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            limit.note_written(1)
            limit.save()
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert limit.save().total_bytes == 1004


def test_a_limit_that_is_used_up_is_said_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calendar = Calendar()
    limit = WearLimit(Endurance(daily_bytes=100), WriteLedger(DRIVE, tmp_path, calendar))
    assert limit.refusal(100) is None
    for _ in range(3):
        assert "today's writes" in str(limit.refusal(101))
    assert [each.message for each in caplog.records] == [
        "endurance: activations stay in memory until midnight UTC: of the 100 B that may be written "
        "to nvme0n1 per day 100 B are left, and 101 B were to be written"
    ]
    calendar.day += datetime.timedelta(days=1)
    limit.refusal(101)
    assert len(caplog.records) == 2
