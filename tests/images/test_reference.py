import pytest

from images.errors import ImageError
from images.reference import parse
from images.registry import Registry


def test_a_reference_is_read_and_written_alike() -> None:
    reference = parse("10.99.0.1:5000/octavo/runtime:1a2b")
    assert (reference.host, reference.repository, reference.tag) == ("10.99.0.1:5000", "octavo/runtime", "1a2b")
    assert str(reference) == "10.99.0.1:5000/octavo/runtime:1a2b"
    assert reference.at("sha256:00") == "10.99.0.1:5000/octavo/runtime@sha256:00"


def test_without_a_tag_it_is_the_latest() -> None:
    assert parse("example.org/a").tag == "latest"


@pytest.mark.parametrize("text", ["runtime", "HOST/UPPER:1", "h/a:b:c", "h/", "/a", "h/a@sha256:00"])
def test_anything_else_is_refused_with_the_text_seen(text: str) -> None:
    with pytest.raises(ImageError, match="is no image reference"):
        parse(text)


def test_only_private_addresses_are_spoken_to_without_tls() -> None:
    assert Registry("10.99.0.1:5000").plain
    assert Registry("localhost:5000").plain
    assert not Registry("ghcr.example").plain
    assert not Registry("8.8.8.8:5000").plain
