"""How soon the dashboard shows ten thousand jobs, how smooth it is, how large, and what many who look at it cost.

    python -m benchmarks.dashboard [--jobs 10000] [--watchers 1000]

A whole stack with a project of so many jobs that are over, in a real Chromium that is signed in. The value is the time
from the begin of the navigation to the first row of the list of jobs, the median of five visits without a cache.
Beside it: the first paint of anything; the bytes of all that is loaded, compressed; the longest frame while the list is
scrolled through for ten seconds, and the share of frames above 50 ms; what a server spends on so many streams of the
table at once while ten jobs change each second, as a share of one core. Everything shares the machine, the browser
too. Needs Chromium and Playwright. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from playwright.sync_api import Page

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.browser import chromium

GOAL = 1.0
CODE = Path(__file__).resolve().parents[1] / "examples" / "plain_loop.py"
VISITS = 5
SCROLLS_S = 10.0
CHANGES_PER_S = 10
WATCHED_S = 15.0
FRAME_MS = 50.0
# Copies of one job that is over, each with an id and a time of its own; one in five has failed.
COPIES = """
    INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object(
        'id', 'job_' || lpad(upper(to_hex(n)), 20, '0'), 'name', 'run-' || n, 'submitted_ms', j.submitted_ms - n * 1000,
        'state', CASE WHEN n % 5 = 0 THEN 'failed' ELSE j.state END))).*
    FROM jobs j, generate_series(1, $1::int) n WHERE j.id = $2
"""
POINTS = """
    INSERT INTO metric_points SELECT (jsonb_populate_record(m, jsonb_build_object(
        'job_id', 'job_' || lpad(upper(to_hex(n)), 20, '0')))).*
    FROM metric_points m, generate_series(1, $1::int) n WHERE m.job_id = $2
"""
FRAMES = """(ms) => new Promise((done) => {
    const box = document.querySelector(".virtual"), frames = []
    let last = performance.now(), begun = last
    const next = (now) => {
        frames.push(now - last); last = now
        box.scrollTop += 90
        if (now - begun < ms) requestAnimationFrame(next); else done(frames)
    }
    requestAnimationFrame(next)
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
SIZES = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .filter((one) => !one.name.includes('/v1/')).reduce((sum, one) => sum + one.encodedBodySize, 0)"""


def main() -> None:
    """Bring up a stack, fill it, look at it, watch it, and print the result last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--watchers", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(StackOptions(data_dir=Path(folder) / "data", port=0, cloud_speed=0.02), tell=print)
        stack.start()
        try:
            known = json.loads(stack.layout.client_file.read_text())
            asyncio.run(_fill(stack, known, options.jobs))
            looked = _look(known)
            watched = asyncio.run(_watch(stack, known, options.watchers))
        finally:
            stack.stop()
    detail = {**looked, **watched, "jobs": options.jobs, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    value = detail.pop("first_row_s")
    print(json.dumps({"name": "dashboard", "value": value, "goal": GOAL, "unit": "s", "detail": detail}))


async def _fill(stack: Stack, known: dict[str, Any], jobs: int) -> None:
    """One job is run, and its row and its points are copied."""
    with allpass.Client(known["url"], known["api_key"]) as client:
        app = await asyncio.to_thread(allpass.build, "looked-at", "bench", code=CODE, client=client)
        job = await asyncio.to_thread(app.run, parameters={"steps": 100, "step_ms": 5}, soft_deadline="1hr")
        info = await asyncio.to_thread(job.wait, 60)
        assert info.status == "succeeded", info
    connection = await _connection(stack)
    await connection.execute(COPIES, jobs - 1, job.id)
    await connection.execute(POINTS, min(jobs - 1, 1000), job.id)
    await connection.execute("ANALYZE")
    await connection.close()


def _look(known: dict[str, Any]) -> dict[str, Any]:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 850}).new_page()
        page.goto(known["url"])
        page.get_by_label("API key").fill(known["api_key"])
        page.get_by_role("button", name="Sign in").click()
        page.locator(".line").first.wait_for()
        visits = [_visit(page) for _ in range(VISITS)]
        frames: list[float] = page.evaluate(FRAMES, SCROLLS_S * 1000)
        slow = sum(frame > FRAME_MS for frame in frames)
        return {
            "first_row_s": round(statistics.median(row for row, _, _ in visits), 2),
            "first_paint_s": round(statistics.median(paint for _, paint, _ in visits), 2),
            "compressed_kb": round(visits[0][2] / 1000, 1),
            "longest_frame_ms": round(max(frames)),
            "median_frame_ms": round(statistics.median(frames)),
            "frames_above_50_ms": f"{slow} of {len(frames)}",
        }


def _visit(page: Page) -> tuple[float, float, int]:
    """The seconds until the first row and until the first paint, and the compressed bytes, of a visit without cache."""
    session = page.context.new_cdp_session(page)
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    began = time.perf_counter()
    page.reload(wait_until="commit")
    page.locator(".line").first.wait_for()
    row_s = time.perf_counter() - began
    page.wait_for_function(PAINT)
    return row_s, page.evaluate(PAINT) / 1000, int(page.evaluate(SIZES))


async def _watch(stack: Stack, known: dict[str, Any], watchers: int) -> dict[str, Any]:
    """So many streams are open and read. The server's time on the processor, while jobs change."""
    server, connection = stack.children["server"].pid, await _connection(stack)
    streams = [asyncio.create_task(_stream(known)) for _ in range(watchers)]
    await asyncio.sleep(5)
    await _change(connection, 2.0)  # all of them have been told something
    before, began = _cpu_s(server), time.monotonic()
    await _change(connection, WATCHED_S)
    spent_s, took_s = _cpu_s(server) - before, time.monotonic() - began
    alive = sum(not one.done() for one in streams)
    for one in streams:
        one.cancel()
    told = await asyncio.gather(*streams, return_exceptions=True)
    await connection.close()
    broken = [repr(one) for one in told if isinstance(one, Exception)]
    return {"watchers": alive, "watchers_cost_cores": round(spent_s / took_s, 3), "broken": broken[:3]}


async def _stream(known: dict[str, Any]) -> None:
    url = urlsplit(known["url"])
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        head = (
            "GET /v1/jobs/table/stream HTTP/1.1",
            f"Host: {url.netloc}",
            f"Authorization: Bearer {known['api_key']}",
        )
        writer.write("\r\n".join([*head, "", ""]).encode())
        first = await reader.readline()
        assert b" 200 " in first, first
        while await reader.read(65536):
            pass
    finally:
        writer.close()


async def _change(connection: asyncpg.Connection, for_s: float) -> None:
    """Ten jobs make a step each second, of those that the first page shows."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        await connection.execute(
            "UPDATE jobs SET step = step + 1 WHERE id IN (SELECT id FROM jobs ORDER BY id DESC LIMIT $1)", CHANGES_PER_S
        )
        await asyncio.sleep(1)


async def _connection(stack: Stack) -> asyncpg.Connection:
    assert stack._postgres is not None
    return await asyncpg.connect(stack._postgres.url())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
