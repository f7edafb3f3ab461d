"""`python -m benchmarks [CASE …] [--quick]`: run the cases, print the table, write JSON and the report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path

from benchmarks import machine, report
from benchmarks.cases import CASES, Outcome, Plan, say
from benchmarks.client import pin

RESULTS = Path(__file__).parent / "results"


async def measure(names: list[str], plan: Plan) -> dict[str, Outcome]:
    """The outcome of each case, one after the other."""
    outcomes = {}
    for name in names:
        started = time.monotonic()
        say(f"{name}: {(CASES[name].__doc__ or '').splitlines()[0]}")
        outcomes[name] = await CASES[name](plan)
        say(f"  {time.monotonic() - started:.0f} s")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the service beside its baselines.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"which of: {', '.join(CASES)} (all of them)")
    parser.add_argument("--quick", action="store_true", help="one short run each: a look, no figures to rely on")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender; medians count (3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a paced turn speaks (10)")
    parser.add_argument("--churn", type=float, default=120.0, help="how many seconds streams come and go (120)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and report go")
    given = parser.parse_args()
    unknown = [name for name in given.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    if sys.platform != "linux":
        print("The benchmarks read /proc and need Linux.", file=sys.stderr)
        return 2
    plan = Plan(repeats=given.repeats, seconds=given.seconds, churn=given.churn)
    if given.quick:
        plan = Plan(repeats=1, seconds=min(4.0, given.seconds), quick=True, churn=40.0)
    about = machine.describe()
    about["runs"] = (
        f"{'quick: one short run' if plan.quick else f'medians of {plan.repeats}'}; paced turns of {plan.seconds:g} s"
    )
    if machine.allow_many_files() < 12_000:
        say("The limit of open files is low (ulimit -n): the idle case may fail.")
    pin(plan.cores.client)
    if plan.cores.shared:
        about["warning"] = "one core only: server and client disturb each other"
        say(about["warning"])
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    outcomes = asyncio.run(measure(given.cases or list(CASES), plan))
    print(report.table(outcomes))
    files = report.write(outcomes, about, given.results)
    print("\n" + "\n".join(str(file) for file in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
