from images.base import FALLBACK_MIRROR, mirror_of, suite_of
from images.indexes import pip_conf, uv_toml


def test_a_debian_machine_gets_its_own_release_and_any_other_the_stable_one() -> None:
    assert suite_of('ID=debian\nVERSION_CODENAME="trixie"\n') == "trixie"
    assert suite_of("ID=ubuntu\nVERSION_CODENAME=noble\n") == "bookworm"
    assert suite_of("") == "bookworm"


def test_the_archive_is_the_one_this_machine_uses_in_either_format() -> None:
    assert mirror_of({"a": "# deb http://no.example/debian x\ndeb http://own.example/debian bookworm main\n"}) == (
        "http://own.example/debian"
    )
    assert mirror_of({"b": "Types: deb\nURIs: https://own.example/debian\n"}) == "https://own.example/debian"
    assert mirror_of({"c": "deb http://own.example/ubuntu noble main\n"}) == FALLBACK_MIRROR


def test_package_indexes_of_the_environment_reach_both_installers() -> None:
    environ = {"PIP_INDEX_URL": "https://own.example/simple"}
    assert "index-url = https://own.example/simple" in pip_conf(environ)
    assert uv_toml(environ, None) == 'index-url = "https://own.example/simple"\n'


def test_without_settings_the_files_change_nothing() -> None:
    assert pip_conf({}) == "[global]\n"
    assert uv_toml({}, None) == ""
    assert uv_toml({"PIP_INDEX_URL": "x"}, "the user's own") == "the user's own"
