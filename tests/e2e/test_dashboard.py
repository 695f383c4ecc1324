"""The dashboard, as somebody uses it in a real browser, before a real stack.

Needs Chromium, which `./allpass test` installs where it may; without it these tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

import allpass
from allpass.errors import Conflict
from allpass.wire.plan import PlanRequest
from tests.e2e import browser as browsing
from tests.e2e.browser import Visitor
from tests.e2e.service import Service, until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(300),
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="there is no Chromium on this machine"),
]
PICTURES = Path(__file__).parents[2] / "docs/dashboard"  # made anew by SCREENS=write
LONG = {"steps": 400, "step_ms": 20, "seed": 7}
EVIL = "<img src=x onerror=window.hurt=1>"
HOSTILE = """
import json, os
evil = "<img src=x onerror=window.hurt=1>"
print(evil, flush=True)
print("\\x1b[31mred\\x1b[0m </pre><script>window.hurt=1</script>", flush=True)
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    for step in range(1, 6):
        file.write(json.dumps({"step": step, "loss": 1 / step, evil: step}) + "\\n")
    links = {evil: "javascript:window.hurt=1", "good": "https://example.org/x"}
    file.write(json.dumps({"step": 5, "links": links}) + "\\n")
folder = os.environ["ALLPASS_OUTPUT_DIR"]
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, "page.html"), "w").write("<script>window.hurt=1</script>")
"""


# Code that changes its GPUs by the two files that say so, without torch: allpass.training.elastic does the same.
FOLLOWS = """
import json, os, time
told = None
with open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1) as file:
    for step in range(1, 4000):
        with open(os.environ["ALLPASS_GPUS_FILE"]) as wanted:
            names = json.load(wanted)
        if names != told:
            told = names
            gpus = {"used": names, "leaving": [], "refused": []}
            file.write(json.dumps({"step": step, "training": {"gpus": gpus}}) + "\\n")
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Browser, service: Service) -> Iterator[Visitor]:
    with browsing.visitor(browser, service) as found:
        yield found


def picture(page: Page, name: str) -> None:
    """For the guide, where pictures are wanted."""
    if os.environ.get("SCREENS") == "write":
        page.screenshot(path=PICTURES / f"{name}.png")


def heard(page: Page, text: str) -> None:
    browsing.expect(page.get_by_text(text, exact=False).first).to_be_visible()


def choose(page: Page, label: str, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_label(label, exact=True).click()
    chooser.value.set_files(file)


def test_a_key_opens_the_dashboard_and_signing_out_closes_it(visit: Visitor, service: Service) -> None:
    """A wrong key is refused in words. The right one is kept nowhere that a script can read; a new visit to the same
    address needs none; after signing out the session is gone, also for whoever kept its cookie."""
    page = visit.see("#/jobs?status=running")
    page.get_by_label("API key").fill("ak_wrong_key")
    page.get_by_role("button", name="Sign in").click()
    browsing.expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("API key").fill(browsing.key_of(service))
    page.get_by_role("button", name="Sign in").click()
    browsing.expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert page.url.endswith("#/jobs?status=running")
    assert page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"
    page.reload()
    browsing.expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    kept = page.context.cookies(f"{visit.url}/v1/jobs")
    assert [(one["httpOnly"], one["sameSite"]) for one in kept] == [(True, "Strict")]
    page.get_by_role("button", name="Sign out").click()
    browsing.expect(page.get_by_label("API key")).to_be_visible()
    page.context.add_cookies(kept)
    page.reload()
    browsing.expect(page.get_by_label("API key")).to_be_visible()


def test_a_job_is_watched_from_its_start_to_its_end(visit: Visitor, service: Service) -> None:
    """It appears by itself, moves before one's eyes, shows what it learns and says, and what it has left."""
    page = visit.sign_in(browsing.key_of(service))
    job = service.submit("plain_loop.py", LONG, labels={"shown": "yes"})
    row = page.locator(f"#row-{job.id}")
    browsing.expect(row).to_be_visible()
    browsing.expect(row).to_contain_text("running")
    row.get_by_role("link").first.click()
    browsing.expect(page).to_have_url(f"{visit.url}/#/jobs/{job.id}")
    browsing.expect(page.locator(".job-line")).to_contain_text("marketplace")
    page.get_by_role("link", name="Log", exact=True).click()
    heard(page, "plain_loop: from step 0 to 400")
    service.wait_for_end(job)
    browsing.expect(page.locator(".job-line")).to_contain_text("succeeded")
    page.get_by_role("link", name="Metrics").click()
    browsing.expect(page.locator("canvas").first).to_be_visible()
    page.get_by_role("link", name="Files").click()
    heard(page, "model.json")
    page.get_by_role("link", name="Overview").click()
    heard(page, "serverless")
    assert visit.accessible() == []
    page.set_viewport_size({"width": 1280, "height": 1000})
    picture(page, "job")


def test_a_job_is_paused_resumed_and_cancelled(visit: Visitor, service: Service) -> None:
    """Each asks first, and says what is lost and which command does the same."""
    job = service.submit("plain_loop.py", {"steps": 4000, "step_ms": 20, "seed": 3})
    service.wait_for(job, "the job runs", lambda info: info.status == "running" and info.step > 5)
    visit.sign_in(browsing.key_of(service))
    page = visit.see(f"#/jobs/{job.id}")
    for act, sure, after in (
        ("Pause", "Pause", "paused"), ("Resume", "Resume", "running"), ("Cancel", "Cancel the job", "cancelled"),
    ):  # fmt: skip
        page.get_by_role("button", name=act, exact=True).click()
        dialog = page.get_by_role("dialog")
        browsing.expect(dialog).to_contain_text(f"allpass {act.lower()} {job.id}")
        assert visit.accessible() == []
        dialog.get_by_role("button", name=sure, exact=True).click()
        browsing.expect(dialog).to_be_hidden()
        browsing.expect(page.locator(".job-line")).to_contain_text(after)
    assert job.info().status == "cancelled"


def test_the_class_of_a_job_is_shown_and_until_when_it_stands_by(visit: Visitor, service: Service) -> None:
    """In the list and on its page. That it stands by is played: the stack has no host of a pool."""
    long = {"steps": 4000, "step_ms": 20, "seed": 3}
    job = service.submit("plain_loop.py", long, priority_class="spot")
    page = visit.sign_in(browsing.key_of(service))
    shown = {"id": "stby_1", "job_id": job.id, "state": "lent", "gpus": 4, "used_gpus": 3, "why": None}
    money = {"rebate_share": 0.5, "paid": 400_000, "rebate": 425_000, "price_per_hour": 825_000}
    times = {"asked_at": "2030-01-01T00:00:00Z", "until": "2030-01-01T08:00:00Z"}
    page.route("**/standbys", lambda route: route.fulfill(json={"items": [{**shown, **money, **times}]}))
    pools = [{"name": "cheap", "spot_share": 0.3, "grace_s": 300}, {"name": "plain", "spot_share": 1, "grace_s": None}]
    page.route("**/v1/pools*", lambda route: route.fulfill(json={"data": pools, "next_cursor": None}))
    row = page.locator(f"#row-{job.id}")
    browsing.expect(row.locator(".class-mark")).to_have_text("spot")
    row.get_by_role("link").first.click()
    browsing.expect(page.locator(".job-line .class-mark")).to_have_text("spot")
    facts = page.get_by_role("region", name="Class")
    browsing.expect(facts).to_contain_text("it saves and leaves when a guaranteed job needs its GPUs")
    browsing.expect(facts).to_contain_text("in pool cheap it pays 30 % of the price and has 5 min to save")
    browsing.expect(facts).to_contain_text("others have 3 of its 4 GPUs; $0.825/h is paid meanwhile")
    assert visit.accessible() == []
    job.cancel()


def test_what_a_job_uses_of_its_machine_stands_apart(visit: Visitor, service: Service) -> None:
    """Processor and memory of its processes, over time; its metrics are those of its code alone."""
    job = service.submit("plain_loop.py", {"steps": 400, "step_ms": 20, "seed": 4})
    visit.sign_in(browsing.key_of(service))
    page = visit.see(f"#/jobs/{job.id}/metrics")
    machine = page.get_by_role("region", name="Its machine")
    browsing.expect(machine).to_contain_text("Memory")
    browsing.expect(machine.locator("canvas")).to_have_count(2)
    assert not [name for name in page.locator(".metric-tile").all_inner_texts() if "system" in name]
    assert (visit.accessible(), visit.overflow()) == ([], [])
    service.wait_for_end(job)
    assert {name for point in job.metrics() for name in point.values} == {"loss"}


def test_how_many_gpus_a_job_had_is_shown_over_time(visit: Visitor, service: Service, tmp_path: Path) -> None:
    """With who wanted it; for a job whose GPUs have not changed there is nothing to show. What each size cost is, in
    all, what the job cost."""
    script = tmp_path / "follows.py"
    script.write_text(FOLLOWS)
    app = allpass.build("follows", "ada", code=script, client=service.client)
    job = app.run(template={"gpu": {"count": 1, "max_count": 2, "type": "A100"}, "start": "now"}, soft_deadline="6hr")
    visit.sign_in(browsing.key_of(service))
    page = visit.see(f"#/jobs/{job.id}")
    service.wait_for(job, "it runs", lambda info: info.step > 5)
    browsing.expect(page.get_by_role("heading", name="Where it has been")).to_be_visible()
    browsing.expect(page.get_by_role("heading", name="Its GPUs over time")).to_have_count(0)
    job.cancel()
    two = app.run(template={"gpu": {"count": 2, "type": "A100"}, "start": "now"}, soft_deadline="6hr")
    service.wait_for(two, "it runs", lambda info: info.step > 5)
    until("it can be resized", lambda: resized(two, 1))
    service.wait_for(two, "one GPU", lambda info: info.where is not None and info.where.gpu_count == 1)
    page = visit.see(f"#/jobs/{two.id}")
    shown = page.get_by_role("region", name="Its GPUs over time")
    browsing.expect(shown).to_contain_text("its owner wants it on 1 GPU, not 2")
    browsing.expect(shown.locator(".sizes-step")).to_have_count(2)
    browsing.expect(shown.locator(".sizes tbody tr")).to_have_count(2)
    assert (visit.accessible(), visit.overflow()) == ([], [])
    two.cancel()
    info = service.wait_for_end(two)
    sizes = [(one.gpus, one.gpus_before, one.why) for one in service.client.sizes(two.id)]
    assert sizes == [(2, None, "begun"), (1, 2, "asked")], service.story(two)
    until("its meter is closed", lambda: service.client.usage("size", job_id=two.id).open_nodes == 0)
    used = service.client.usage("size", job_id=two.id)
    assert {line.key for line in used.lines if line.payer == "run"} == {"1", "2"}
    assert sum(line.cost for line in used.lines if line.payer != "idle") == two.info().cost >= info.cost
    page.get_by_role("link", name="What each number cost").click()
    names = page.locator(".group-table tbody th")
    browsing.expect(names.nth(0)).to_have_text("1 GPU")
    browsing.expect(names.nth(1)).to_have_text("2 GPUs")
    browsing.expect(page.locator(".by-bar")).to_contain_text(f"Of {two.id} alone.")
    browsing.expect(page.locator(".by-bar .command")).to_contain_text(f"allpass cost --by size --job {two.id}")
    assert (visit.accessible(), visit.overflow()) == ([], [])


def resized(job: allpass.Job, gpus: int) -> bool:
    """Once its code has said which it uses."""
    try:
        job.resize(gpus)
    except Conflict as error:
        assert error.code == "not_elastic"
        return False
    return True


def test_a_connection_that_is_lost_comes_back_by_itself(visit: Visitor, service: Service) -> None:
    """The server dies. That is said while it lasts; what happens after it is shown, and nobody signs in again. Nor is
    anybody told meanwhile that a session has ended which has not."""
    page = visit.sign_in(browsing.key_of(service))
    service.crash_server()
    heard(page, "connection is lost")
    page.get_by_role("button", name="Sign out").click()
    heard(page, "You are still signed in")
    service.restart_server()
    job = service.submit("plain_loop.py", {"steps": 20, "step_ms": 10, "seed": 1})
    browsing.expect(page.locator(f"#row-{job.id}")).to_be_visible()
    browsing.expect(page.get_by_text("connection is lost")).to_be_hidden()
    service.wait_for_end(job)


def test_what_users_write_is_shown_and_never_run(visit: Visitor, service: Service, tmp_path: Path) -> None:
    """Names, labels, logs, metrics, links and files that are HTML, on every page that shows them."""
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE)
    app = allpass.build("hostile", "ada", code=script, client=service.client)
    job = app.run(template={"labels": {"evil": EVIL}}, parameters={EVIL: EVIL}, soft_deadline="1hr")
    service.wait_for_end(job)
    page = visit.sign_in(browsing.key_of(service))
    heard(page, f"evil:{EVIL}")
    shown = {
        "": "succeeded",
        "metrics": EVIL,
        "log": EVIL,
        "files": "page.html",
        "parameters": EVIL,
        "events": "submitted",
    }
    for tab, text in shown.items():
        visit.see(f"#/jobs/{job.id}/{tab}")
        heard(page, text)
        assert page.evaluate("window.hurt") is None, tab
        assert page.locator("a[href^='javascript:']").count() == 0, tab
        assert page.locator("img[src='x']").count() == 0, tab
    heard(visit.see(f"#/jobs/{job.id}/files?file=page.html"), "<script>window.hurt=1</script>")
    assert page.evaluate("window.hurt") is None


def test_a_fine_tuning_is_planned_and_submitted(visit: Visitor, service: Service, tmp_path: Path) -> None:
    """Rows that are wrong are named by line; what is no text is said so; a deadline that is none is told at its field;
    then the job's own page opens. A command that does the same stands beside the button."""
    page = visit.sign_in(browsing.key_of(service))
    visit.see("#/plan?model=HuggingFaceTB/SmolLM2-135M&batch=8&sequence=512")
    button = page.get_by_role("button", name="Submit the job")
    browsing.expect(button).to_be_disabled()
    rows = tmp_path / f"{EVIL.replace('/', '')}.jsonl"
    for content, told in (
        (b'{"prompt": "1+1=", "completion": "2"}\n\n{"prompt": "<b>"}\n', "row 2 (line 3)"),
        (bytes(range(256)), "is not UTF-8 text"),
    ):
        rows.write_bytes(content)
        choose(page, "Rows", rows)
        browsing.expect(page.get_by_label("What is wrong with the rows")).to_contain_text(told)
        browsing.expect(button).to_be_disabled()
    rows.write_text("".join(f'{{"prompt": "{n}+1=", "completion": "{n + 1}"}}\n' for n in range(24)))
    choose(page, "Rows", rows)
    heard(page, "24 rows")
    page.get_by_label("Its deadline").fill("yesterday")
    page.get_by_label("Name", exact=True).fill("sums")
    page.get_by_label("Cost limit").fill("5")
    browsing.expect(page.get_by_title("Copy the command").last).to_contain_text(
        "--name sums --deadline yesterday --max-cost 5"
    )
    button.click()
    browsing.expect(page.locator(".plan-submit .field-note.bad")).to_contain_text("soft_deadline")
    assert visit.accessible() == []
    assert visit.overflow() == []
    choose(page, "Rows", rows.rename(tmp_path / "sums.jsonl"))
    heard(page, "24 rows (prompt) in sums.jsonl")
    page.get_by_label("Its deadline").fill("6h")
    picture(page, "plan")
    button.click()
    browsing.expect(page.locator(".job-line")).to_be_visible()
    found = service.client.get_job(page.url.rpartition("/")[2])
    assert (found.name, found.parameters["batch_size"], found.max_cost) == ("sums", 8, 5_000_000)
    assert page.evaluate("window.hurt") is None
    service.client.cancel_job(found.id)


def test_a_plan_says_where_several_machines_would_be_and_what_the_network_takes(
    visit: Visitor, service: Service
) -> None:
    """As `allpass plan --nodes 2` does; the command to submit it has as many machines. A number that is none is told
    at its field."""
    page = visit.sign_in(browsing.key_of(service))
    visit.see("#/plan?model=HuggingFaceTB/SmolLM2-135M&batch=8&sequence=512&nodes=2")
    table = page.get_by_role("group", name="Several machines")
    browsing.expect(table).to_contain_text("2 \u00d7 ")
    browsing.expect(table).to_contain_text("Gbit/s, assumed")
    asked = PlanRequest(model="HuggingFaceTB/SmolLM2-135M", batch=8, sequence=512, nodes=2)
    found = service.client.plan(asked)
    browsing.expect(table.locator("tbody tr")).to_have_count(min(20, len(found.machines)))
    assert found.chosen_machines is not None
    browsing.expect(table.locator(".chosen-row")).to_contain_text(found.machines[found.chosen_machines].provider)
    browsing.expect(page.get_by_title("Copy the command").last).to_contain_text("--nodes 2")
    assert visit.accessible() == []
    assert visit.overflow() == []
    page.get_by_label("Machines", exact=True).fill("65")
    page.get_by_role("button", name="Plan", exact=True).click()
    browsing.expect(page.locator(".plan-form .field-note.bad")).to_contain_text("nodes")


def test_policies_are_simulated(visit: Visitor, service: Service, tmp_path: Path) -> None:
    """On generated jobs, and on a trace of one's own; what cannot be read is told by its line, what is too much refused
    with the limit. The address keeps the question, and a command asks the same."""
    page = visit.sign_in(browsing.key_of(service))
    visit.see("#/simulate?jobs=60&policies=allpass,modal-only")
    browsing.expect(page.get_by_title("Copy the command")).to_contain_text("--policy allpass --policy modal-only")
    page.get_by_role("button", name="Simulate", exact=True).click()
    browsing.expect(page.locator(".simulate-result .headline")).to_contain_text("allpass costs $")
    browsing.expect(page.locator(".simulate-table")).to_contain_text("Deadlines missed")
    assert page.locator(".simulate-result canvas").count() >= 4
    assert (visit.accessible(), visit.overflow()) == ([], [])
    page.set_viewport_size({"width": 1280, "height": 1900})
    picture(page, "simulate")
    page.get_by_label("Jobs", exact=True).fill("90000")
    page.get_by_role("button", name="Simulate", exact=True).click()
    heard(page, "is the most here")
    page.get_by_label("Workload").select_option("own")
    trace = tmp_path / "jobs.csv"
    trace.write_text(f"job_id,submit_time_s,duration_s,num_gpus\na,0,{EVIL},1\n")
    choose(page, "Trace", trace)
    heard(page, "jobs.csv line 2, column duration_s")
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,600,1\nb,60,900,1\n")
    choose(page, "Trace", trace)
    heard(page, "2 jobs within")
    page.get_by_role("button", name="Simulate", exact=True).click()
    heard(page, "jobs: 2 jobs of 0 GPU h")
    assert page.evaluate("window.hurt") is None


def test_costs_are_shown_by_the_key_that_submitted(visit: Visitor, service: Service) -> None:
    """The name of a key is shown as it is, whatever it is; a command says the same."""
    job = service.submit("plain_loop.py", {"steps": 40, "step_ms": 10, "seed": 6})
    service.wait_for_end(job)
    visit.sign_in(browsing.key_of(service))
    page = visit.see("#/costs?by=key")
    browsing.expect(page.locator(".group-table tbody th").first).to_have_text("first")
    browsing.expect(page.locator(".by-bar .command")).to_contain_text("allpass cost --by key")
    assert (visit.accessible(), visit.overflow()) == ([], [])


@pytest.mark.parametrize("width", [390, 1280])
def test_what_would_fit_on_own_hosts_is_told_as_the_command_line_tells_it(
    browser: Browser, service: Service, width: int
) -> None:
    """Of all pools, or one of them; where no host takes jobs, how to have one."""
    client, pool = service.client, f"room-{width}"
    client.create_pool(pool)
    client.create_pool(f"empty-{width}")
    gpus = [{"index": index, "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * 2**30} for index in range(3)]
    facts = {"cpus": 24, "memory_bytes": 2**37, "gpus": gpus}
    body = {"nonce": f"{width:064}", "name": f"box-{width}", "boot_id": "1", "facts": facts}
    bearer = {"Authorization": f"Bearer {client.create_pool_token(pool).token}"}
    answer = httpx.post(f"{client.url}/v1/agent/hosts/join", json=body, headers=bearer)
    assert answer.status_code == 200, answer.text
    with browsing.visitor(browser, service, width=width) as visit:
        visit.sign_in(browsing.key_of(service))
        page = visit.see(f"#/fleet/room?pool={pool}")
        heard(page, "3 of 3 GPUs are free, and 1 of 1 host is whole, under 1 switch")
        rows = page.locator(".room tbody tr").all()
        said = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}
        found = client.fragmentation(pool=pool)
        assert said["2 GPUs, 16 CPUs"][:3] == ["1", "1", "0"]
        for one in found.gangs:
            name = f"{one.gpus} GPUs in one switch, of {one.host_gpus} with {one.host_cpus} CPUs"
            told = [one.fitting, one.blocked_by_gpus, one.blocked_by_cpus, one.blocked_by_switch]
            assert said[name] == [str(number) for number in told]
        assert (visit.accessible(), visit.overflow()) == ([], [])
        page.get_by_role("link", name=f"empty-{width}").click()
        heard(page, "No host of a pool takes jobs now")
        assert (visit.accessible(), visit.overflow()) == ([], [])


def test_another_project_sees_nothing_of_it(browser: Browser, service: Service) -> None:
    """Its list is empty, and the address of a foreign job leads to nothing."""
    job = service.submit("plain_loop.py", {"steps": 10, "step_ms": 10, "seed": 2})
    service.wait_for_end(job)
    made = service.client.create_project(f"other-{job.id[-6:].lower()}")
    with browsing.visitor(browser, service) as visit:
        page = visit.sign_in(made.key.key)
        heard(page, "No jobs yet")
        visit.see(f"#/jobs/{job.id}")
        heard(page, "no such job in this project")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_every_page_is_accessible_and_nothing_is_cut(
    browser: Browser, service: Service, width: int, dark: bool
) -> None:
    """axe-core has nothing to say, and nothing sticks out, on a phone, a tablet and a laptop."""
    job = service.submit("plain_loop.py", {"steps": 40, "step_ms": 10, "seed": 5}, labels={"shown": "yes"})
    service.wait_for_end(job)
    with browsing.visitor(browser, service, width=width, dark=dark) as visit:
        browsing.expect(visit.see().get_by_label("API key")).to_be_visible()
        assert visit.accessible() == []
        page = visit.sign_in(browsing.key_of(service))
        pages = page.evaluate("[...document.querySelectorAll('nav[aria-label=Pages] a')].map(one => one.hash)")
        tabs = [
            f"#/jobs/{job.id}/{tab}" for tab in ("", "metrics", "log", "checkpoints", "files", "parameters", "events")
        ]
        found = {}
        for address in [*pages, *tabs]:
            visit.see(address)
            browsing.expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_timeout(300)
            found[address] = (visit.accessible(), visit.overflow())
        assert found == {address: ([], []) for address in found}
