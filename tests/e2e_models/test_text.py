"""The training text: split without leaks, cut into chats without markup, batches that can be drawn again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from e2e.models import corpus, recall
from e2e.models.batches import Mixture, batch_at
from e2e.models.chat import exchanges, lead, plain
from e2e.models.corpus import Corpus, CorpusError, Document
from e2e.models.recipe import CHECKPOINT_DIR, HELD_OUT_FILES, Schedule
from e2e.models.sequence import Prose

MODULE_PAGE = """\
:mod:`shelf` --- Books in order
===============================

.. module:: shelf
   :synopsis: Keep books in order.

The :mod:`shelf` module keeps books.  See :ref:`sorting`.

.. function:: find(title, *, default=None)

   Return the first book whose *title* is equal to ``title``, as a
   :class:`~shelf.Book` object.
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def mixture(tokenizer: Tokenizer) -> Mixture:
    return Mixture.of(tokenizer, (Document("library/shelf.rst.txt", MODULE_PAGE * 40),))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Sixty pages of 5 kB, one of them linked a second time."""
    for number in range(60):
        (tmp_path / f"page{number}.rst.txt").write_text(f"Page {number}.\n" * 500, encoding="utf-8")
    (tmp_path / "again.rst.txt").symlink_to(tmp_path / "page0.rst.txt")
    return tmp_path


def paths(documents: tuple[Document, ...]) -> set[str]:
    return {document.path for document in documents}


def test_held_out_pages_are_not_trained_on_and_links_are_not_followed(sources: Path) -> None:
    read: Corpus = corpus.read(sources)
    assert len(read.held_out) == HELD_OUT_FILES
    assert not paths(read.train) & paths(read.held_out)
    assert len(read.train) + len(read.held_out) == 60


def test_the_split_depends_on_paths_alone(sources: Path) -> None:
    before = paths(corpus.read(sources).held_out)
    for page in sources.glob("page*.txt"):
        page.write_text("Other words.\n" * 400, encoding="utf-8")
    assert paths(corpus.read(sources).held_out) == before


def test_too_small_a_documentation_is_refused_with_the_package_name(tmp_path: Path) -> None:
    (tmp_path / "only.rst.txt").write_text("x" * 5000, encoding="utf-8")
    with pytest.raises(CorpusError, match=r"only 1 usable files .* python3\.11-doc"):
        corpus.read(tmp_path)


def test_a_machine_without_apt_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CorpusError, match=r"apt-get not found.*python3\.11-doc"):
        corpus.fetch(tmp_path / "cache")


def test_a_download_that_hangs_ends_in_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 300)

    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr("subprocess.run", hang)
    with pytest.raises(CorpusError, match=r"apt-get download .* took more than 300 s"):
        corpus.fetch(tmp_path)


def test_a_module_page_becomes_questions_with_answers_in_plain_text() -> None:
    answers = {e.question: e.answer for e in exchanges((Document("library/shelf.rst.txt", MODULE_PAGE),))}
    assert answers["What does the shelf module do?"] == (
        "The shelf module: Keep books in order. The shelf module keeps books."
    )
    assert answers["How do I get the first book whose title is equal to `title`?"].startswith("Use shelf.find().")
    assert answers["What does shelf.find() do?"].endswith("as a Book object.")


def test_markup_is_taken_out_and_its_words_stay() -> None:
    text = "Use :func:`os.path.join` or :class:`~io.TextIOWrapper`, see `here <https://example.org>`_ and :pep:`8`."
    assert plain(text) == "Use os.path.join or TextIOWrapper, see here and PEP 8."


def test_answers_end_at_a_sentence_and_not_in_the_middle() -> None:
    assert lead("One sentence. And " + "word " * 200 + ".") == "One sentence."
    assert lead("no full stop") == ""


def test_a_batch_can_be_drawn_again_and_ranks_see_different_rows(mixture: Mixture) -> None:
    schedule = Schedule()
    first = batch_at(mixture, schedule, 7, 0.6, rank=0, world_size=2)
    again = batch_at(mixture, schedule, 7, 0.6, rank=0, world_size=2)
    other = batch_at(mixture, schedule, 7, 0.6, rank=1, world_size=2)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.weights, again.weights)
    assert first.ids.shape == other.ids.shape
    assert not torch.equal(first.ids, other.ids)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.6, 0.8, 0.99])
def test_every_step_sees_the_same_number_of_tokens(mixture: Mixture, fraction: float) -> None:
    schedule = Schedule()
    for step in range(4):
        seen = batch_at(mixture, schedule, step, fraction, rank=0, world_size=1).weights.numel()
        assert seen == schedule.tokens_per_step


@pytest.mark.parametrize("length", [257, 2049])
def test_every_weighted_digit_was_stated_before(mixture: Mixture, tokenizer: Tokenizer, length: int) -> None:
    prose = Prose(np.array(tokenizer.encode("Nothing to see here. " * 900).ids, dtype=np.uint16))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        sequences = [
            recall.plain_sequence(rng, tokenizer, mixture.words, prose, length),
            recall.chat_sequence(rng, tokenizer, mixture.words, prose, length),
            recall.drill_sequence(rng, tokenizer, mixture.words, length),
        ]
        for sequence in sequences:
            assert len(sequence.ids) == length
            asked = [i for i, weight in enumerate(sequence.weights) if weight == recall.ANSWER_WEIGHT]
            for start in asked[:: recall.CODE_DIGITS]:
                code = tokenizer.decode(sequence.ids[start : start + recall.CODE_DIGITS])
                assert code in tokenizer.decode(sequence.ids[:start])


def test_learning_rate_warms_up_holds_and_falls_to_zero() -> None:
    schedule = Schedule()
    assert schedule.rate_at(0, 0.0) < 0.05
    assert schedule.rate_at(500, 0.55) == 1.0
    assert schedule.rate_at(1000, 0.8) == pytest.approx(0.5)
    assert schedule.rate_at(2000, 1.0) == 0.0
