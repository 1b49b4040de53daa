"""`phenotaste federated`: one model of several hospitals that may not pool their records."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import CohortFolder, Json, Seed, ThreadCount
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.federated import CombineReport, StepReport

MAX_LIST_BYTES = 16 * 2**20

federated = typer.Typer(
    name="federated",
    help="One model of several hospitals: they send only sums over patients.",
    epilog="Each command has its own --help; docs/federated.md says what sums can reveal.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

WorkFolder = Annotated[
    Path, typer.Argument(help="The coordinator's folder.", metavar="WORK", show_default=False)
]
Exchange = Annotated[
    Path | None,
    typer.Option(help="Folder for messages; WORK/exchange by default.", metavar="DIR", show_default=False),
]
NotFederated = Annotated[
    Path | None, typer.Option(hidden=True)
]  # options of fit and refit, refused with a reason


@federated.callback()
def every_federated() -> None:
    """One model of several hospitals: they send only sums over patients."""


@federated.command()
def init(
    work: WorkFolder,
    sites: Annotated[
        str, typer.Option(help="Site names, separated by commas.", metavar="A,B,C", show_default=False)
    ],
    rank: Annotated[int, typer.Option(help="Number of phenotypes.")] = 5,
    lam: Annotated[float, typer.Option(help="Weight of the static features relative to the visits.")] = 0.01,
    mu: Annotated[float, typer.Option(help="Weight of the uniqueness term.")] = 1.0,
    smooth: Annotated[
        float, typer.Option(help="Weight of the changes of a course from visit to visit.")
    ] = 0.3,
    balance: Annotated[
        float | None,
        typer.Option(
            help="A patient with n entries counts n ** balance; 0.5 by default, 0 with noise.",
            show_default=False,
        ),
    ] = None,
    n_init: Annotated[
        int | None,
        typer.Option(
            help="Number of starts, in the same messages, of which the best is kept; 4 by default, 1 with noise.",
            show_default=False,
        ),
    ] = None,
    max_rounds: Annotated[
        int, typer.Option(help="Maximum number of rounds; with noise, the exact number.")
    ] = 200,
    tol: Annotated[
        float, typer.Option(help="Stop at a relative decrease of the objective below this.")
    ] = 1e-5,
    seed: Seed = 0,
    min_patients: Annotated[
        int, typer.Option(help="Refuse sites with fewer patients; each site has its own minimum, too.")
    ] = 100,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Text file of the codes to use, one per line; else the union of the sites'.",
            show_default=False,
        ),
    ] = None,
    static_features: Annotated[
        Path | None, typer.Option(help="The same for static features.", show_default=False)
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="Let sites add noise; needs --features and --static-size.")
    ] = False,
    static_size: Annotated[
        float, typer.Option(help="With noise: expected sum of squares of a patient's static features.")
    ] = 0.0,
    clip: Annotated[
        float,
        typer.Option(help="With noise: bound on one patient's contribution, relative to its expected size."),
    ] = 1.0,
    guides: NotFederated = None,
    review: NotFederated = None,
    exchange: Exchange = None,
    json_: Json = False,
) -> None:
    """Start a federated fit, at the coordinator: writes the join request for every site.

    Example:

        phenotaste federated init work --sites north,south,east --rank 5
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    if guides is not None or review is not None:
        raise InputError(
            "A federated fit takes neither --guides nor --review: both need the patients in one place; refit the "
            "finished model on the cohort of one site instead."
        )
    settings = library.Settings(
        rank=rank,
        lam=lam,
        mu=mu,
        smooth=smooth,
        balance=balance,
        seed=seed,
        n_init=n_init,
        max_rounds=max_rounds,
        tol=tol,
        min_patients=min_patients,
        noise=noise,
        static_size=static_size,
        clip=clip,
    )
    message = library.init(
        work,
        [name.strip() for name in sites.split(",") if name.strip()],
        settings,
        features=None if features is None else read_names(features),
        static=None if static_features is None else read_names(static_features),
        exchange=exchange,
    )
    size = message.stat().st_size
    if json_:
        print_json({"work": str(work), "message": str(message), "bytes": size})
        return
    # `step` and `combine` need the exchange folder where it is not the default.
    request, responses = (
        (message.name, "RESPONSE...") if exchange is None else (exchange, f"--exchange {exchange}")
    )
    print_list(
        f"A federated fit of {rank} phenotypes",
        [
            ("Send to all sites", str(message)),
            ("Size", f"{size:,} bytes"),
            ("Each site runs", f"phenotaste federated step {request} COHORT --site NAME --state DIR"),
            ("Then here", f"phenotaste federated combine {work} {responses}"),
        ],
        wrap=False,
    )


def read_names(path: Path) -> list[str]:
    """The non-empty lines of a text file."""
    if not path.is_file() or path.stat().st_size > MAX_LIST_BYTES:
        raise InputError(f"{path} is not a list of names: give a text file with one name per line.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except ValueError:
        raise InputError(f"{path} is not UTF-8 text: save it as such.") from None
    return [line.strip() for line in lines if line.strip()]


@federated.command()
def step(
    message: Annotated[
        Path,
        typer.Argument(
            help="The coordinator's request, or the exchange folder.",
            metavar="MESSAGE",
            show_default=False,
        ),
    ],
    cohort: CohortFolder,
    site: Annotated[str, typer.Option(help="This site's name.", show_default=False)],
    state: Annotated[
        Path,
        typer.Option(
            help="This site's private folder between rounds; holds patient data.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File or folder for the response; next to MESSAGE by default.", show_default=False),
    ] = None,
    min_patients: Annotated[int, typer.Option(help="Send no sums over fewer patients.", min=1)] = 100,
    min_cell_size: Annotated[int, typer.Option(help="Set columns of fewer patients to zero.", min=1)] = 11,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Add noise: privacy budget over all rounds; 1 is strong, 10 weak.", show_default=False
        ),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Delta of the privacy budget, well below 1 / patients.")
    ] = 1e-5,
    exact: Annotated[
        bool, typer.Option("--exact", help="Send exact sums although the other sites may add noise.")
    ] = False,
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="Accept the model unchecked: this site joins late, missed rounds or lost its state.",
        ),
    ] = False,
    threads: ThreadCount = None,
    json_: Json = False,
) -> None:
    """Respond to the coordinator's request, at a site: sums over the site's patients, and nothing else.

    Repeating the command with the same request writes the same bytes; after an interruption, repeat it.

    Example:

        phenotaste federated step round-0001.safetensors cohort --site north --state north-private
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    report = library.step(
        message,
        cohort,
        site=site,
        state=state,
        out=out,
        min_patients=min_patients,
        min_cell_size=min_cell_size,
        epsilon=epsilon,
        delta=delta,
        exact=exact,
        rejoin=rejoin,
        threads=threads,
    )
    if json_:
        print_json({**report._asdict(), "response": str(report.response)})
        return
    title = f"Response to round {report.round}{' (written again)' if report.repeated else ''}"
    print_list(title, step_lines(report), wrap=False)


def step_lines(report: "StepReport") -> list[tuple[str, str]]:
    lines = [
        ("Response", str(report.response)),
        ("Bytes", f"{report.bytes_received:,} received, {report.bytes_sent:,} to send"),
    ]
    if report.suppressed is not None:
        lines.append(("Suppressed", f"{report.suppressed:,} columns of too few patients, set to zero"))
    if report.unknown:
        lines.append(("Dropped", f"{report.unknown:,} columns that are not part of the fit"))
    if report.epsilon is not None:
        lines.append(("Privacy budget", f"epsilon {report.epsilon:.3g} spent so far"))
    return lines


@federated.command()
def combine(
    work: WorkFolder,
    responses: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The sites' responses, or folders of them; the exchange folder by default.",
            metavar="RESPONSE",
            show_default=False,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Exclude this site from this round; may be repeated.", metavar="SITE", show_default=False
        ),
    ] = None,
    exchange: Exchange = None,
    json_: Json = False,
) -> None:
    """Combine the sites' responses, at the coordinator, into the next request or, at the end, the model WORK/model.

    An excluded site may return in any later round; the model's federation.json records participation by round.

    Example:

        phenotaste federated combine work round-0001.*.safetensors
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    report = library.combine(work, responses or (), exclude=exclude or (), exchange=exchange)
    if json_:
        paths = {
            "message": report.message and str(report.message),
            "model": report.model and str(report.model),
        }
        print_json({**report._asdict(), **paths})
        return
    title = f"Round {report.round} combined{' before (written again)' if report.repeated else ''}"
    print_list(title, combine_lines(report), wrap=False)


def combine_lines(report: "CombineReport") -> list[tuple[str, str]]:
    lines = [("Sites", ", ".join(report.sites))]
    if report.excluded:
        lines.append(("Excluded", ", ".join(report.excluded)))
    if report.objective is not None:
        lines.append(("Objective", f"{report.objective:,.9g}"))
    lines.append(
        ("Bytes", f"{report.bytes_received:,} received, {report.bytes_sent:,} to send to all sites together")
    )
    if report.message is not None:
        lines.append(("Send to all sites", str(report.message)))
    if report.model is not None:
        lines += [
            ("Model", str(report.model)),
            ("Next", "send the model to the sites: phenotaste score MODEL COHORT"),
        ]
    return lines


@federated.command()
def status(
    path: Annotated[
        Path,
        typer.Argument(
            help="The coordinator's folder, a site's state, or a message.", metavar="PATH", show_default=False
        ),
    ],
    exchange: Exchange = None,
    json_: Json = False,
) -> None:
    """Show the status of a federated fit; nothing is changed.

    Example:

        phenotaste federated status work
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    current = library.status(path, exchange=exchange)
    if json_:
        print_json(current)
        return
    lines = [(name.replace("_", " ").capitalize(), format_value(value)) for name, value in current.items()]
    print_list(str(path), [line for line in lines if line[1]], wrap=False)


def format_value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} in rounds {format_value(rounds)}" for name, rounds in value.items())
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.9g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
