"""A study that takes no time, squares of numbers, for tests of what all studies share."""

import numpy as np

NAME = "squares"
TITLE = "Squares"
QUESTION = "What are the squares?"
TIMED = False
ACCEPTS = frozenset({"starts", "fraction", "limit_minutes", "size"})

done: list[int] = []  # numbers in the order in which they were squared
stop_at: list[int] = []  # numbers at which Ctrl-C is simulated


def cells(options):
    return [{"number": n, "word": "a b/ü", "seed": options.seed} for n in range(options.starts or 4)]


def cost(cell):
    return 1.0 + cell["number"]


def run(cell, context):
    if cell["number"] in stop_at:
        raise KeyboardInterrupt
    done.append(cell["number"])
    context.on_progress(0.5)
    found = {"square": np.float64(cell["number"] ** 2), "seeded": cell["seed"], "nothing": float("nan")}
    return found if cell["number"] != 2 else [found, found | {"square": -4.0}]


def table(results):
    return results.groupby("word", as_index=False)["square"].sum()


def figure(results, table):
    from matplotlib.figure import Figure

    drawn = Figure()
    drawn.subplots().plot(results["number"], results["square"])
    return drawn


def text(results, table):
    return f"The sum is {table['square'].iloc[0]:g}."
