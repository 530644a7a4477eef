from images.retention import superseded


def test_the_last_few_stay_and_the_oldest_goes() -> None:
    assert superseded(["a", "b", "c"], "d", kept=3) == (["b", "c", "d"], ["a"])


def test_pushing_one_again_makes_it_the_newest_and_forgets_nothing() -> None:
    assert superseded(["a", "b", "c"], "a", kept=3) == (["b", "c", "a"], [])


def test_the_first_is_simply_kept() -> None:
    assert superseded([], "a") == (["a"], [])
