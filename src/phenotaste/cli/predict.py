"""`phenotaste predict`: predict the cohort's labels from phenotype scores, and compare with other methods."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.options import Balance, CohortFolder, Json, ObjectiveChoice, Seed, ThreadCount
from phenotaste.cli.select import parse_numbers, parse_ranks

if TYPE_CHECKING:
    from phenotaste.prediction import Evaluation


def predict(
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option(help="Folder for all results.", metavar="DIR", show_default=False)],
    ranks: Annotated[str, typer.Option(help="Numbers of phenotypes to choose from.")] = "5,10,20",
    lams: Annotated[str, typer.Option(help="Weights of static features to choose from.")] = "0.01",
    mus: Annotated[str, typer.Option(help="Weights of the uniqueness term to choose from.")] = "1",
    splits: Annotated[int, typer.Option(help="Number of splits of the patients, 75/10/15.")] = 5,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare with: copa, copa-static, cntf, gru, raw, raw-static, nmf, visit-nmf, lda, svd, "
            "boosting, all or none; by default copa, copa-static, raw and raw-static.",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet file with the columns patient and label, instead of the cohort's labels.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    drop_unlabelled: Annotated[
        bool, typer.Option("--drop-unlabelled", help="Leave out patients without a label.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in DIR.")] = False,
    seed: Seed = 0,
    threads: ThreadCount = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap samples of the patients, for intervals.")] = 1000,
    objective: Annotated[
        ObjectiveChoice, typer.Option(help="Objective of TASTE, as for fit.")
    ] = ObjectiveChoice.RELATIVE,
    smooth: Annotated[
        float | None,
        typer.Option(help="Smoothness of TASTE's courses; as for fit by default.", show_default=False),
    ] = None,
    balance: Balance = 0.5,
    n_init: Annotated[
        int | None,
        typer.Option(
            help="Starts of each factorisation, the best of which is kept; by default as many as for fit, and 1 for "
            "the baselines.",
            show_default=False,
        ),
    ] = None,
    max_iter: Annotated[int, typer.Option(help="Maximum number of iterations of a factorisation.")] = 200,
    tol: Annotated[
        float, typer.Option(help="Stop when the relative decrease of the objective is below this.")
    ] = 1e-4,
    courses: Annotated[
        bool,
        typer.Option(
            "--courses",
            help="Use two features of each course beside the scores: its share in the last quarter, and its slope. "
            "Methods without courses use their scores alone.",
        ),
    ] = False,
    size: Annotated[
        bool,
        typer.Option(
            "--size/--no-size",
            help="Use the size of the record (log of the root of the sum of squares of the visits) beside the scores.",
        ),
    ] = True,
    patients: Annotated[
        bool,
        typer.Option("--patients", help="Also write the risk of each test patient, readable only by you."),
    ] = False,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Also show figures of fewer than 11 patients.")
    ] = False,
    json_: Json = False,
) -> None:
    """Estimate how well phenotype scores predict the labels of a cohort.

    Models are trained on 75 % of the patients, tuned on 10 % and tested on 15 %, several times; other methods use the
    same splits. The size of the record stands beside the scores of every method. Each finished split is written at
    once: --resume continues an interrupted run. DIR contains no risks of single patients unless --patients is given;
    its folders model and splits are not for passing on.

    Example:

        phenotaste predict cohort --out prediction

    The paper's objective and grid, scores alone, and all baselines (two of them need torch):

        phenotaste predict cohort --objective paper --ranks 5,10,20,40 --lams .01,.1,1 --baselines all --no-size --out D
    """
    grid = parse_ranks(ranks), parse_numbers(lams, "--lams"), parse_numbers(mus, "--mus")
    from phenotaste import Cohort, prediction
    from phenotaste.cli.options import labels_from
    from phenotaste.cli.terminal import prediction_progress, print_json

    if trusted:
        typer.echo(
            "Note: --trusted shows figures of fewer than 11 patients: keep these files with the data.",
            err=True,
        )
    loaded = Cohort.load(cohort)
    try:
        with prediction_progress() as callback:
            result = prediction.evaluate(
                cohort,
                None if labels is None else labels_from(labels, loaded),
                ranks=grid[0],
                lams=grid[1],
                mus=grid[2],
                splits=splits,
                baselines=parse_methods(baselines, loaded.static is not None),
                objective=objective.value,
                smooth=smooth,
                balance=balance,
                n_init=n_init,
                max_iter=max_iter,
                tol=tol,
                resamples=resamples,
                random_state=seed,
                n_jobs=threads,
                out=out,
                resume=resume,
                courses=courses,
                size=size,
                patients=patients,
                drop_unlabelled=drop_unlabelled,
                trusted=trusted,
                callback=callback,
            )
    except KeyboardInterrupt:
        if (out / "splits.csv").exists():
            typer.echo(
                f"{out / 'splits.csv'} has the finished results; --resume continues the run.", err=True
            )
        raise
    if json_:
        print_json({"folder": str(out), "model": str(out / "model"), **result.as_dict()})
    else:
        print_evaluation(result, out)


def parse_methods(text: str | None, static: bool) -> list[str] | None:
    """Return the methods of a list of names, "all" or "none"; None is the library's default."""
    from phenotaste.prediction.methods import LABELS, NEED_STATIC, TASTE_NAME

    if text is None:
        return None
    if text == "all":
        return [name for name in LABELS if name != TASTE_NAME and (static or name not in NEED_STATIC)]
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def print_evaluation(result: "Evaluation", out: Path) -> None:
    from phenotaste.cli.terminal import print_list
    from phenotaste.prediction.evaluation_tables import bounds, column_label
    from phenotaste.prediction.methods import LABELS

    lines, kind = [], ""
    for _, row in result.summary.iterrows():
        low, high, kind = bounds(row)
        text = f"{row['auc']:.3f}  ({low:.3f} to {high:.3f})"
        text += f"   AUPRC {row['auprc']:.3f}   Brier {row['brier']:.3f}"
        lines.append((LABELS[row["method"]], text))
    print_list(f"AUC on test patients, mean of {len(result.splits['split'].unique())} splits ({kind})", lines)
    gaps = [
        (
            LABELS[row["method"]],
            f"{row['difference']:+.3f}  ({low:+.3f} to {high:+.3f})   "
            f"higher in {row['better_in']} of {row['splits']} splits",
        )
        for _, row in result.comparison.iterrows()
        for low, high, _ in [bounds(row, "difference")]
    ]
    if gaps:
        print_list("TASTE's AUC minus that of", gaps)
    strongest = [
        (
            f"Phenotype {column_label(row)}",
            f"{row['odds_ratio']:.2f}  ({row['odds_ratio_low']:.2f} to {row['odds_ratio_high']:.2f})   "
            f"{row['definition']}",
        )
        for _, row in result.coefficients.head(5).iterrows()
    ]
    print_list("Largest odds ratios per standard deviation of a score", strongest)
    files = [
        ("Page", str(out / "prediction.md")),
        ("Tables", str(out / "summary.csv")),
        ("Figures", str(out / "figures")),
        ("Model", str(out / "model")),
    ]
    if result.predictions is not None:
        files.append(("Patients", str(out / "predictions.parquet")))
    print_list("Written", files, wrap=False)
