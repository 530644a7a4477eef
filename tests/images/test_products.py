import shutil
from pathlib import Path

import pytest

from images.products import PRODUCTS, ROOT, Product
from images.requirements import requirements


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository's image inputs, to be edited."""
    for product in PRODUCTS.values():
        for path in product.files():
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return tmp_path


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_the_tag_follows_from_the_content_alone(product: Product, copy: Path) -> None:
    before = product.tag("base", copy)
    assert before == product.tag("base")
    (copy / "runtime/octavo_runtime/contract/__pycache__").mkdir(exist_ok=True)
    (copy / "runtime/octavo_runtime/contract/__pycache__/x.pyc").write_bytes(b"")
    assert product.tag("base", copy) == before
    assert product.tag("another base", copy) != before
    with (copy / "constraints.txt").open("a") as constraints:
        constraints.write("# an edit\n")
    assert product.tag("base", copy) != before


def test_an_edit_of_the_engine_is_no_new_operator(copy: Path) -> None:
    operator, runtime = PRODUCTS["operator"], PRODUCTS["runtime"]
    tags = operator.tag("base", copy), runtime.tag("base", copy)
    (copy / "runtime/octavo_runtime/engine/new.py").write_text("")
    assert operator.tag("base", copy) == tags[0]
    assert runtime.tag("base", copy) != tags[1]


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_everything_a_dockerfile_copies_counts_for_the_tag_and_is_in_the_context(product: Product) -> None:
    lines = [line.split() for line in product.dockerfile.read_text().splitlines() if line.startswith("COPY ")]
    copied = {word for words in lines if not words[1].startswith("--from") for word in words[1:-1]}
    assert copied == set(product.sources)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in copied:
        assert any(Path(entry) == Path(name) or Path(entry) in Path(name).parents for entry in allowed), name


def test_the_operator_image_needs_no_torch_and_the_runtime_image_does() -> None:
    operator, runtime = (requirements(ROOT / "pyproject.toml", extra) for extra in ("operator", "runtime"))
    assert not any(line.startswith(("torch", "transformers")) for line in operator)
    assert any(line.startswith("torch") for line in runtime)
    assert any(line.startswith("pydantic") for line in operator)
