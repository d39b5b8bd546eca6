"""The OpenAPI document is true: requests made from it, fitting and not, find no violation."""

import asyncio
import re
import sys
from pathlib import Path

from tests.transports.stage import on_served_loop, serving
from tests.transports.test_http_api import ANYWHERE, BILLING, client_of, make_orders, post

HOOKS = """
import schemathesis

def short(given, name, most):
    # Within what is allowed, so that what is not allowed stays so.
    if isinstance(given, dict) and name in given:
        try:
            is_long = 0 < float(given[name]) <= most
        except (TypeError, ValueError):
            return
        if is_long:
            given[name] = 0.001 if name == "wait" else 1

@schemathesis.hook
def before_call(context, case, kwargs):
    # The broker would wait as long as it is told to, with nobody to send what is waited for.
    short(case.query, "wait", 60)
    short(case.body, "wait", 60)
    # Ten thousand partitions are allowed, and take their time.
    short(case.body, "partitions", 10_000)
    # Or else the rest would find nothing more.
    if case.method == "DELETE" and (case.path_parameters or {}).get("topic") == "orders":
        case.path_parameters["topic"] = "others"
"""

CONFIG = """
# What a schema cannot say, as that a partition is there, is refused with 400 too; what is too large
# is refused before it is looked at.
[checks]
positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409, 413, 416, 429]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415]
# A topic is found by its name. That `id` is one too is a guess.
ensure_resource_availability.enabled = false
"""


ENDLESS = "(stream|events)$"


@on_served_loop
async def test_requests_made_from_the_document_find_no_violation(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    async with serving(tmp_path / "data", http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client, "a", "b", "c", partitions=2)
        await post(client, f"{BILLING}/poll", max_messages=1)
        command = (
            "-m", "schemathesis.cli", "run", f"http://{server.http}/openapi.json",
            "--seed", "7", "--max-examples", "4", "--no-color",
            "--exclude-path-regex", ENDLESS,
            "--phases", "coverage,fuzzing", "--request-timeout", "20",
        )  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=tmp_path,
            env={"PATH": "", "PYTHONPATH": str(tmp_path), "SCHEMATHESIS_HOOKS": "hooks"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        report = "\n".join(line[:300] for line in said.decode(errors="replace").splitlines())
        assert process.returncode == 0, report[-20_000:]
        paths = (await client.get("/openapi.json")).json()["paths"]
        asked = sum(len(calls) for path, calls in paths.items() if not re.search(ENDLESS, path))
        assert asked >= 29
        assert f"Tested: {asked}" in report
