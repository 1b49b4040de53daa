"""The attrition table: patients, visits and events after each step of a build, and what the step removed."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from ibis import Table


class Step(NamedTuple):
    """What is left after a step."""

    step: str
    patients: int
    visits: int
    events: int


class Attrition:
    """Steps in the order they were taken; the one that leaves nobody ends the build with a sentence.

    `tally` has a row for each patient who is left once code groups are applied: patient, visits, events.
    Steps that choose whole patients are counted from it, whatever the size of the data.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.tally: Table | None = None

    def record(self, step: str, patients: int, visits: int, events: int, if_empty: str) -> None:
        """Add a step that was counted elsewhere; `if_empty` is the sentence for a step that leaves nothing."""
        self.steps.append(Step(step, int(patients), int(visits), int(events)))
        if not patients or not events:
            raise InputError(if_empty)

    def keep(self, step: str, people: "Table", if_empty: str) -> None:
        """Add a step that left these patients (a table with the column `patient`, any further ones, repeats too).

        Those without an event in a code group are gone already and count no more.
        """
        if self.tally is None:
            raise RuntimeError("patients are chosen after code groups are applied")
        left = self.tally.semi_join(people.select("patient"), "patient")
        counts = left.aggregate(
            patients=left.count(), visits=left.visits.sum().coalesce(0), events=left.events.sum().coalesce(0)
        )
        self.record(step, **counts.to_pyarrow().to_pylist()[0], if_empty=if_empty)

    def frame(self) -> "pd.DataFrame":
        """A row for each step: what is left after it, and how much of each it removed."""
        import pandas as pd

        table = pd.DataFrame(self.steps, columns=list(Step._fields))
        for name in Step._fields[1:]:
            table[f"{name}_removed"] = -table[name].diff().fillna(0).astype("int64")
        return table
