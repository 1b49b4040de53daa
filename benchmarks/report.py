"""Results as tables: printed, and written as a dated page with the raw figures."""

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FLOOR_PRODUCTS = 7  # multiply-adds of R² per visit in the products of the patient step


def progress(common: dict[str, Any], what: str, run: dict[str, Any]) -> None:
    outcome = run.get("failed") or f"{run['fit_seconds']:.1f} s"
    print(f"  R={common['rank']} {what}: {outcome}", file=sys.stderr, flush=True)


def publish(what: str, results: dict[str, Any], text: str, folder: Path | None) -> None:
    print(text)
    if folder is None:
        print("Quick run: nothing was written.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{date.today().isoformat()}-{what}"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"Written to {folder.name}/{name}.md and .json.")


def peers(results: dict[str, Any]) -> str:
    parts = [
        f"# TASTE and its peers, {date.today().isoformat()}",
        machine_lines(results["machine"]),
        *results["notes"],
        "## Seconds per iteration",
        settings_line(results["settings"]),
        iteration_table(results["cases"]),
        "## Seconds to the same fit",
        f"Without static features; errors of X are ‖X − USVᵀ‖/‖X‖ after {results['settings']['fit_iterations']} "
        "iterations. Both must reach the worse of the two.",
        same_fit_table(results["cases"]),
        "## Distance from the lower bound",
        "The floor is seven R² multiply-adds a visit at the rate of one big product; it leaves out the sparse "
        "products and all R³ work.",
        floor_table(results["cases"], results["machine"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine_lines(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"- {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}",
        f"- load {machine['load']} at the beginning, {machine.get('load_at_end', '?')} at the end "
        "(where the benchmark itself counts 1)",
        f"- {versions}",
        f"- commit {machine['commit']}",
    ]
    if "sgemm" in machine:
        sgemm, dgemm = machine["sgemm"] / 1e9, machine["dgemm"] / 1e9
        lines.insert(1, f"- one thread: sgemm {sgemm:.0f} GF/s, dgemm {dgemm:.0f} GF/s")
    return "\n".join(lines)


def settings_line(settings: dict[str, Any]) -> str:
    return (
        f"One thread, each method in its own process, interleaved, median of {settings['repetitions']} rounds of "
        f"{settings['taste_iterations']} iterations of TASTE and {settings['iterations']} of the others. TASTE fits "
        "the static features too; its peers cannot. parafac2 is unconstrained and gets empty visits where a "
        "history is shorter than the rank."
    )


def iteration_table(cases: list[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        base = case["iteration"]["TASTE"].get("seconds")
        for method, found in case["iteration"].items():
            label = [case_name(case), str(case["rank"]), method]
            if "failed" in found:
                rows.append([*label, f"failed: {found['failed']}", "", "", ""])
                continue
            spread = f"{min(found['rounds']):.3g} to {max(found['rounds']):.3g}"
            ratio = "" if method == "TASTE" or not base else f"{found['seconds'] / base:.1f}×"
            rows.append([*label, f"{found['seconds']:.3g}", spread, ratio, megabytes(found["peak_bytes"])])
    heads = ["data", "R", "method", "s an iteration", "rounds", "TASTE is faster", "peak MB"]
    return table(heads, rows)


def same_fit_table(cases: list[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        for peer, found in case["same_fit"].items():
            label = [case_name(case), str(case["rank"]), peer]
            if "failed" in found:
                rows.append([*label, f"failed: {found['failed']}", "", "", "", ""])
                continue
            rows.append(
                [
                    *label,
                    f"{found['peer_final']:.4f}",
                    f"{found['taste_final']:.4f}",
                    f"{found['peer_seconds']:.3g} ({found['peer_iterations']})",
                    f"{found['taste_seconds']:.3g} ({found['taste_iterations']})",
                    f"{found['ratio']:.1f}×",
                ]
            )
    heads = ["data", "R", "peer", "its error", "TASTE's", "its s (iterations)", "TASTE's s", "faster"]
    return table(heads, rows) if rows else "Left out."


def floor_table(cases: list[dict[str, Any]], machine: dict[str, Any]) -> str:
    rows = []
    for case in cases:
        seconds = case["iteration"]["TASTE"].get("seconds")
        if not seconds or "dgemm" not in machine:
            continue
        flops = 2 * FLOOR_PRODUCTS * case["rank"] ** 2 * case["shape"]["visits"]
        double, single = flops / machine["dgemm"], flops / machine["sgemm"]
        row = [
            f"{double * 1e3:.1f}",
            f"{single * 1e3:.1f}",
            f"{seconds * 1e3:.1f}",
            f"{seconds / double:.1f}×",
        ]
        rows.append([case_name(case), str(case["rank"]), *row])
    heads = ["data", "R", "floor, dgemm, ms", "floor, sgemm, ms", "an iteration, ms", "over the dgemm floor"]
    return table(heads, rows)


def case_name(case: dict[str, Any]) -> str:
    return f"{case['data']}, {case['shape']['patients']:,} patients"


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
