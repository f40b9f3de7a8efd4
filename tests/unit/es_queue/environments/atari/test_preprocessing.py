"""Pictures are made smaller by area, exactly, whatever the sizes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from es_queue.environments.atari.game import AreaResize
from tests.cases import each_case

SIZES = [
    ((210, 160), (84, 84)),
    ((160, 160), (42, 42)),
    ((210, 160), (210, 160)),
    ((250, 160), (83, 61)),
    ((7, 5), (3, 2)),
    ((6, 4), (1, 1)),
    ((3, 2), (3, 2)),
]


def exactly(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The mean of each new pixel's area in fractions, rounded half to even."""

    def cover(before: int, after: int) -> list[list[Fraction]]:
        ratio = Fraction(before, after)
        return [
            [
                max(Fraction(0), min((new + 1) * ratio, old + 1) - max(new * ratio, old)) / ratio
                for old in range(before)
            ]
            for new in range(after)
        ]

    down, across = (cover(*pair) for pair in zip(picture.shape, size, strict=True))
    return np.array(
        [
            [
                round(
                    sum(
                        d * a * int(picture[y, x])
                        for y, d in enumerate(row)
                        if d
                        for x, a in enumerate(column)
                        if a
                    )
                )
                for column in across
            ]
            for row in down
        ]
    )


@each_case(("before", "after"), [pair for pair in SIZES if pair[0][0] < 20])
def test_small_pictures_are_the_exact_means(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    for seed in range(20):
        picture = np.random.default_rng(seed).integers(0, 256, before, np.uint8)
        assert np.array_equal(AreaResize(before, after)(picture), exactly(picture, after))


@each_case(("before", "after"), SIZES)
def test_the_order_of_the_sums_changes_nothing(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    resize = AreaResize(before, after)
    picture = np.random.default_rng(3).integers(0, 256, before, np.uint8)
    turned = AreaResize(before[::-1], after[::-1])(np.ascontiguousarray(picture.T)).T
    mirrored = resize(np.ascontiguousarray(picture[::-1, ::-1]))[::-1, ::-1]
    assert np.array_equal(resize(picture), turned) and np.array_equal(resize(picture), mirrored)


@each_case(("before", "after"), SIZES)
def test_a_picture_of_one_colour_keeps_it(before: tuple[int, int], after: tuple[int, int]) -> None:
    for colour in (0, 1, 128, 255):
        assert (AreaResize(before, after)(np.full(before, colour, np.uint8)) == colour).all()


def test_opencv_agrees_but_for_halves() -> None:
    cv2 = pytest.importorskip("cv2", reason="opencv is not installed")
    picture = np.random.default_rng(5).integers(0, 256, (210, 160), np.uint8)
    theirs = cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA).astype(int)
    apart = np.abs(AreaResize((210, 160), (84, 84))(picture).astype(int) - theirs)
    assert apart.max() <= 1 and np.count_nonzero(apart) <= 10
