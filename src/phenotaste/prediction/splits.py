"""Who is learned from, who is tuned by, and who is tested on: repeated draws of 75, 10 and 15 %, either class alike."""

from typing import NamedTuple

import numpy as np

from phenotaste.core.records import Array
from phenotaste.disclosure import MIN_CELL_SIZE
from phenotaste.errors import InputError

TRAIN, VALIDATION, TEST = 0.75, 0.10, 0.15  # the paper's, in its supplement
FEWEST_OF_A_CLASS = 20  # two of them to tune by, three to test on
STREAM = 1  # part of every seed: never renumber


class Split(NamedTuple):
    """Positions of patients in the cohort, in rising order."""

    train: Array
    validation: Array
    test: Array


def draw_split(case: Array, number: int, random_state: int) -> Split:
    """Split `number` of a cohort: a function of the labels, the seed and the number alone."""
    rng = np.random.default_rng([random_state, STREAM, number])
    parts: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    for side in (False, True):
        members = rng.permutation(np.flatnonzero(case == side))
        tested, tuned = round(TEST * len(members)), round(VALIDATION * len(members))
        cuts = np.split(members, [len(members) - tuned - tested, len(members) - tested])
        for part, chosen in zip(parts, cuts, strict=True):
            part.append(chosen)
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


def check_sizes(case: Array) -> None:
    """Refuse before the long work what no split could be made of; how few there are is not said."""
    for members, what in ((case, "cases"), (~case, "controls")):
        if np.count_nonzero(members) < FEWEST_OF_A_CLASS:
            raise InputError(
                f"The cohort has fewer than {FEWEST_OF_A_CLASS} {what}, too few to be split for learning, tuning and "
                "testing: use a larger cohort."
            )
    if sum(round(TEST * np.count_nonzero(case == side)) for side in (False, True)) < MIN_CELL_SIZE:
        raise InputError(
            f"The cohort is too small: fewer than {MIN_CELL_SIZE} patients would be tested on; use a larger one."
        )
