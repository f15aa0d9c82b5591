"""Settings: Python's value, then the environment, then the default."""

import os
import tempfile
import threading
from pathlib import Path

import pytest

from shorthaul.errors import SettingError, ShorthaulError, UnknownSettingError
from shorthaul.settings import Settings


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of its own for each test, in an environment that sets none."""
    for each in Settings.all():
        monkeypatch.delenv(each.environment, raising=False)
    return Settings()


def test_defaults(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    assert settings.cache_directory == Path("/home/ada/.cache/shorthaul")
    assert settings.cache_limit_bytes == 2 * 2**30
    assert settings.scratch_directory == Path(tempfile.gettempdir())
    assert settings.engine == "auto"
    assert settings.kernels == "auto"
    assert settings.autotune == "on"
    assert settings.compile_limit_seconds == 300.0
    assert settings.progress == "auto"


def test_every_default_is_a_value_that_could_be_set(settings: Settings) -> None:
    for each in Settings.all():
        value = getattr(settings, each.name)
        settings.set(**{each.name: value})
        assert getattr(settings, each.name) == value


def test_the_environment_is_read_at_each_use(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTHAUL_ENGINE", "thread")
    assert settings.engine == "thread"
    monkeypatch.setenv("SHORTHAUL_ENGINE", "uring")
    assert settings.engine == "uring"
    monkeypatch.setenv("SHORTHAUL_CACHE_LIMIT", "4GiB")
    assert settings.cache_limit_bytes == 4 * 2**30


def test_python_wins_over_the_environment_until_it_gives_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTHAUL_ENGINE", "thread")
    settings.set(engine="memory")
    assert settings.engine == "memory"
    settings.set(engine=None)
    assert settings.engine == "thread"


def test_assignment_is_the_same_as_set(settings: Settings) -> None:
    settings.cache_limit_bytes = "1 MiB"
    assert settings.cache_limit_bytes == 2**20
    with settings.override(cache_limit_bytes=5):
        assert settings.cache_limit_bytes == 5
    with pytest.raises(SettingError):
        settings.engine = "fast"


def test_a_misspelt_assignment_is_an_error(settings: Settings) -> None:
    with pytest.raises(AttributeError, match="engin"):
        settings.engin = "thread"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "engine",
            "fast",
            "settings.engine is 'fast', but expected one of auto, uring, thread, memory.",
        ),
        ("engine", 3, "settings.engine is '3', but expected one of auto, uring, thread, memory."),
        (
            "cache_limit_bytes",
            "much",
            "settings.cache_limit_bytes is 'much', but expected bytes such as '2GiB'.",
        ),
        (
            "cache_limit_bytes",
            -1,
            "settings.cache_limit_bytes is '-1', but expected bytes such as '2GiB'.",
        ),
        ("cache_directory", "", "settings.cache_directory is '', but expected a directory."),
        (
            "scratch_directory",
            "~nobody-of-this-name/x",
            "settings.scratch_directory is '~nobody-of-this-name/x', but expected a directory.",
        ),
    ]
    + [
        (
            "compile_limit_seconds",
            value,
            f"settings.compile_limit_seconds is '{value}', "
            "but expected a positive number of seconds.",
        )
        for value in ("soon", 0, -1.5, "inf", "nan")
    ],
)
def test_bad_values_are_refused(settings: Settings, name: str, value: object, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        settings.set(**{name: value})
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ShorthaulError)


def test_a_bad_environment_variable_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTHAUL_AUTOTUNE", "perhaps")
    with pytest.raises(SettingError) as caught:
        _ = settings.autotune
    assert str(caught.value) == (
        "SHORTHAUL_AUTOTUNE is 'perhaps', but expected one of on, off, force."
    )


def test_an_unknown_name_is_refused_with_the_known_ones(settings: Settings) -> None:
    with pytest.raises(UnknownSettingError, match="there is no setting `speed`; there are cache_d"):
        settings.set(speed="high")


def test_when_one_value_is_refused_none_is_set(settings: Settings) -> None:
    with pytest.raises(SettingError):
        settings.set(engine="thread", autotune="perhaps")
    assert settings.engine == "auto"
    with pytest.raises(SettingError), settings.override(engine="thread", autotune="perhaps"):
        raise AssertionError("the block must not run")
    assert settings.engine == "auto"


def test_override_nests_and_ends_with_its_block(settings: Settings) -> None:
    settings.set(engine="thread")
    with settings.override(engine="uring"):
        with settings.override(engine="memory", autotune="off"):
            assert (settings.engine, settings.autotune) == ("memory", "off")
        assert (settings.engine, settings.autotune) == ("uring", "on")
    assert settings.engine == "thread"


def test_override_ends_when_its_block_fails(settings: Settings) -> None:
    with pytest.raises(RuntimeError, match="inside"), settings.override(engine="memory"):
        raise RuntimeError("inside")
    assert settings.engine == "auto"


def test_override_leaves_alone_what_its_block_sets_besides(settings: Settings) -> None:
    with settings.override(engine="memory"):
        settings.set(autotune="off")
    assert (settings.engine, settings.autotune) == ("auto", "off")


def test_override_can_give_a_setting_back_for_a_while(settings: Settings) -> None:
    settings.set(engine="thread")
    with settings.override(engine=None):
        assert settings.engine == "auto"
    assert settings.engine == "thread"


def test_an_override_is_seen_by_other_threads(settings: Settings) -> None:
    seen: list[str] = []
    with settings.override(engine="memory"):
        reader = threading.Thread(target=lambda: seen.append(settings.engine))
        reader.start()
        reader.join()
    assert seen == ["memory"]


def test_directories_know_the_home_directory(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("SHORTHAUL_SCRATCH", "~/scratch")
    assert settings.scratch_directory == Path("/home/ada/scratch")
    settings.set(cache_directory=Path("/var/cache"))
    assert settings.cache_directory == Path("/var/cache")


def test_the_cache_follows_the_xdg_standard(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast/cache")
    assert settings.cache_directory == Path("/fast/cache/shorthaul")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert settings.cache_directory == Path("/home/ada/.cache/shorthaul")


def test_a_user_without_a_home_has_a_cache_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert settings.cache_directory == Path(tempfile.gettempdir()) / f"shorthaul-{os.getuid()}"


def test_the_list_of_settings_is_complete_and_consistent() -> None:
    names = [each.name for each in Settings.all()]
    environments = [each.environment for each in Settings.all()]
    assert {"cache_directory", "scratch_directory", "engine", "kernels"} <= set(names)
    assert len(set(environments)) == len(environments)
    assert all(each.startswith("SHORTHAUL_") for each in environments)
    assert Settings.engine.meaning  # read on the class, a setting is its own description
