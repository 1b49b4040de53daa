"""`phenotaste federated`: hospitals that may not pool their records fit one model together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import CohortFolder, Json, Seed, SolverChoice, Threads, WeightsChoice
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.federated import Combined, Stepped

LARGEST_LIST = 16 * 2**20

federated = typer.Typer(
    name="federated",
    help="One model of several hospitals: only sums over patients travel.",
    epilog="Each has its own --help; docs/federated.md says what sums can reveal.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

Work = Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="WORK", show_default=False)]
Exchange = Annotated[
    Path | None,
    typer.Option(help="Folder for messages; WORK/exchange by default.", metavar="DIR", show_default=False),
]


@federated.callback()
def every_federated() -> None:
    """One model of several hospitals: only sums over patients travel."""


@federated.command()
def init(
    work: Work,
    sites: Annotated[
        str, typer.Option(help="Names of the sites, with commas.", metavar="A,B,C", show_default=False)
    ],
    rank: Annotated[int, typer.Option(help="Number of phenotypes.")] = 5,
    lam: Annotated[float, typer.Option(help="Weight of static features against visits.")] = 0.1,
    mu: Annotated[float, typer.Option(help="Weight of the uniqueness term.")] = 1.0,
    weights: Annotated[
        WeightsChoice, typer.Option(help="Whether lam and mu are measured against the data's size.")
    ] = WeightsChoice.RELATIVE,
    solver: Annotated[SolverChoice, typer.Option(help="As for fit.")] = SolverChoice.CD,
    n_init: Annotated[int, typer.Option(help="Starts, all in the same messages; the best is kept.")] = 1,
    max_rounds: Annotated[int, typer.Option(help="Most rounds; with noise exactly so many.")] = 200,
    tol: Annotated[float, typer.Option(help="Stop when the objective falls by less than this part.")] = 1e-5,
    seed: Seed = 0,
    minimum_patients: Annotated[
        int, typer.Option(help="Sites with fewer patients are refused; each site insists on 100 of its own.")
    ] = 100,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Text file of the codes to use, one a line; else the sites' own.", show_default=False
        ),
    ] = None,
    static_features: Annotated[
        Path | None, typer.Option(help="The same for static features.", show_default=False)
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="Let sites add noise; needs --features and --patient-size.")
    ] = False,
    patient_size: Annotated[
        float, typer.Option(help="With noise: what a patient's squared visit counts add up to, about.")
    ] = 0.0,
    static_size: Annotated[
        float, typer.Option(help="With noise: what a patient's squared static facts add up to, about.")
    ] = 0.0,
    clip: Annotated[
        float, typer.Option(help="With noise: what part of these one patient may move the sums by.")
    ] = 0.5,
    exchange: Exchange = None,
    json_: Json = False,
) -> None:
    """Begin a federated fit, at the coordinator: writes the invitation to send to every site.

    Example:

        phenotaste federated init work --sites north,south,east --rank 5
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    settings = library.Settings(
        rank=rank,
        lam=lam,
        mu=mu,
        weights=weights.value,
        solver=solver.value,
        seed=seed,
        n_init=n_init,
        max_rounds=max_rounds,
        tol=tol,
        minimum_patients=minimum_patients,
        noise=noise,
        patient_size=patient_size,
        static_size=static_size,
        clip=clip,
    )
    message = library.init(
        work,
        [name.strip() for name in sites.split(",") if name.strip()],
        settings,
        features=None if features is None else names_of(features),
        static=None if static_features is None else names_of(static_features),
        exchange=exchange,
    )
    size = message.stat().st_size
    # `step` and `combine` do not know where to look by themselves
    question, answers = (
        (message.name, "ANSWER...") if exchange is None else (exchange, f"--exchange {exchange}")
    )
    if json_:
        print_json({"work": str(work), "message": str(message), "bytes": size})
        return
    print_list(
        f"A federated fit of {rank} phenotypes",
        [
            ("Send to all sites", str(message)),
            ("Size", f"{size:,} bytes"),
            ("Each site runs", f"phenotaste federated step {question} COHORT --site NAME --state DIR"),
            ("Then here", f"phenotaste federated combine {work} {answers}"),
        ],
        wrap=False,
    )


def names_of(path: Path) -> list[str]:
    """The lines of a text file."""
    if not path.is_file() or path.stat().st_size > LARGEST_LIST:
        raise InputError(f"{path} is not a list of names: give a text file with one name a line.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except ValueError:
        raise InputError(f"{path} is not text in UTF-8: save it as such.") from None
    return [line.strip() for line in lines if line.strip()]


@federated.command()
def step(
    message: Annotated[
        Path,
        typer.Argument(
            help="The coordinator's message, or the folder messages are exchanged in.",
            metavar="MESSAGE",
            show_default=False,
        ),
    ],
    cohort: CohortFolder,
    site: Annotated[str, typer.Option(help="This site's name.", show_default=False)],
    state: Annotated[
        Path,
        typer.Option(help="This site's own folder between rounds: it is about patients.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File or folder for the answer; beside MESSAGE by default.", show_default=False),
    ] = None,
    minimum_patients: Annotated[int, typer.Option(help="Send no sums over fewer patients.", min=1)] = 100,
    fewest: Annotated[int, typer.Option(help="Columns of fewer patients are taken as zero.", min=1)] = 11,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Add noise that keeps this promise over all rounds.", show_default=False),
    ] = None,
    delta: Annotated[float, typer.Option(help="With which chance the promise may fail.")] = 1e-5,
    exact: Annotated[
        bool, typer.Option("--exact", help="Send exact sums though the others may add noise.")
    ] = False,
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Answer the coordinator's message, at a site: sums over the site's patients, and nothing else.

    The same message is answered with the same bytes however often the command is given; after a break, give it again.

    Example:

        phenotaste federated step round-0001.safetensors cohort --site north --state north-private
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    done = library.step(
        message,
        cohort,
        site=site,
        state=state,
        out=out,
        minimum_patients=minimum_patients,
        fewest=fewest,
        epsilon=epsilon,
        delta=delta,
        exact=exact,
        threads=threads,
    )
    if json_:
        print_json({**done._asdict(), "answer": str(done.answer)})
    else:
        print_list(
            f"Round {done.round} answered{' once more' if done.again else ''}", step_lines(done), wrap=False
        )


def step_lines(done: "Stepped") -> list[tuple[str, str]]:
    lines = [
        ("Answer", str(done.answer)),
        ("Bytes", f"{done.bytes_received:,} received, {done.bytes_sent:,} to send"),
    ]
    if done.hidden is not None:
        lines.append(("Hidden", f"{done.hidden:,} columns of too few patients, taken as zero"))
    if done.unknown:
        lines.append(("Left out", f"{done.unknown:,} columns that were not agreed on"))
    if done.epsilon is not None:
        lines.append(("Promise", f"epsilon {done.epsilon:.3g} spent so far"))
    return lines


@federated.command()
def combine(
    work: Work,
    answers: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The sites' answers, or folders with them; the exchange folder by default.",
            metavar="ANSWER",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Go on without this site in this round; may be repeated.", show_default=False),
    ] = None,
    exchange: Exchange = None,
    json_: Json = False,
) -> None:
    """Make the sites' answers into the next message, at the coordinator; at the end into the model WORK/model.

    A site that is left out may come back in any later round; the model's federation.json says who took part when.

    Example:

        phenotaste federated combine work round-0001.*.safetensors
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    done = library.combine(work, answers or (), without=without or (), exchange=exchange)
    if json_:
        paths = {"message": done.message and str(done.message), "model": done.model and str(done.model)}
        print_json({**done._asdict(), **paths})
        return
    print_list(
        f"Round {done.round} combined{' before; written once more' if done.again else ''}",
        combine_lines(done),
        wrap=False,
    )


def combine_lines(done: "Combined") -> list[tuple[str, str]]:
    lines = [("Sites", ", ".join(done.sites))]
    if done.left_out:
        lines.append(("Left out", ", ".join(done.left_out)))
    if done.objective is not None:
        lines.append(("Objective", f"{done.objective:,.9g}"))
    lines.append(
        ("Bytes", f"{done.bytes_received:,} received, {done.bytes_sent:,} to send to all sites together")
    )
    if done.message is not None:
        lines.append(("Send to all sites", str(done.message)))
    if done.model is not None:
        lines += [
            ("Model", str(done.model)),
            ("Next", "hand the model to the sites: phenotaste score MODEL COHORT"),
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
    """Say where a federated fit stands; nothing is changed.

    Example:

        phenotaste federated status work
    """
    from phenotaste import federated as library
    from phenotaste.cli.terminal import print_json, print_list

    found = library.status(path, exchange=exchange)
    if json_:
        print_json(found)
        return
    lines = [(name.replace("_", " ").capitalize(), in_words(value)) for name, value in found.items()]
    print_list(str(path), [line for line in lines if line[1]], wrap=False)


def in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} in rounds {in_words(rounds)}" for name, rounds in value.items())
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.9g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
